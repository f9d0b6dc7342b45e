"""Failures of steps: the time of the next attempt is stored, or the release of the claim is committed.

Celery repeats the step soon after a failure that might be short. `resume` sends the step if the message of Celery is
late or lost, and after every longer wait.

The process releases its lease of the claim. Otherwise the next attempt would have to wait until the lease expires, and
Ostler would treat the step as if its process had been killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from celery.exceptions import Retry
from sqlalchemy import Connection

from models.claims.releases import ReleaseWork
from models.state import claim_leases, claim_transitions
from models.state.claim_leases import Leased
from ostler.clock import utcnow
from ostler.errors import Conflict, RateLimited, Retryable, UpstreamError
from ostler.reasons import meaning_of
from tasks.worker.base import LATE, Again, wait_for_retry
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

SOON = 2.0
SELDOM = 20.0
"""Seconds until a step is retried after an upstream failed. The wait grows from `SOON` to `SELDOM`."""

LONGEST_WAIT = 60.0
"""Longest wait in seconds until a step is retried after the rate limit of an upstream stopped it."""

OUT_OF_REACH = 60.0
"""Seconds until Ostler tries again to remove a runner that the App is not permitted to remove."""


FIRST_CHECK = 5.0
LAST_CHECK = 60.0
"""Seconds until an unfinished retirement is checked again. The wait grows from `FIRST_CHECK` to `LAST_CHECK`."""


def longer(work: ReleaseWork) -> float:
    """Return the seconds until the next check of a retirement.

    The wait equals the time since the retirement began, but is at least `FIRST_CHECK` and at most `LAST_CHECK`. Each
    wait therefore doubles the time since the retirement began, until the wait reaches the maximum.
    """
    return min(max((utcnow() - work.since).total_seconds(), FIRST_CHECK), LAST_CHECK)


def postpone(rt: Runtime, work: ReleaseWork, error: str, *, after: float = 0) -> None:
    """Postpone the step of a claim by `after` seconds.

    The claim stays live, and `resume` then retries the step. `error` is stored with the claim.
    """
    due_at = utcnow() + timedelta(seconds=after)
    rt.transaction(claim_leases.give_back, work, due_at=due_at, error=error, undoes=True)


class NotYet(Exception):
    """The step of a claim must be postponed by `after` seconds. The message is the reason.

    `failure`: the error that is raised afterwards, so that the failure of the step is counted, or None.
    """

    def __init__(self, why: str, *, after: float = 0.0, failure: UpstreamError | None = None) -> None:
        super().__init__(why)
        self.after = after
        self.failure = failure


def until_token(error: RateLimited, *, at_most: float = LONGEST_WAIT) -> NotYet:
    """Return the postponement of a step until the rate limiter permits the call, at most `at_most` seconds."""
    return NotYet(claim_leases.WAITS, after=min(error.after, at_most, LONGEST_WAIT))


@contextmanager
def postpone_on_failure(rt: Runtime, work: ReleaseWork) -> Iterator[None]:
    """Postpone the step of a claim if its body raises `NotYet`, or if a call to an upstream fails.

    Raises `Again` if Celery may repeat the step. The step is then due later than its message, so that `resume` sends no
    second one. Raises the error of the upstream if `resume` repeats the step, so that the failure is counted.
    """
    try:
        yield
    except NotYet as why:
        postpone(rt, work, str(why), after=why.after)
        if why.failure is not None:
            raise why.failure from None
    except UpstreamError as error:
        soon = wait_for_retry(error)
        if soon is not None:
            postpone(rt, work, meaning_of(error), after=soon + LATE)
            raise Again(error, after=soon, chain_no=work.chain_no) from error
        postpone(rt, work, meaning_of(error), after=_wait(error, tried_for=utcnow() - work.since))
        raise


def _wait(error: UpstreamError, *, tried_for: timedelta) -> float:
    """Return the seconds until the next attempt.

    After a rate limit, this is the wait that the error names, at most `LONGEST_WAIT`. After a retryable error or a
    conflict, it is half of `tried_for`, between `SOON` and `SELDOM`. `tried_for` is the time since the first attempt.
    """
    match error:
        case RateLimited(after=after):
            return min(after, LONGEST_WAIT)
        case Retryable() | Conflict():
            return min(max(tried_for.total_seconds() / 2, SOON), SELDOM)
        case _:
            return SELDOM


@contextmanager
def release_on_failure(rt: Runtime, work: Leased) -> Iterator[None]:
    """Commit the release of a `claimed` claim if its step fails in the body of this context manager.

    The error is raised again, so that the errback of the chain continues the release. If the release cannot be
    committed either, `resume` repeats the chain. Celery repeats a task that raises `Retry` or `Retryable`, so these
    errors begin no release.
    """
    try:
        yield
    except (Retry, Retryable):
        raise
    except Exception:
        rt.transaction(_fail, work, now=NOW, who=rt.who)
        raise


def _fail(db: Connection, work: Leased, *, now: datetime, who: str) -> None:
    why = "a step of the claim failed"
    if claim_transitions.request_release(db, work.claim_id, reason=why, chain_no=work.chain_no, now=now, who=who):
        claim_leases.give_back(db, work, due_at=now, error=why)
