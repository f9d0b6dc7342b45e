"""A cap on the unproven connections of one listener.

A connection is proven while it holds a poll whose token was verified, or a webhook whose signature was verified. The
queue of the intake bounds the proven webhooks. All unproven connections share the cap.

When the cap is reached, the connection that has waited for its client the longest is dropped. Such a client sends
nothing, or sends slowly. A flood of idle connections therefore drops its own connections, and a client that sends its
request at once is served.
"""

from __future__ import annotations

from typing import Protocol


class Droppable(Protocol):
    """A connection that can be ended at once."""

    def drop(self) -> None:
        """Abort the connection."""


class Connections:
    """The unproven connections of one listener. There are never more than `most`.

    A connection is recorded with `waits` when its client must act next, and with `works` when Ostler must act next.
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

        When the cap is reached, drop the longest-waiting connection.
        """
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
        """Record that the client has sent a whole request, so that Ostler must answer next."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._working.add(connection)

    def forget(self, connection: Droppable) -> None:
        """Remove the connection from the cap, because it was closed or has been proven."""
        self._waiting.pop(connection, None)
        self._working.discard(connection)
