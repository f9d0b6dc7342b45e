"""Postponement of a step that could not be done: it leaves the claim to `resume`, with the time of the next try.

A lease that is kept would be waited out, and the step be counted as one that a killed process had begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from models.claims.releases import ReleaseWork
from models.tables import claim_leases
from ostler.clock import utcnow
from ostler.errors import Conflict, RateLimited, Retryable, UpstreamError
from ostler.reasons import meaning_of
from tasks.worker.runtime import Runtime

SOON = 2.0
SELDOM = 20.0
"""Seconds after which a step that an upstream failed is tried again: at first, and at the longest."""

LONGEST_WAIT = 60.0
"""Seconds after which a step that an upstream's limits keep from going on is tried again at the latest."""

OUT_OF_REACH = 60.0
"""Seconds after which a runner that the App may not remove is asked for again."""


FIRST_LOOK = 5.0
LONGEST_LOOK = 60.0
"""Seconds after which a retirement that cannot end yet is checked again: at first, and at the longest."""


def longer(work: ReleaseWork) -> float:
    """Return the seconds until the next check: as many as it has been tried for, so that each wait doubles the time."""
    return min(max((utcnow() - work.since).total_seconds(), FIRST_LOOK), LONGEST_LOOK)


def postpone(rt: Runtime, work: ReleaseWork, error: str, *, after: float = 0) -> None:
    """Leave the claim live for `resume`, which takes it up again in so many seconds."""
    due_at = utcnow() + timedelta(seconds=after)
    rt.transaction(claim_leases.give_back, work, due_at=due_at, error=error, undoes=True)


def postpone_until_token(rt: Runtime, work: ReleaseWork, *, after: float) -> None:
    """Leave the claim to `resume`, which sends its step again when a call to GitHub may be made."""
    postpone(rt, work, claim_leases.WAITS, after=min(after, LONGEST_WAIT))


@contextmanager
def postpone_on_failure(rt: Runtime, work: ReleaseWork) -> Iterator[None]:
    """Leave the claim to `resume` where an upstream fails the step; the error goes on to whoever counts it."""
    try:
        yield
    except UpstreamError as error:
        postpone(rt, work, meaning_of(error), after=_wait(error, tried_for=utcnow() - work.since))
        raise


def _wait(error: UpstreamError, *, tried_for: timedelta) -> float:
    """Return after how many seconds: half of those that it has been tried for, in bounds."""
    match error:
        case RateLimited(after=after):
            return min(after, LONGEST_WAIT)
        case Retryable() | Conflict():
            return min(max(tried_for.total_seconds() / 2, SOON), SELDOM)
        case _:
            return SELDOM
