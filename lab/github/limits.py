"""Limits of an installation: the hourly quota of each resource, points per minute, concurrent calls.

They follow "Rate limits for the REST API" (GitHub docs). A quota is a window with a reset. A secondary limit answers
403 with `retry-after` and a message, and no call shows how much of it is left.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass

from lab.github.world import Knobs

MINUTE = 60.0
SECONDARY = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
PRIMARY = "API rate limit exceeded for installation."


@dataclass(kw_only=True)
class Window:
    """Number of calls until a reset (Unix seconds)."""

    reset: int
    used: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Rate-limit headers of an answer, and why the call is refused, or None."""

    headers: dict[str, str]
    refusal: str | None = None


class Limits:
    """Counts the calls of every installation."""

    def __init__(self, knobs: Knobs) -> None:
        self.out: Counter[int] = Counter()
        self.made: Counter[int] = Counter()
        """Calls of each installation, not counting calls that were answered 304. A 304 costs no quota."""
        self.refused: Counter[str] = Counter()
        self._knobs = knobs
        self._windows: dict[tuple[int, str], Window] = {}
        self._points: dict[tuple[int, str], deque[tuple[float, int]]] = {}

    def count(self, installation_id: int, *, resource: str, endpoint: str, points: int) -> Verdict:
        """Count a call. The points per minute are counted for each `endpoint`."""
        self.made[installation_id] += 1
        if self.out[installation_id] >= self._knobs.calls_at_once or self._spent(installation_id, endpoint, points):
            self.refused["secondary"] += 1
            return Verdict(headers={"retry-after": str(self._knobs.retry_after_seconds)}, refusal=SECONDARY)
        if not self._knobs.rate_limits:
            return Verdict(headers={})
        limit = self._knobs.rate_limit_per_hour
        window = self._windows.get((installation_id, resource))
        if window is None or window.reset <= time.time():
            window = Window(reset=int(time.time()) + self._knobs.rate_window_seconds)
            self._windows[installation_id, resource] = window
        allowed = window.used < limit
        window.used += allowed
        headers = {
            "x-ratelimit-limit": str(limit),
            "x-ratelimit-remaining": str(max(0, limit - window.used)),
            "x-ratelimit-used": str(window.used),
            "x-ratelimit-reset": str(window.reset),
            "x-ratelimit-resource": resource,
        }
        if not allowed:
            self.refused["primary"] += 1
        return Verdict(headers=headers, refusal=None if allowed else PRIMARY)

    def give_back(self, installation_id: int, *, resource: str, headers: dict[str, str]) -> None:
        """Return the quota of a call that was answered 304, because it costs none. `headers` are updated too."""
        self.made[installation_id] -= 1
        window = self._windows.get((installation_id, resource))
        if window is not None and "x-ratelimit-used" in headers:
            window.used -= 1
            headers["x-ratelimit-used"] = str(window.used)
            headers["x-ratelimit-remaining"] = str(max(0, self._knobs.rate_limit_per_hour - window.used))

    def _spent(self, installation_id: int, endpoint: str, points: int) -> bool:
        spent = self._points.setdefault((installation_id, endpoint), deque())
        clock = time.monotonic()
        while spent and spent[0][0] < clock - MINUTE:
            spent.popleft()
        if sum(each for _, each in spent) + points > self._knobs.points_per_minute:
            return True
        spent.append((clock, points))
        return False
