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

from lab.bootstrap import LabPool
from lab.redis import Redis
from lab.system import Options, System, read_log
from ostler.redis_clients import is_read_only, make_client
from ostler.redis_users import RedisUser
from ostler.secrets import Secret
from ostler.task_names import REMATCH
from ostler.wakes import Waker, wake_key
from tests.waiting import eventually

LABELS = ("self-hosted", "linux", "moved")
USERS = {str(user) for user in RedisUser}


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


@pytest.mark.cluster  # a long story
@pytest.mark.timeout(300)
def test_every_process_follows_the_name_without_a_restart(tmp_path: Path) -> None:
    new = Redis(tmp_path / "new")
    name = Name(0)
    options = Options(
        pools=(LabPool("moved", LABELS, 4, cpu="1", memory="1Gi"),),
        settings={"OSTLER_REDIS_URL": name.url},
        real_pods=0,
    )
    system = System(tmp_path / "system", options, say=print, cluster="embedded")
    old = system.redis
    new.passwords = old.passwords
    (tmp_path / "new" / "users.acl").write_text((tmp_path / "system" / "redis" / "users.acl").read_text())
    new.start()
    name.port = old.port

    with system:
        system.start_flower()
        run_jobs(system, 4)
        with old.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", str(new.port))
        name.port = new.port
        run_jobs(system, 8)
        eventually(lambda: users_of(new) >= USERS, "every user has a connection to the new server")
    name.close()
    new.stop()


def run_jobs(system: System, count: int) -> None:
    """Run jobs until the lab's GitHub has completed `count` of them."""
    system.wait_for_warm_pods(4, timeout=90)
    job = {"repository": "acme/shop", "labels": list(LABELS), "duration_seconds": 0.2, "count": 4}
    system.lab("POST", "/jobs", job)

    def completed() -> int:
        return sum(event["event"] == "job_completed" for event in read_log(system.github_log))

    eventually(lambda: completed() == count, "the jobs are completed")


def users_of(server: Redis) -> set[str]:
    """Return the names of the users that are connected to a server."""
    with server.client() as client:
        return {each["user"] for each in client.client_list()}


def test_answer_of_a_script_on_a_replica_is_read_only() -> None:
    quoted = "Error running script: @user_script:1: -READONLY You can't write against a read only replica."
    assert is_read_only(redis.ResponseError(quoted))
    assert not is_read_only(redis.ResponseError("NOSCRIPT"))
