"""Leader election by a Lease of the cluster, as a pure decision on the observed Lease.

Clocks are never compared between machines: a Lease has expired once *we* saw it unchanged for its own duration. So a
wrong clock does no harm, and a candidate that has just started waits for a whole duration. All times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GIVE_UP = 2 / 3
"""Fraction of a Lease's duration after which a leader that could not renew it stops leading, before others may."""

RENEW = 1 / 5
"""Fraction of a Lease's duration between two steps of a candidate."""


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A Lease as the cluster has it. `holder` is empty after a leader released it; `version` guards writes."""

    holder: str
    duration: float
    version: str
    transitions: int


class LeaseStep(StrEnum):
    """Next action of a candidate."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def next_step(lease: LeaseSeen | None, *, me: str, unchanged_for: float) -> LeaseStep:
    """Return the action of `me` on a Lease that it saw unchanged for `unchanged_for`; None: it does not exist."""
    if lease is None:
        return LeaseStep.CREATE
    if lease.holder == me:
        return LeaseStep.RENEW
    if not lease.holder or unchanged_for > lease.duration:
        return LeaseStep.TAKE
    return LeaseStep.WAIT


def leads(*, renewed_before: float | None, duration: float) -> bool:
    """Return whether a candidate that last renewed `renewed_before` seconds ago may act as the leader."""
    return renewed_before is not None and renewed_before < duration * GIVE_UP
