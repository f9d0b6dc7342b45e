"""Settings of Python's garbage collector for a process that holds thousands of polls.

A held poll consists of some dozens of objects that live for a minute. A full collection checks all objects, and stops
the event loop while it runs. Nearly all objects that exist at the start are needed until the end, so they are frozen
and no longer checked. Full collections are made rare. They are seldom needed, because reference counting frees nearly
all other objects.
"""

from __future__ import annotations

import gc

YOUNG = 2_000
"""Number of allocations minus deallocations that starts a collection of the youngest generation.

Python's default is 700.
"""

MIDDLE = 20
"""Number of collections of the youngest generation after which the middle generation is collected.

Python's default is 10.
"""

OLD = 100
"""Number of collections of the middle generation after which a full collection runs. Python's default is 10."""


def settle() -> None:
    """Configure the collector. Call it once, after the process has started and before it serves requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
