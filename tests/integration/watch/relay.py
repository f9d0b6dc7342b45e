"""A TCP relay before a plain HTTP server that can make its watches silent, and cut every connection."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class Relay:
    """A context manager that passes bytes on. A connection is a watch from its first request for one on."""

    def __init__(self, port: int) -> None:
        """Prepare a relay to `port` of the loopback interface."""
        self._upstream = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._watches: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._pipes: list[threading.Thread] = []
        self._ends: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept()
        self._accepting.join()
        self._server.close()
        self.cut()
        for thread in self._pipes:
            thread.join()
        for end in self._ends:
            end.close()

    def silence_watches(self) -> int:
        """Pass nothing more on over the present watches, without an end of them, and return their number."""
        with self._lock:
            self._silent |= self._watches
            return len(self._watches)

    def cut(self) -> None:
        """Cut every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                upstream = socket.create_connection(("127.0.0.1", self._upstream))
                with self._lock:
                    self._pairs.append((client, upstream))
                self._ends += [client, upstream]
                for source, target in ((client, upstream), (upstream, client)):
                    pipe = threading.Thread(target=self._pipe, args=(source, target, client), daemon=True)
                    pipe.start()
                    self._pipes.append(pipe)

    def _pipe(self, source: socket.socket, target: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                with self._lock:
                    if source is client and b"watch=1" in piece:
                        self._watches.add(client)
                    silent = client in self._silent and source is not client
                if not silent:
                    target.sendall(piece)
        with self._lock:
            self._watches.discard(client)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
