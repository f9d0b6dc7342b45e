"""Log lines about refused requests: one a second at most, with the number of those that it stands for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

LOG_EVERY = 1.0
"""Seconds between two lines of one event."""


class RefusedLog:
    """Log an event that any client can cause, at most once a second.

    A line has the fields of the last request, and `count`: how many there were since the line before.
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
        """Count one request, and log it when the last line is `LOG_EVERY` old."""
        self._unlogged += 1
        now = self._clock()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY:
            self._log.log(self._level, self._event, count=self._unlogged, **fields)
            self._logged_at, self._unlogged = now, 0
