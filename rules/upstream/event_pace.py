"""Pace of Kubernetes Events: a few at once, equal Events rarely, and a steady rate over a long time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

SAME_EVERY = 600.0
"""Seconds before the same Event is written again."""

KIND_EVERY = 30.0
"""Seconds between two Events with the same reason about one object, even with different texts."""

BURST = 25.0
"""Events that may be written at once."""

PER_SECOND = 1.0
"""Events per second that may be written over a long time."""

REMEMBERED = 2000
"""Most Events that are remembered. The oldest are dropped first."""


@dataclass(slots=True)
class Pace:
    """Record of recent Events. Times are in seconds of one clock that never goes back."""

    tokens: float = BURST
    at: float | None = None
    seen: OrderedDict[tuple[str, ...], float] = field(default_factory=OrderedDict)

    def admits(self, uid: str, reason: str, note: str, *, now: float) -> bool:
        """Return whether an Event may be written now. If so, count it."""
        elapsed = 0.0 if self.at is None else max(0.0, now - self.at)
        self.tokens = min(BURST, self.tokens + elapsed * PER_SECOND)
        self.at = now
        same, kind = (uid, reason, note), (uid, reason)
        if self._young(same, SAME_EVERY, now) or self._young(kind, KIND_EVERY, now) or self.tokens < 1:
            return False
        self.tokens -= 1
        for key in (same, kind):
            self.seen[key] = now
            self.seen.move_to_end(key)
        while len(self.seen) > REMEMBERED:
            self.seen.popitem(last=False)
        return True

    def _young(self, key: tuple[str, ...], every: float, now: float) -> bool:
        at = self.seen.get(key)
        return at is not None and now - at < every
