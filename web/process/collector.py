"""Python's garbage collector in a process that holds thousands of polls.

A held poll is some dozens of objects that live for a minute. A full collection checks all of them and stops the event
loop meanwhile. What the process was built from never becomes garbage, so it is taken out of sight, and full
collections are made rare: reference counts free nearly everything here without them.
"""

from __future__ import annotations

import gc

YOUNG = 2_000
"""Objects made, less those freed, before the youngest are collected; 700 by default."""

MIDDLE = 20
"""Collections of the youngest before those that survived one are collected too; 10 by default."""

OLD = 100
"""Collections of the middle before everything is; 10 by default."""


def settle() -> None:
    """Set the collector for a process that has started: call it once, before requests come."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
