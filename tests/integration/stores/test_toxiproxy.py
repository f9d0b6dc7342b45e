"""Toxiproxy as the tests use it: endless silence that loses all data, and refused connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.toxiproxy import Toxiproxy

pytestmark = pytest.mark.slow


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that returns all data."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            with connection:
                while said := connection.recv(100):
                    connection.sendall(said)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]


def ask(connection: socket.socket, word: bytes) -> bytes | None:
    """Return the echo, or None if there is none."""
    connection.settimeout(1)
    connection.sendall(word)
    try:
        return connection.recv(100)
    except TimeoutError:
        return None


def test_silence_ends_no_connection_and_loses_what_was_said(echo: int, tmp_path: Path) -> None:
    with Toxiproxy(tmp_path, {"echo": echo}) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.ports["echo"])) as old:
            assert ask(old, b"one") == b"one"
            for _ in range(2):
                proxy.silence("echo")
                assert ask(old, b"two") is None
                with socket.create_connection(("127.0.0.1", proxy.ports["echo"])) as new:
                    assert ask(new, b"three") is None

                proxy.restore("echo")
                assert ask(old, b"four") == b"four"
                with socket.create_connection(("127.0.0.1", proxy.ports["echo"])) as new:
                    assert ask(new, b"five") == b"five"

        proxy.refuse("echo")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxy.ports["echo"]))
        proxy.restore("echo")
        with socket.create_connection(("127.0.0.1", proxy.ports["echo"])) as new:
            assert ask(new, b"six") == b"six"
