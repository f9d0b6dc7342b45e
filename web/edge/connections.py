"""A cap on the connections of one listener that have proven nothing.

A connection is proven while it holds a poll whose token was verified, or a webhook whose signature was. The latter are
bounded by the queue of the intake. All others share the cap. When it is reached,
the connection that has waited for its client the longest makes room: it has nothing to say, or says it slowly. So a
flood of idle connections costs the flood its own connections, and a client that sends its request at once is served.
"""

from __future__ import annotations

from typing import Protocol


class Droppable(Protocol):
    """A connection that can be ended at once."""

    def drop(self) -> None:
        """Abort the connection."""


class Connections:
    """The unproven connections of one listener, `most` of them at a time.

    A connection `waits` while the next step is its client's, and `works` while the next step is ours.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.dropped = 0
        self._waiting: dict[Droppable, None] = {}
        self._working: set[Droppable] = set()

    def __len__(self) -> int:
        """Return how many connections have proven nothing."""
        return len(self._waiting) + len(self._working)

    def waits(self, connection: Droppable) -> None:
        """Record that the connection waits for its client from now on, and make room for it."""
        self.forget(connection)
        if len(self) >= self.most:
            self.dropped += 1
            longest = next(iter(self._waiting), connection)
            self._waiting.pop(longest, None)
            longest.drop()
            if longest is connection:
                return
        self._waiting[connection] = None

    def works(self, connection: Droppable) -> None:
        """Record that the client sent a whole request, which we answer next."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._working.add(connection)

    def forget(self, connection: Droppable) -> None:
        """Take the connection out: it was closed, or it proved whose it is."""
        self._waiting.pop(connection, None)
        self._working.discard(connection)
