"""Standard input of an exec: one thread reads an iterable into a queue of two pieces, so that memory stays bounded."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterable, Iterator

_AHEAD = 2
_STOPS_WITHIN = 5.0  # seconds; if the iterable blocks for longer, its thread runs on until the iterable yields or ends


class StdinFailed(Exception):
    """The iterable of the standard input raised an exception, which is the cause of this exception."""


class Stdin:
    """Pieces of an iterable of bytes, read by a thread of its own because the iterable might block.

    `ready` is a socket that becomes readable when a piece is available. Call `close()` at the end. `close()` stops the
    thread, and closes an iterable that is a generator.
    """

    def __init__(self, source: Iterable[bytes]) -> None:
        self._pieces: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
        self._stopped = threading.Event()
        self.ready, self._bell = socket.socketpair()
        self.ready.settimeout(0)
        self.ended = False
        self._thread = threading.Thread(target=self._read, args=(source,), name="exec-stdin", daemon=True)
        self._thread.start()

    def take(self) -> bytes | None:
        """Return the next piece, or None if none is available now or `ended` has become true.

        Raises `StdinFailed` if the iterable failed.
        """
        with contextlib.suppress(BlockingIOError):
            self.ready.recv(64)
        try:
            piece = self._pieces.get_nowait()
        except queue.Empty:
            return None
        if isinstance(piece, BaseException):
            raise StdinFailed from piece
        self.ended = piece is None
        return piece

    def close(self) -> None:
        """Stop the thread, and wait for its end for at most 5 seconds."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._pieces.get_nowait()
        self._thread.join(_STOPS_WITHIN)
        self.ready.close()

    def _read(self, source: Iterable[bytes]) -> None:
        pieces = iter(source)
        try:
            for piece in pieces:
                if piece:
                    self._put(piece)
                if self._stopped.is_set():
                    return
            self._put(None)
        except Exception as error:  # noqa: BLE001  the thread that uses the pieces raises it
            self._put(error)
        finally:
            _close(pieces)
            self._bell.close()

    def _put(self, piece: bytes | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._pieces.put(piece, timeout=0.2)
            except queue.Full:
                continue
            with contextlib.suppress(OSError):  # the other end is closed, or full of earlier signals
                self._bell.send(b".")
            return


def _close(pieces: Iterator[bytes]) -> None:
    close = getattr(pieces, "close", None)
    if close is not None:
        with contextlib.suppress(Exception):
            close()
