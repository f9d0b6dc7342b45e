"""A dispatch endpoint with a list of answers, one per poll, that records the polls."""

import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Answer:
    """One answer. `hang` holds the poll until the stub closes, and `cut` promises more bytes than it sends."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    hang: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Poll:
    """The content of one poll."""

    method: str
    path: str
    authorization: str
    accept: str


LAST = Answer(410)


class DispatchStub:
    """A server in a thread. After its last answer it answers 410, so that every poller ends."""

    def __init__(
        self, answers: list[Answer], *, certificate: tuple[Path, Path] | None = None, host: str = "127.0.0.1"
    ) -> None:
        self._answers = list(answers)
        self._closing = threading.Event()
        self.polls: list[Poll] = []
        self.polled = threading.Condition()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                stub.answer(self)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        """Return the address of the endpoint."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/runners/v1/dispatch"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Send the next answer."""
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self.polled:
            seen = handler.headers
            self.polls.append(
                Poll(handler.command, handler.path, seen.get("Authorization", ""), seen.get("Accept", "")),
            )
            answer = self._answers.pop(0) if self._answers else LAST
            self.polled.notify_all()
        if answer.hang:
            self._closing.wait(60)
            handler.close_connection = True
            return
        body = answer.body.encode()
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        if answer.status != 204:
            handler.send_header("Content-Length", str(len(body) + (100 if answer.cut else 0)))
        handler.end_headers()
        handler.wfile.write(body)
        if answer.cut:
            handler.close_connection = True

    def wait_for_polls(self, count: int) -> None:
        """Wait until `count` polls have arrived. Raise AssertionError after 30 s."""
        with self.polled:
            assert self.polled.wait_for(lambda: len(self.polls) >= count, timeout=120)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
