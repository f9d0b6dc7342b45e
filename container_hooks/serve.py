"""The HTTP server of `ostler hook serve`: the Unix socket between `hook.sh` and the commands of container jobs.

A request that is not part of the conversation of `hook.sh` is refused and counted. Code of a job can send requests to
the socket too, but can only start the four commands for its own runner Pod.

| request | answer |
| --- | --- |
| `GET /ready` | `ready` |
| `POST /run`, the JSON of the runner | `run ID`, or `refused TEXT` |
| `GET /next?id=ID&status=N` | the next instruction; N is 0 if the previous instruction succeeded |
| `PUT /files?id=ID`, a tar archive | the archive for `send` |
| `GET /body?id=ID` | the bytes for `receive` and `write` |
| `GET /log?id=ID` | the log of the command, while it is written |
| `DELETE /run?id=ID` | cancels the command |
"""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from container_hooks.conversation import CommandCancelled, Conversation, Limits, Unexpected
from container_hooks.desk import Desk, Execute, Refused
from container_hooks.pipes import PipeBroken
from ostler import logging

log = logging.get_logger(__name__)

SCRIPT = "hook.sh"
_CHUNK = 64 * 1024
_LONGEST_LINE = 64  # bytes of the line before a chunk
_DISCARDED = 64 * 1024 * 1024  # bytes of a refused request that are read, so that its client reads the answer
_CHECKED = 0.5  # seconds between two checks whether the client of a quiet log is still there
_SOCKET_MODE = 0o660
_SCRIPT_MODE = 0o555
_FOLDERS = {
    "RUNNER_WORKSPACE": "X-Ostler-Runner-Workspace",
    "GITHUB_WORKSPACE": "X-Ostler-Github-Workspace",
    "RUNNER_TEMP": "X-Ostler-Runner-Temp",
}


class HookServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves the socket. The socket appears at its path only after the server listens.

    `path` is the path of the socket. Its folder is shared with the container `runner`.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, path: Path, execute: Execute, *, limits: Limits | None = None, restart: Callable[[], None] | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.desk = Desk(execute, self.limits, restart=restart)
        self._path = path
        self._places = threading.BoundedSemaphore(self.limits.connections)
        self.inputs = threading.BoundedSemaphore(self.limits.inputs)
        self._stop = threading.Event()
        staged = path.with_name(f".{path.name}.new")
        path.unlink(missing_ok=True)
        staged.unlink(missing_ok=True)
        install_script(path.parent)
        super().__init__(str(staged), Handler, bind_and_activate=False)
        self.server_bind()
        staged.chmod(_SOCKET_MODE)
        self.server_activate()
        staged.rename(path)

    def serve(self) -> None:
        """Serve until `stop` is called."""
        threading.Thread(target=self.desk.watch, args=(self._stop,), daemon=True).start()
        self.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Stop the server without waiting for a running command."""
        self._stop.set()
        self.shutdown()
        self.server_close()
        self._path.unlink(missing_ok=True)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a new thread.

        If the number of connections is at its limit, the new connection waits. It is refused if no other connection
        ends within one and a half times the limit `request`.
        """
        if self._places.acquire(timeout=self.limits.request * 1.5):
            super().process_request(request, client_address)
            return
        self.desk.refuse(Refused("too many connections at the same time", reason="connections", status=503))
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the signature of the base
        """Log an error of a handler."""
        log.exception("hooks.request_failed")  # noqa: LOG004 - the base calls this method in its handler


def install_script(folder: Path) -> None:
    """Write `hook.sh` into the shared folder. The file is replaced atomically, so no runner executes a part of it."""
    staged = folder / f".{SCRIPT}.new"
    staged.unlink(missing_ok=True)
    staged.write_bytes((files("container_hooks") / SCRIPT).read_bytes())
    staged.chmod(_SCRIPT_MODE)
    staged.rename(folder / SCRIPT)


class Handler(BaseHTTPRequestHandler):
    """Serves one connection, which has one request."""

    protocol_version = "HTTP/1.1"
    server: HookServer

    def setup(self) -> None:
        """Limit the time between two packets of the request."""
        super().setup()
        self.connection.settimeout(self.server.limits.request)

    def do_GET(self) -> None:
        """Answer a GET."""
        self._serve({"/ready": self._ready, "/next": self._next, "/body": self._body, "/log": self._log})

    def do_POST(self) -> None:
        """Answer a POST."""
        self._serve({"/run": self._run})

    def do_PUT(self) -> None:
        """Answer a PUT."""
        self._serve({"/files": self._files})

    def do_DELETE(self) -> None:
        """Answer a DELETE."""
        self._serve({"/run": self._cancel})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of the base
        """Write nothing, because this process logs events and not requests."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse a request that is not valid HTTP, or has an unknown method."""
        self._refuse(Refused(f"the request is not valid: {message or code}", reason="malformed", status=code))

    def _serve(self, routes: dict[str, Callable[[], None]]) -> None:
        self.close_connection = True
        path = urlsplit(self.path).path
        try:
            routes.get(path, self._unknown)()
        except Refused as error:
            self._refuse(error)
        except Unexpected as error:
            self._refuse(Refused(str(error), reason="unexpected", status=409))
        except CommandCancelled as error:
            self._answer(f"refused the command was cancelled: {error}", HTTPStatus.GONE)
        except PipeBroken:
            self._answer("refused the copy was interrupted", HTTPStatus.GONE)
        except OSError:  # the client is gone, or sends nothing
            return

    def _refuse(self, error: Refused) -> None:
        self.close_connection = True
        self.server.desk.refuse(error)
        with suppress(OSError):
            self._answer(f"refused {error}", error.status)
            self._discard()

    def _unknown(self) -> None:
        path = urlsplit(self.path).path
        raise Refused(f"there is no {self.command} {path[:80]}", reason="unknown_path", status=404)

    def _ready(self) -> None:
        self._answer("ready")

    def _run(self) -> None:
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdecimal()):
            raise Refused("the command has no Content-Length", reason="malformed", status=411)
        if int(size) > self.server.limits.input:
            raise Refused(
                f"the command has {int(size)} bytes; at most {self.server.limits.input} are allowed",
                reason="too_large",
                status=413,
            )
        environment = {name: self._folder(header) for name, header in _FOLDERS.items()}
        with self.server.inputs:
            known = self.server.desk.begin(self.rfile.read(int(size)), environment)
        self._answer(f"run {known}")

    def _folder(self, header: str) -> str:
        return self.headers.get(header, "").encode("latin-1", "replace").decode(errors="replace")

    def _next(self) -> None:
        conversation = self._conversation()
        status = self._query("status")
        report = int(status) if status.isascii() and status.isdecimal() else 1
        instruction = conversation.next(report=report, within=self.server.limits.poll)
        try:
            self._answer(str(instruction))
        except OSError:
            self.server.desk.cancel(conversation, "hook.sh ended while it waited")

    def _files(self) -> None:
        conversation = self._conversation()
        self.connection.settimeout(self.server.limits.stall)
        conversation.upload(self._chunks())
        self._answer("uploaded")

    def _body(self) -> None:
        self.connection.settimeout(self.server.limits.stall)
        self._stream(self._conversation().download())

    def _log(self) -> None:
        self.connection.settimeout(self.server.limits.stall)
        conversation = self._conversation()
        try:
            self._stream(conversation.log_chunks(every=_CHECKED))
        except PipeBroken:
            return
        except OSError:
            self.server.desk.cancel(conversation, "the connection for the log was closed")

    def _cancel(self) -> None:
        self.server.desk.cancel(self._conversation(), "hook.sh was ended by a signal")
        self._answer("cancelled")

    def _conversation(self) -> Conversation:
        return self.server.desk.conversation(self._query("id"))

    def _query(self, name: str) -> str:
        return parse_qs(urlsplit(self.path).query).get(name, [""])[0]

    def _answer(self, text: str, status: int = HTTPStatus.OK) -> None:
        body = text.encode(errors="replace")
        self.send_response_only(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, chunks: Iterator[bytes]) -> None:
        """Send all chunks. After an error the answer lacks its last chunk, so the client detects the error."""
        self.send_response_only(HTTPStatus.OK)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        with closing(chunks):  # type: ignore[type-var]
            for chunk in chunks:
                if not chunk:
                    self._check_client()
                    continue
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def _check_client(self) -> None:
        """Raise `ConnectionError` if the client has closed the connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionError

    def _chunks(self) -> Iterator[bytes]:
        """Yield the body of a request with chunks. Raises `Refused` if the body is malformed."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            raise Refused("the archive is not sent in chunks", reason="malformed", status=411)
        while True:
            line = self.rfile.readline(_LONGEST_LINE)
            size = line.split(b";")[0].strip()
            if not line.endswith(b"\n") or not size or len(size) > 8 or size.strip(b"0123456789abcdefABCDEF"):  # noqa: PLR2004
                raise Refused("the archive is incomplete", reason="malformed", status=400)
            left = int(size, 16)
            if left == 0:
                self.rfile.readline(_LONGEST_LINE)
                return
            while left:
                chunk = self.rfile.read1(min(left, _CHUNK))
                if not chunk:
                    raise Refused("the archive is incomplete", reason="malformed", status=400)
                left -= len(chunk)
                yield chunk
            self.rfile.readline(_LONGEST_LINE)

    def _discard(self) -> None:
        """Read the rest of a refused request."""
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_WR)
        left = _DISCARDED
        while left > 0 and (chunk := self.rfile.read1(min(left, _CHUNK))):
            left -= len(chunk)
