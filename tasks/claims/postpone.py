"""Postponement of a step that failed. The claim is left to `resume`, with the time of the next attempt.

The lease is given back. Otherwise the next attempt would wait until it expires, and would count the step as one that a
killed process had started.
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
"""Seconds until a step is retried after an upstream failed. The wait grows from `SOON` to `SELDOM`."""

LONGEST_WAIT = 60.0
"""Longest wait in seconds until a step is retried after the rate limit of an upstream stopped it."""

OUT_OF_REACH = 60.0
"""Seconds until the removal of a runner is retried that the App is not permitted to remove."""


FIRST_LOOK = 5.0
LONGEST_LOOK = 60.0
"""Seconds until an unfinished retirement is checked again. The wait grows from `FIRST_LOOK` to `LONGEST_LOOK`."""


def longer(work: ReleaseWork) -> float:
    """Return the seconds until the next check of a retirement.

    The wait equals the time since the retirement began, within bounds, so that each check doubles that time.
    """
    return min(max((utcnow() - work.since).total_seconds(), FIRST_LOOK), LONGEST_LOOK)


def postpone(rt: Runtime, work: ReleaseWork, error: str, *, after: float = 0) -> None:
    """Leave the claim live and have `resume` retry its step after `after` seconds. `error` is stored with the claim."""
    due_at = utcnow() + timedelta(seconds=after)
    rt.transaction(claim_leases.give_back, work, due_at=due_at, error=error, undoes=True)


def postpone_until_token(rt: Runtime, work: ReleaseWork, *, after: float) -> None:
    """Leave the claim to `resume`, which retries its step after `after` seconds.

    The rate limiter permits the call to GitHub then.
    """
    postpone(rt, work, claim_leases.WAITS, after=min(after, LONGEST_WAIT))


@contextmanager
def postpone_on_failure(rt: Runtime, work: ReleaseWork) -> Iterator[None]:
    """Leave the claim to `resume` if an upstream fails the step. The error is raised again, so that it is counted."""
    try:
        yield
    except UpstreamError as error:
        postpone(rt, work, meaning_of(error), after=_wait(error, tried_for=utcnow() - work.since))
        raise


def _wait(error: UpstreamError, *, tried_for: timedelta) -> float:
    """Return the seconds until the next attempt: half of the time since the first attempt, within bounds."""
    match error:
        case RateLimited(after=after):
            return min(after, LONGEST_WAIT)
        case Retryable() | Conflict():
            return min(max(tried_for.total_seconds() / 2, SOON), SELDOM)
        case _:
            return SELDOM
