"""Leader election by a Lease of the cluster, as a pure decision on the observed Lease.

Clocks of different machines are never compared. Each candidate measures with its own clock how long the Lease has not
changed. After the Lease's duration without a change, the candidate treats the Lease as expired. A wrong clock therefore
does no harm. A candidate that has just started waits for one whole duration of the Lease, unless the Lease is missing,
was released, or names this candidate. All times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GIVE_UP = 2 / 3
"""Fraction of a Lease's duration after which a leader stops if it could not renew the Lease.

The fraction is below 1, so that the leader stops before another candidate may acquire the Lease.
"""

RENEW = 1 / 5
"""Fraction of a Lease's duration between two steps of a candidate. `next_step` selects each step."""


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A Lease as the cluster has it. `holder` is empty after a leader released the Lease.

    A write succeeds only if the Lease still has the version `version`.
    """

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
    """Return the next action of candidate `me`, who observed no change of `lease` for `unchanged_for` seconds.

    `lease` is None if the Lease does not exist.
    """
    if lease is None:
        return LeaseStep.CREATE
    if lease.holder == me:
        return LeaseStep.RENEW
    if not lease.holder or unchanged_for > lease.duration:
        return LeaseStep.TAKE
    return LeaseStep.WAIT


def leads(*, renewed_before: float | None, duration: float) -> bool:
    """Return whether a candidate that last renewed the Lease `renewed_before` seconds ago may act as the leader.

    `renewed_before` is None if the candidate does not hold the Lease.
    """
    return renewed_before is not None and renewed_before < duration * GIVE_UP
