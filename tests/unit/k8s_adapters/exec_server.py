"""WebSocket server of one test, which controls the frames of the API server and of the container."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Self
from urllib.parse import parse_qs, urlsplit

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from k8s_adapters.calls.exec_stream import V4, V5

Story = Callable[["Connection"], None]


def status_of(code: int) -> bytes:
    """Return the status of a process that ended with an exit code."""
    if code == 0:
        return b'{"metadata":{},"status":"Success"}'
    details = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    return json.dumps({"status": "Failure", "reason": "NonZeroExitCode", "details": details}).encode()


class Connection:
    """One connection of a client. The request has been read, and the test answers it."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._protocol = ServerProtocol(subprotocols=[V5, V4], max_size=None)
        self._frames: list[Frame] = []
        self.answers_pings = True
        self.request = self._request()
        self.offered = self.request.headers["Sec-WebSocket-Protocol"].split(", ")
        self.query = parse_qs(urlsplit(self.request.path).query)

    def _request(self) -> Request:
        while True:
            self._protocol.receive_data(self._link.recv(65536) or b"")
            for event in self._protocol.events_received():
                if isinstance(event, Request):
                    return event

    def accept(self, version: str | None = V5) -> None:
        """Accept the upgrade with a version of the protocol."""
        answer = self._protocol.accept(self.request)
        del answer.headers["Sec-WebSocket-Protocol"]
        if version is not None:
            answer.headers["Sec-WebSocket-Protocol"] = version
        self._protocol.send_response(answer)
        self.flush()

    def refuse(self, status: int, *, message: str = "", **headers: str) -> None:
        """Answer with a status instead of the upgrade."""
        body = json.dumps({"kind": "Status", "reason": "Because", "message": message}).encode()
        named = Headers({name.replace("_", "-"): value for name, value in headers.items()})
        named["Content-Length"] = str(len(body))
        self._link.sendall(Response(status, "Refused", named, body).serialize())

    def send(self, channel: int, data: bytes) -> None:
        """Send a message on a channel."""
        self._protocol.send_binary(bytes((channel,)) + data)
        self.flush()

    def send_in_parts(self, channel: int, *parts: bytes) -> None:
        """Send a message in fragments, each in several pieces of TCP."""
        self._protocol.send_binary(bytes((channel,)), fin=False)
        for number, part in enumerate(parts):
            self._protocol.send_continuation(part, fin=number == len(parts) - 1)
        for byte in b"".join(self._protocol.data_to_send()):
            self._link.sendall(bytes((byte,)))

    def end(self, code: int = 0) -> None:
        """Send the status of a process that ended, and close."""
        self.send(3, status_of(code))
        self.close()

    def close(self) -> None:
        """Close the WebSocket, and read until the client has closed the connection."""
        self._protocol.send_close(1000)
        self.flush()
        with contextlib.suppress(OSError):
            while self._link.recv(65536):
                pass

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._link.close()

    def read(self) -> Frame | None:
        """Return the next frame with data, or None at the end of the connection."""
        while not self._frames:
            data = self._link.recv(65536)
            if not data:
                return None
            self._protocol.receive_data(data)
            received = [each for each in self._protocol.events_received() if isinstance(each, Frame)]
            self._frames += [each for each in received if each.opcode is Opcode.BINARY]
            if self.answers_pings:
                self.flush()
            else:
                self._protocol.data_to_send()
        return self._frames.pop(0)

    def read_input(self) -> Iterator[bytes]:
        """Yield the input until the client closes it by version 5, or closes the connection."""
        while (frame := self.read()) is not None:
            data = bytes(frame.data)
            if data == b"\xff\x00":
                return
            assert data[0] == 0, data[:10]
            yield data[1:]

    def flush(self) -> None:
        """Send what the protocol has produced."""
        self._link.sendall(b"".join(self._protocol.data_to_send()))


class ExecServer:
    """A server that gives each connection to the next story. One thread serves all of them in turn."""

    def __init__(self, *stories: Story, tls: ssl.SSLContext | None = None) -> None:
        self._stories = list(stories)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.requests: list[Request] = []
        self.failure: BaseException | None = None

    @property
    def url(self) -> str:
        """Return the address for clients."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        if kind is None and self.failure is not None:
            raise self.failure

    def _serve(self) -> None:
        try:
            while True:
                try:
                    link, _ = self._listener.accept()
                except OSError:  # the test is over
                    return
                with link if self._tls is None else self._tls.wrap_socket(link, server_side=True) as link:
                    connection = Connection(link)
                    self.requests.append(connection.request)
                    self._stories.pop(0)(connection)
        except BaseException as error:  # noqa: BLE001  `__exit__` raises it
            self.failure = error
