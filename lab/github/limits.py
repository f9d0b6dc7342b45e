"""Limits of an installation: the hourly quota of each resource, points per minute, and concurrent calls.

The rules are those of "Rate limits for the REST API" (GitHub docs). A quota has a window with a reset time. A call over
a secondary limit is answered with status 403, a `retry-after` header and a message. The use of a secondary limit cannot
be queried.
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
    """A window of a rate limit: the number of calls so far, and the Unix time in seconds at which the window ends."""

    reset: int
    used: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Rate-limit headers of an answer, and the reason for a refusal, or None if the call is allowed."""

    headers: dict[str, str]
    refusal: str | None = None


class Limits:
    """Counters for the calls of every installation."""

    def __init__(self, knobs: Knobs) -> None:
        self.out: Counter[int] = Counter()
        self.made: Counter[int] = Counter()
        """Calls of each installation, refused calls included. Calls with the answer 304 are free and not counted."""
        self.refused: Counter[str] = Counter()
        self._knobs = knobs
        self._windows: dict[tuple[int, str], Window] = {}
        self._points: dict[tuple[int, str], deque[tuple[float, int]]] = {}

    def count(self, installation_id: int, *, resource: str, endpoint: str, points: int) -> Verdict:
        """Count a call and return whether it is allowed.

        Points per minute are counted for each `endpoint` separately.
        """
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
        """Undo the count of a call that is answered with 304, because it costs no quota.

        The rate-limit `headers` are corrected in place.
        """
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
