"""Retries of failed calls: whether to try again, and the wait before the next attempt, as a pure decision.

Another attempt is made after the statuses 408, 429, 500, 502, 503 and 504, and after network failures. Every other
status is final. A status takes precedence over a network failure. Times are in seconds.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
# Only these two statuses name a time for the retry (RFC 9110, "Retry-After").
_WITH_RETRY_AFTER = frozenset({429, 503})
RETRY_AFTER_CAP = 30.0


class Network(enum.Enum):
    """Failure of a call without a complete answer."""

    REFUSED = "connection refused"
    RESET = "connection reset"
    TIMEOUT = "timed out"
    UNREACHABLE = "unreachable"
    NAME = "the name cannot be resolved"
    TLS = "TLS failed"
    TRUNCATED = "the answer was cut short"


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Limits of the attempts of one call, and the waits between the attempts.

    The wait before attempt n + 1 is `base * growth ** (n - 1)`, at most `cap`, times a random factor from `jitter`. No
    attempt starts later than `deadline` seconds after the start of the first attempt. A deadline of None sets no limit.
    If `honour_retry_after` is true and the server asks for a wait in a 429 or 503, this wait is used instead. At most
    `RETRY_AFTER_CAP` seconds of it are used.
    """

    attempts: int = 4
    base: float = 1.0
    cap: float = 30.0
    growth: float = 2.0
    jitter: tuple[float, float] = (0.5, 1.5)
    deadline: float | None = None
    honour_retry_after: bool = True


ONCE = RetryPolicy(attempts=1)

HOOKS = RetryPolicy(base=1.0, growth=3.5, jitter=(0.75, 1.25), deadline=120.0)
"""Calls of container jobs.

A failed call ends the job. The four attempts therefore take longer than an outage of 12 seconds. The deadline leaves
time for three waits of 30 seconds that the server asks for.
"""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Failure of one attempt: a status, or a network failure.

    `retry_after` is the wait in seconds that the server asks for, or None.
    """

    status: int | None = None
    network: Network | None = None
    retry_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class RetryDecision:
    """Decision to try again after `wait` seconds or to give up, with the reason."""

    retry: bool
    wait: float
    reason: str


def decide(*, policy: RetryPolicy, attempt: int, elapsed: float, failure: Failure, roll: float) -> RetryDecision:
    """Return the decision after attempt number `attempt` failed. The first attempt has number 1.

    `elapsed` is the number of seconds since the first attempt began. `roll` is a random number from 0 to 1, which
    selects the factor from `jitter`.
    """
    if not worth_retrying(failure):
        return RetryDecision(retry=False, wait=0.0, reason="another attempt would get the same answer")
    wait = wait_before_next(policy=policy, attempt=attempt, failure=failure, roll=roll)
    if attempt >= policy.attempts:
        return RetryDecision(retry=False, wait=wait, reason=f"{attempt} of {policy.attempts} attempts were made")
    if policy.deadline is not None and elapsed + wait >= policy.deadline:
        return RetryDecision(retry=False, wait=wait, reason="the next attempt would start after the deadline")
    cause = failure.network.value if failure.status is None and failure.network else f"status {failure.status}"
    return RetryDecision(retry=True, wait=wait, reason=cause)


def worth_retrying(failure: Failure) -> bool:
    """Return whether another attempt might succeed. If there is a status, only the status decides."""
    if failure.status is not None:
        return failure.status in RETRIED_STATUSES
    return failure.network is not None


def wait_before_next(*, policy: RetryPolicy, attempt: int, failure: Failure, roll: float) -> float:
    """Return the seconds to wait after the failure of attempt number `attempt`."""
    if policy.honour_retry_after and failure.retry_after is not None and failure.status in _WITH_RETRY_AFTER:
        return min(failure.retry_after, RETRY_AFTER_CAP)
    low, high = policy.jitter
    # The exponent is limited, so that thousands of attempts do not overflow.
    grown = policy.base * policy.growth ** min(attempt - 1, 64)
    return min(grown, policy.cap) * (low + (high - low) * roll)


def parse_retry_after(header: str | None, *, now: datetime) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, from 0 to 30. Return None if the header is not usable.

    Both forms of RFC 9110 are parsed: seconds and an HTTP date.
    """
    if header is None:
        return None
    text = header.strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text, now)
    if not math.isfinite(seconds):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_CAP)


def _seconds_until(text: str, now: datetime) -> float:
    """Return the seconds until an HTTP date, or NaN if the date is invalid."""
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return math.nan
    if when.tzinfo is None:  # "-0000" is UTC of unknown origin
        when = when.replace(tzinfo=UTC)
    return (when - now).total_seconds()
