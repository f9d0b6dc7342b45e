"""WebSocket connection of one exec: handshake, channels, pings and back-pressure. One thread does all I/O.

Each message begins with one byte, the number of its channel. Channels 0 to 2 are the standard streams, and channel 3
carries the status at the end. Subprotocol v5 adds channel 255, which closes another channel. Kubernetes docs: the
package `k8s.io/apimachinery/pkg/util/remotecommand`.

A TLS connection must not be used by two threads at once, so this module multiplexes with `select`. Memory is bounded in
two ways. A frame from the server may have at most `LARGEST_FRAME` bytes. No further piece of input is sent while at
least `WINDOW` bytes of input are not confirmed. A server handles frames in order, so the pong for a ping that follows
some input proves that the process accepted this input.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState, InvalidStatus, NegotiationError
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from k8s_adapters.calls.client import Line, refusal_answer
from k8s_adapters.calls.exec_stdin import Stdin
from rules.pools.spec_writers import FIELD_MANAGER

V5 = Subprotocol("v5.channel.k8s.io")
V4 = Subprotocol("v4.channel.k8s.io")
VERSIONS = [V5, V4]
"""Supported versions of the protocol, in the order of preference."""

STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
LARGEST_FRAME = 1024 * 1024
"""Maximum size in bytes of a frame from the server. The kubelet sends frames of at most 32 KiB."""
LARGEST_STATUS = 256 * 1024
WINDOW = 2 * 1024 * 1024
"""Number of unconfirmed bytes of input at which no further piece is sent. A pong of the server confirms input."""
_PING_EVERY = WINDOW // 4
_PIECE = 32 * 1024
_SENT_AT_ONCE = 64 * 1024
_CLOSES_WITHIN = 5.0  # seconds after the status within which the rest of the output must arrive
_TLS_WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class Broken(Exception):
    """The exchange ended without a status: the connection ended or became silent, or the server sent invalid data.

    The text of the exception names the cause.
    """


class NotAnswered(ConnectionError):
    """The connection ended before the answer to the handshake, or the answer was not valid."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Times in seconds. A ping is sent after `period` without data.

    After `deadline` without data and without a pong, the connection counts as lost.
    """

    period: float = 5.0
    deadline: float = 61.0


def shake_hands(line: Line, address: str) -> tuple[socket.socket, ClientProtocol]:
    """Upgrade a connection to a WebSocket. Return its socket and its protocol.

    The protocol has no subprotocol if the server names none of `VERSIONS`. Raises `Answer` if the server refuses,
    and OSError if it does not answer. In both cases the connection is closed.
    """
    path, _, query = address.partition("?")
    uri = WebSocketURI(line.secure, line.host, line.port, line.prefix + path, query)
    protocol = ClientProtocol(uri, subprotocols=VERSIONS, max_size=(None, LARGEST_FRAME))
    request = protocol.connect()
    request.headers["User-Agent"] = FIELD_MANAGER
    if line.authorization is not None:
        request.headers["Authorization"] = line.authorization
    protocol.send_request(request)
    try:
        line.socket.settimeout(line.read_timeout)
        line.socket.sendall(b"".join(protocol.data_to_send()))
        _await_upgrade(line.socket, protocol)
        line.socket.settimeout(0)
    except BaseException:
        line.socket.close()
        raise
    return line.socket, protocol


def _await_upgrade(link: socket.socket, protocol: ClientProtocol) -> None:
    """Read the answer to the handshake. Raises `Answer` after a refusal, and OSError without an answer."""
    while protocol.state is State.CONNECTING:
        data = link.recv(_PIECE)
        protocol.receive_data(data) if data else protocol.receive_eof()
        failure = protocol.handshake_exc
        if isinstance(failure, InvalidStatus):
            answer = failure.response
            raise refusal_answer(answer.status_code, bytes(answer.body), answer.headers.get("Retry-After"))
        if isinstance(failure, NegotiationError):
            return  # the answer names another subprotocol
        if failure is not None or not data:
            raise NotAnswered("the server did not answer the handshake") from failure


class Exchange:
    """Exchange of data on an open connection, until the status of the process arrives.

    `heard` is called with the number of a channel and some bytes. If `heard` blocks, the server waits. `silence` is the
    number of seconds without output after which the connection counts as lost, or None for no limit.
    """

    def __init__(
        self,
        link: socket.socket,
        protocol: ClientProtocol,
        *,
        stdin: Stdin,
        heard: Callable[[int, bytes], None],
        heartbeat: Heartbeat,
        clock: Callable[[], float],
        silence: float | None = None,
    ) -> None:
        self._link = link
        self._protocol = protocol
        self._stdin: Stdin | None = stdin
        self._heard = heard
        self._heartbeat = heartbeat
        self._clock = clock
        self._silence = silence
        self._outgoing = bytearray()
        self._channel: int | None = None  # channel of the message whose next fragment is awaited
        self._status = bytearray()
        self._status_at: float | None = None
        self._last_heard = self._last_output = self._last_ping = clock()
        self._sent = self._pinged = self._confirmed = 0  # bytes of input: in total, before the last ping, before a pong
        self._is_mute = False  # nothing can be sent any more
        self._ended = ""

    def run(self) -> bytes:
        """Return the status of the process, a JSON object.

        Raises `Broken` if the connection ends or becomes silent before the status arrives, or if the status is too
        large. Raises `StdinFailed` if the input fails, and every exception of `heard`.
        """
        self._events()
        while not self._over():
            self._feed()
            self._ping()
            self._collect()
            moved = self._write()
            if not (self._read() or moved):
                self._wait()
        if self._status_at is None:
            raise Broken(self._ended)
        return bytes(self._status)

    def close(self) -> None:
        """Close the connection without waiting for the server."""
        with contextlib.suppress(OSError, InvalidState):
            self._protocol.send_close(1000)
            self._link.send(b"".join(self._protocol.data_to_send()))
        self._link.close()

    def _over(self) -> bool:
        if self._ended:
            return True
        now = self._clock()
        if self._status_at is not None:
            return now >= self._status_at + _CLOSES_WITHIN
        if self._silence is not None and now >= self._last_output + self._silence:
            raise Broken(f"the command wrote nothing for {self._silence:.0f} seconds")
        if now >= self._last_heard + self._heartbeat.deadline:
            raise Broken(f"neither data nor a pong arrived for {self._heartbeat.deadline:.0f} seconds")
        return False

    def _feed(self) -> None:
        """Put the next input into the outgoing bytes, if the server has accepted most of the earlier input."""
        while self._wants_input():
            piece = self._stdin.take() if self._stdin is not None else None
            if piece is None:
                break
            self._send(piece)
        if self._stdin is not None and self._stdin.ended:
            self._stdin = None
            if self._protocol.subprotocol == V5:
                self._protocol.send_binary(bytes((CLOSE, STDIN)))

    def _wants_input(self) -> bool:
        return (
            self._stdin is not None
            and not self._stdin.ended
            and self._status_at is None
            and not self._is_mute
            and len(self._outgoing) < _PIECE
            and self._sent - self._confirmed < WINDOW
            and self._protocol.state is State.OPEN
        )

    def _send(self, piece: bytes) -> None:
        for begin in range(0, len(piece), _PIECE):
            self._protocol.send_binary(bytes((STDIN,)) + piece[begin : begin + _PIECE])
            self._sent += len(piece[begin : begin + _PIECE])
            if self._sent - self._pinged >= _PING_EVERY:
                self._pinged = self._sent
                self._protocol.send_ping(str(self._sent).encode())
        self._collect()

    def _collect(self) -> None:
        written = b"".join(self._protocol.data_to_send())
        if not self._is_mute:
            self._outgoing += written

    def _ping(self) -> None:
        now = self._clock()
        silent = now - max(self._last_heard, self._last_ping)
        if silent >= self._heartbeat.period and not self._outgoing and self._protocol.state is State.OPEN:
            self._last_ping = now
            self._pinged = self._sent
            self._protocol.send_ping(str(self._sent).encode())

    def _write(self) -> bool:
        """Send outgoing bytes. Return False if there are none, or if the connection accepts none now."""
        if not self._outgoing:
            return False
        try:
            # The same bytes are offered again after a refusal, as TLS requires.
            sent = self._link.send(memoryview(bytes(self._outgoing[:_SENT_AT_ONCE])))
        except _TLS_WAITS:
            return False
        except OSError:
            # The status might have arrived before the connection broke. Therefore only `_read` decides how the exchange
            # ended.
            self._is_mute = True
            self._outgoing.clear()
            return False
        del self._outgoing[:sent]
        return True

    def _read(self) -> bool:
        """Receive bytes and handle the complete frames. Return False if nothing has arrived."""
        try:
            data = self._link.recv(_PIECE * 2)
        except _TLS_WAITS:
            return False
        except OSError as error:
            self._ended = f"the connection broke: {error.strerror or 'no reason was given'}"
            return True
        if not data:
            self._protocol.receive_eof()
            self._ended = self._ended or "the server closed the connection"
            return True
        self._protocol.receive_data(data)
        self._events()
        return True

    def _events(self) -> None:
        """Handle the received frames. The first ones might have arrived together with the answer to the handshake."""
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode is Opcode.PONG:
                with contextlib.suppress(ValueError):  # a pong that answers none of our pings
                    self._confirmed = max(self._confirmed, min(int(bytes(event.data)), self._sent))
            elif event.opcode in {Opcode.BINARY, Opcode.TEXT, Opcode.CONT}:
                self._message(bytes(event.data), first=event.opcode is not Opcode.CONT)
                self._last_output = self._clock()
        self._last_heard = self._clock()  # after the callbacks, so that a blocking callback is not silence
        if self._protocol.parser_exc is not None:
            self._ended = "the server violated the WebSocket protocol"
        elif self._protocol.close_rcvd is not None:
            self._ended = "the server closed the connection"

    def _message(self, data: bytes, *, first: bool) -> None:
        """Handle a message or a fragment of one. The first byte of a message is its channel."""
        if first:
            self._channel = None
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        if not data:
            return
        if self._channel == STATUS:
            if len(self._status) + len(data) > LARGEST_STATUS:
                raise Broken("the status of the process is too large")
            self._status += data
            self._status_at = self._clock()
        elif self._channel in {STDOUT, STDERR}:
            self._heard(self._channel, data)

    def _wait(self) -> None:
        """Wait until the connection or the input has something, or until the next ping or limit is due."""
        ends = [max(self._last_heard, self._last_ping) + self._heartbeat.period]
        ends.append(self._last_heard + self._heartbeat.deadline)
        if self._status_at is not None:
            ends.append(self._status_at + _CLOSES_WITHIN)
        poll = select.poll()
        poll.register(self._link, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        if self._stdin is not None and self._wants_input():
            poll.register(self._stdin.ready, select.POLLIN)
        poll.poll(max(min(ends) - self._clock(), 0.001) * 1000)
