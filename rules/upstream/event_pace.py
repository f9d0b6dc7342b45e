"""Pace of Kubernetes Events: limits for a short burst, for equal Events, and for the rate over a long time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

SAME_EVERY = 600.0
"""Minimum seconds between two equal Events."""

KIND_EVERY = 30.0
"""Minimum seconds between two Events with the same reason about one object, even if their texts differ."""

BURST = 25.0
"""Maximum number of Events that may be written at once."""

PER_SECOND = 1.0
"""Maximum number of Events per second over a long time."""

REMEMBERED = 2000
"""Maximum number of entries about written Events. The oldest entries are dropped first."""


@dataclass(slots=True)
class Pace:
    """Record of recent Events. Times are in seconds of a monotonic clock."""

    tokens: float = BURST
    at: float | None = None
    seen: OrderedDict[tuple[str, ...], float] = field(default_factory=OrderedDict)

    def admits(self, uid: str, reason: str, note: str, *, now: float) -> bool:
        """Return whether an Event may be written now. If the result is true, the Event counts as written."""
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
