"""Log lines about refused requests. At most one line a second is written for each event.

Each line contains the number of requests that it stands for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

LOG_EVERY = 1.0
"""Minimum number of seconds between two lines of one event."""


class RefusedLog:
    """Writes log lines for one event. At most one line is written in `LOG_EVERY` seconds.

    Without this limit, a client could fill the log, because any client can cause the event. A line contains the fields
    of the last request. Its `count_since_last_line` is the number of requests since the previous line.
    """

    def __init__(
        self, log: Any, event: str, *, level: int = logging.WARNING, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._event = event
        self._level = level
        self._clock = clock
        self._unlogged = 0
        self._logged_at: float | None = None

    def add(self, **fields: Any) -> None:
        """Count one request. If the previous line is at least `LOG_EVERY` seconds old, write a line."""
        self._unlogged += 1
        now = self._clock()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY:
            self._log.log(self._level, self._event, count_since_last_line=self._unlogged, **fields)
            self._logged_at, self._unlogged = now, 0
