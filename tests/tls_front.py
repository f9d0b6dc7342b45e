"""TLS in front of a server without TLS: the Redis and the Postgres of the tests are built without it.

The client's side of TLS is real: handshake, certificate, and for Postgres the request for TLS that precedes it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

Dial = Callable[[], socket.socket]

_TLS_REQUEST, _GSS_REQUEST = 80877103, 80877104  # PostgreSQL docs, "Message Formats"
PIECE = 64 * 1024


@contextlib.contextmanager
def tls_front(context: ssl.SSLContext, dial: Dial, *, postgres: bool = False) -> Iterator[int]:
    """Serve TLS on a port of the loopback, and pass its content on to the connection that `dial` makes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends: list[socket.socket] = []
        serving: list[threading.Thread] = []

        def accept() -> None:
            while True:
                try:
                    link, _ = server.accept()
                except OSError:  # closed: the block is over
                    return
                ends.append(link)
                server_of = threading.Thread(target=serve, args=(link,), daemon=True)
                server_of.start()
                serving.append(server_of)

        def serve(link: socket.socket) -> None:
            # A client that refuses the certificate goes away in the middle.
            with contextlib.suppress(OSError):
                if postgres:
                    _agree(link)
                with context.wrap_socket(link, server_side=True) as secure, dial() as plain:
                    ends.extend((secure, plain))
                    back = threading.Thread(target=_pass_on, args=(plain, secure), daemon=True)
                    back.start()
                    _pass_on(secure, plain)
                    back.join()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for each in ends:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            for thread in serving:
                thread.join(timeout=5)


def _agree(link: socket.socket) -> None:
    """Answer the first requests of libpq, up to the one for TLS."""
    while True:
        _, code = struct.unpack("!ii", link.recv(8, socket.MSG_WAITALL))
        link.sendall(b"S" if code == _TLS_REQUEST else b"N")
        if code == _TLS_REQUEST:
            return
        assert code == _GSS_REQUEST, "a client began without TLS"


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
