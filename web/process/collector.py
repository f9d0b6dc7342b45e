"""Settings of Python's garbage collector for a process that holds thousands of polls.

A held poll consists of some dozens of objects that live for a minute. A full collection checks all objects and stops
the event loop meanwhile. The objects that exist at the start never become garbage, so they are frozen. Full collections
are made rare, because reference counts free nearly all other objects.
"""

from __future__ import annotations

import gc

YOUNG = 2_000
"""Allocations minus deallocations before the youngest generation is collected. Python's default is 700."""

MIDDLE = 20
"""Collections of the youngest generation before the middle generation is collected. Python's default is 10."""

OLD = 100
"""Collections of the middle generation before a full collection. Python's default is 10."""


def settle() -> None:
    """Configure the collector. Call it once, after the process has started and before it serves requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
