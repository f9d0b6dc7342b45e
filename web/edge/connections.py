"""A cap on the unproven connections of one listener.

A connection is proven while it holds a poll with a verified token, or a webhook with a verified signature. The cap
limits the number of all other connections. Proven webhooks need no cap here, because the queue of the intake limits
their number.

When the cap is reached, the connection that has waited longest for its client is dropped. The client of this connection
sends nothing, or sends slowly. A flood of idle connections therefore drops its own connections and other idle ones. A
client that sends its request at once is served, as long as fewer requests than the cap wait for an answer.
"""

from __future__ import annotations

from typing import Protocol


class Droppable(Protocol):
    """A connection that can be aborted."""

    def drop(self) -> None:
        """Abort the connection."""


class Connections:
    """The unproven connections of one listener. There are never more than `most` of them.

    If the client of a connection must send or read next, the connection is recorded with `waits`. If Ostler must answer
    next, the connection is recorded with `works`.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.dropped = 0
        self._waiting: dict[Droppable, None] = {}
        self._working: set[Droppable] = set()

    def __len__(self) -> int:
        """Return the number of unproven connections."""
        return len(self._waiting) + len(self._working)

    def waits(self, connection: Droppable) -> None:
        """Record that the connection now waits for its client.

        If the cap is reached, drop the connection that has waited longest.
        """
        self.remove(connection)
        if len(self) >= self.most:
            self.dropped += 1
            longest = next(iter(self._waiting), connection)
            self._waiting.pop(longest, None)
            longest.drop()
            if longest is connection:
                return
        self._waiting[connection] = None

    def works(self, connection: Droppable) -> None:
        """Record that the client has sent a whole request. Ostler must answer the request next."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._working.add(connection)

    def remove(self, connection: Droppable) -> None:
        """Remove a connection that was closed or proven. The connection then no longer counts in the cap."""
        self._waiting.pop(connection, None)
        self._working.discard(connection)
