"""Waiting for a condition with a deadline, for tests of every kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(read: Callable[[], T | None], what: str = "it did not come to pass", *, within: float = 120) -> T:
    """Return the first true value of `read`. Raise AssertionError, which names `what`, after `within` seconds.

    The pauses grow from 10 ms to 200 ms with the time waited, so that a short wait ends at once and a long one uses
    little CPU.
    """
    began = time.monotonic()
    while not (found := read()):
        waited = time.monotonic() - began
        assert waited < within, f"{what}: not within {within:.0f} s"
        time.sleep(min(0.2, max(0.01, waited / 50)))
    return found
