"""Time that the lease of a mint leaves for calls to GitHub. Job claims and registration claims share it."""

from __future__ import annotations

from models.claims.steps import MintWork
from ostler.clock import utcnow
from tasks.worker.base import remaining

COMMIT = 1.0
"""Seconds of the lease that are reserved for the commit after the call."""


class LeaseOver(Exception):
    """The lease expired before the next call, for example because the process was stopped.

    `resume` resends the mint.
    """


def left(work: MintWork) -> float:
    """Return how many seconds a call may take, so that enough time is left for the commit.

    Raises `LeaseOver` if no time is left.
    """
    seconds = (work.lease_until - utcnow()).total_seconds() - COMMIT
    if seconds <= 0:
        raise LeaseOver
    return remaining(seconds)
