"""A real server with our protocol in a thread of the test, and clients that speak to it in bytes."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

from tests.waiting import eventually
from web.edge.limits import BoundedProtocol

PATIENCE = 60.0


@dataclass
class App:
    """An application that answers `/` at once, `/read` after the body, and `/hold` when its client leaves."""

    seen: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    left: int = 0
    answer: bytes = b"hello"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        self.seen.append(f"{scope['method']} {scope['path']}")
        if scope["path"] == "/read":
            body, more = b"", True
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            self.bodies.append(body)
        if scope["path"] == "/hold":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left += 1
        headers = [(b"content-length", str(len(self.answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.answer})


@dataclass
class Served:
    """A running server."""

    port: int
    app: App
    server: uvicorn.Server

    @property
    def connections(self) -> int:
        """Return the number of the server's connections."""
        return len(self.server.server_state.connections)

    def connect(self, data: bytes = b"") -> socket.socket:
        """Open a connection and send its first bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        if data:
            connection.sendall(data)
        return connection

    def ask(self, data: bytes) -> bytes:
        """Send bytes, and return all data until the server closes the connection."""
        with self.connect(data) as connection:
            return until_cut(connection)


@contextlib.contextmanager
def served(app: App | None = None, **protocol: Any) -> Iterator[Served]:
    """Serve an application with our protocol on a free port."""
    found = app if app is not None else App()
    http: Any = functools.partial(BoundedProtocol, **protocol) if protocol else BoundedProtocol
    config = uvicorn.Config(
        found, http=http, ws="none", log_config=None, lifespan="off", loop="uvloop", log_level="error"
    )
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    eventually(lambda: server.started)
    try:
        yield Served(listener.getsockname()[1], found, server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


def until_cut(connection: socket.socket, *, within: float = PATIENCE) -> bytes:
    """Return the data until the server ends the connection. Raises TimeoutError if it does not."""
    connection.settimeout(within)
    came = b""
    while True:
        try:
            data = connection.recv(65536)
        except ConnectionError:
            return came
        if not data:
            return came
        came += data


def is_stopped(connection: socket.socket, piece: bytes, *, most: int) -> bool:
    """Send a piece repeatedly. Return whether the server cut the connection before `most` bytes were sent."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        return True
    return False


def status(answer: bytes) -> int:
    """Return the status of an answer, or 0 if there is none."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0
