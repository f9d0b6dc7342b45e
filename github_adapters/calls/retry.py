"""The one retry layer of calls to GitHub: `rules.upstream.retry` decides whether to repeat a call.

Only `Retryable` is retried. A rate limit is not retried here: either the governor or the task waits until the limit
ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from github_adapters.calls.http import Deadline
from ostler.clock import Timing
from ostler.errors import Retryable
from ostler.upstreams import SUCCESS
from rules.upstream.retry import Failure, Network, RetryPolicy, decide

T = TypeVar("T")


def retry(once: Callable[[], T], *, policy: RetryPolicy, deadline: Deadline, timing: Timing) -> T:
    """Call `once`, and repeat it as `policy` allows until `deadline`. Return the result of `once`.

    Raises the error of the last attempt if no attempt succeeded.
    """
    attempt = 1
    while True:
        try:
            return once()
        except Retryable as error:
            within = replace(policy, deadline=deadline.remaining())
            decision = decide(policy=within, attempt=attempt, elapsed=0, failure=_failure(error), roll=timing.roll())
            if not decision.retry:
                raise
        timing.sleep(decision.wait)
        attempt += 1


def _failure(error: Retryable) -> Failure:
    if error.status is None:
        return Failure(network=Network.RESET)
    if error.status in SUCCESS:  # an answer that cannot be parsed
        return Failure(network=Network.TRUNCATED)
    return Failure(status=error.status)
