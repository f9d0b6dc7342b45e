"""What a refusal of GitHub means, in the words of `ostler.errors`.

The rules for limits are those of "Rate limits for the REST API" (GitHub docs): obey `retry-after`, else the
reset of an empty quota, else wait a minute. No text holds a body or a credential (law L13).
"""

from __future__ import annotations

import math
from datetime import datetime
from http import HTTPStatus

from github_adapters.http import Answer
from ostler.errors import Conflict, Forbidden, Gone, Invalid, RateLimited, Retryable, UpstreamError

DEFAULT_WAIT = 60.0
LONGEST_WAIT = 24 * 3600.0


def refusal(answer: Answer, *, what: str, now: datetime) -> UpstreamError:
    """Return the error that an answer other than success stands for; `what` was asked, as `mint`."""
    status = answer.status
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}:
        after = _wait(answer, now)
        if after is not None:
            return RateLimited(f"GitHub asks to wait before the next {what} ({status})", after=after)
    text = f"GitHub answered {status} to {what}"
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return Forbidden(text)
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE} or 300 <= status < 400:  # noqa: PLR2004
        # A redirect that was not followed: the owner or repository has another name now.
        return Gone(text)
    if status == HTTPStatus.CONFLICT:
        return Conflict(text)
    if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
        return Invalid(text)
    return Retryable(text, status=status)


def _wait(answer: Answer, now: datetime) -> float | None:
    """Return how many seconds GitHub asks to wait; None when the answer is about something else."""
    retry_after = _seconds(answer.headers.get("retry-after"))
    if retry_after is not None:
        return retry_after
    if "retry-after" in answer.headers:
        return DEFAULT_WAIT
    if answer.headers.get("x-ratelimit-remaining") == "0":
        reset = _seconds(answer.headers.get("x-ratelimit-reset"), most=math.inf)
        # One second more, because the reset is in whole seconds.
        return DEFAULT_WAIT if reset is None else min(max(reset - now.timestamp(), 0) + 1, LONGEST_WAIT)
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS or b"secondary rate limit" in answer.body:
        return DEFAULT_WAIT
    return None


def _seconds(text: str | None, *, most: float = LONGEST_WAIT) -> float | None:
    return min(float(text), most) if text and text.isascii() and text.isdecimal() else None
