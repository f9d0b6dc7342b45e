"""Who leads, by a Lease of the cluster: a pure decision on the Lease as it was seen.

Clocks are never compared between machines: a Lease has run out when *we* saw it unchanged for its own duration. So a
clock that is wrong costs nothing, and a candidate that has just started waits for a whole duration. Seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GIVE_UP = 2 / 3
"""The share of a Lease's duration after which a leader that could not renew it stops leading, before others may."""

RENEW = 1 / 5
"""The share of a Lease's duration between two steps of a candidate."""


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A Lease as the cluster has it. `holder` is empty after a leader has given it back; `version` guards writes."""

    holder: str
    duration: float
    version: str
    transitions: int


class LeaseStep(StrEnum):
    """What a candidate does next."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def next_step(lease: LeaseSeen | None, *, me: str, unchanged_for: float) -> LeaseStep:
    """Return what `me` does about a Lease that it saw unchanged for so long; None is one that does not exist."""
    if lease is None:
        return LeaseStep.CREATE
    if lease.holder == me:
        return LeaseStep.RENEW
    if not lease.holder or unchanged_for > lease.duration:
        return LeaseStep.TAKE
    return LeaseStep.WAIT


def leads(*, renewed_before: float | None, duration: float) -> bool:
    """Return whether a candidate that last renewed so many seconds ago may act as the leader."""
    return renewed_before is not None and renewed_before < duration * GIVE_UP
