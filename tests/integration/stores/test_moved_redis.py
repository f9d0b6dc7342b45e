"""A name of Redis that moves while the old primary stays up as a read-only replica: clients leave the old server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from kombu.exceptions import OperationalError

from lab.redis import Redis
from ostler.redis_clients import is_read_only, make_client
from ostler.secrets import Secret
from ostler.task_names import REMATCH
from ostler.wakes import Waker, wake_key
from tests.waiting import eventually


class Name:
    """An address that leads new connections to `port`. Open connections stay at their server, as with a DNS name."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._server.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # the test is over
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self.port))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with source, suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()


@contextmanager
def running(folder: Path) -> Iterator[Redis]:
    """Run a server."""
    server = Redis(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def move(tmp_path: Path) -> Iterator[tuple[Name, Callable[[], Redis]]]:
    """A name that leads to a server, and a function that moves the name to another server and returns that one."""
    with running(tmp_path / "old") as old, running(tmp_path / "new") as new:
        name = Name(old.port)

        def moved() -> Redis:
            with old.client() as client:
                client.execute_command("REPLICAOF", "127.0.0.1", str(new.port))
            name.port = new.port
            return new

        yield name, moved
        name.close()


def works(call: Callable[[], object]) -> bool:
    """Return True if a call to Redis succeeds."""
    try:
        call()
    except (redis.RedisError, OperationalError):
        return False
    return True


def test_waker_leaves_a_server_that_became_a_replica(move: tuple[Name, Callable[[], Redis]]) -> None:
    name, moved = move
    waker = Waker(Secret(name.url))
    waker.wake(1)
    waker.clear_wake(1)

    new = moved()

    eventually(lambda: works(lambda: waker.wake(2)), "a wake arrives")
    eventually(lambda: works(lambda: waker.clear_wake(3)), "a key is deleted")
    eventually(lambda: works(lambda: waker.send(REMATCH)), "a message arrives")
    with new.client() as client:
        assert client.llen("sweeps") == 1
        assert client.exists(wake_key(2))
    waker.close()


def test_script_of_a_client_runs_on_the_new_server(move: tuple[Name, Callable[[], Redis]]) -> None:
    name, moved = move
    with make_client(name.url, socket_timeout=2) as client:
        script = client.register_script("return redis.call('INCR', KEYS[1])")
        assert script(keys=["a"]) == 1

        new = moved()

        eventually(lambda: works(lambda: script(keys=["b"])), "the script runs")
        with new.client() as seen:
            assert seen.get("b") == b"1"


def test_answer_of_a_script_on_a_replica_is_read_only() -> None:
    quoted = "Error running script: @user_script:1: -READONLY You can't write against a read only replica."
    assert is_read_only(redis.ResponseError(quoted))
    assert not is_read_only(redis.ResponseError("NOSCRIPT"))
