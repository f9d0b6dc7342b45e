"""A GitHub that gives the answers of the test, for behaviour that only unusual answers show."""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Call:
    """A received request."""

    method: str
    path: str
    authorization: str
    body: bytes
    connection: int


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer. `cut` closes the connection within the body, and `drip` is the pause before each byte."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    drip: float = 0


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error of a handler, unless its client refused the certificate or disconnected."""
        if not isinstance(sys.exception(), (ssl.SSLError, ConnectionError)):
            super().handle_error(request, client_address)


class Upstream:
    """Serve `answer(call)` until the end of the block. `tokens` answers token calls. With `tls` it serves HTTPS."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.calls: list[Call] = []
        self.answer: Callable[[Call], Reply] = lambda _: Reply()
        self.tokens: Callable[[Call], Reply] = lambda _: Reply(status=500)
        self.closing = threading.Event()
        self._lock = threading.Lock()
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                call = Call(
                    method=self.command,
                    path=self.path,
                    authorization=self.headers["Authorization"] or "",
                    body=body,
                    connection=self.client_address[1],
                )
                reply = upstream.reply(call)
                content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                content = b"" if reply.status == 204 else content
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.close_connection = reply.cut
                content = content[: len(content) // 2] if reply.cut else content
                step = 1 if reply.drip else max(1, len(content))
                try:
                    for at in range(0, len(content), step):
                        upstream.closing.wait(reply.drip)
                        self.wfile.write(content[at : at + step])
                except OSError:
                    self.close_connection = True

            do_GET = do_POST = do_DELETE = serve  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Print nothing, so that the output of the test stays readable."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        if tls is not None:  # the handshake is each connection's own thread's
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"

    def reply(self, call: Call) -> Reply:
        """Record a call and return its answer."""
        with self._lock:
            self.calls.append(call)
        return self.tokens(call) if call.path.endswith("/access_tokens") else self.answer(call)

    def to(self, ending: str) -> list[Call]:
        """Return the calls whose path has this ending."""
        with self._lock:
            return [call for call in self.calls if call.path.endswith(ending)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
