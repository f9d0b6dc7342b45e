"""Waiting for a state of a running system."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], *, timeout: float = 240, what: str = "it did not come to pass") -> None:
    """Return when the condition holds; fail after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {timeout:.0f} s"
        time.sleep(0.2)
