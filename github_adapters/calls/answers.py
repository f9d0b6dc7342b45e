"""Meaning of an answer from GitHub: a quota, a limit, or an error of `ostler.errors`.

The rules for limits follow "Rate limits for the REST API" (GitHub docs). After an answer that reports a limit, Ostler
waits for the seconds in `retry-after`. Without this header, Ostler waits until the quota resets if the answer reports
that the quota is used up. Otherwise Ostler waits a minute. No error text contains a body or a credential (law L13).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from github_adapters.calls.http import Answer
from github_adapters.calls.words import words_of
from ostler.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotInstalled,
    RateLimited,
    Retryable,
    Suspended,
    UpstreamError,
)

DEFAULT_WAIT = 60.0
LONGEST_WAIT = 24 * 3600.0

EVERYTHING = ""
"""Value that stands for all calls of an installation where the name of a quota is expected."""

LONGEST_NAME = 64
_SECONDARY = (b"secondary rate limit", b"abuse detection mechanism")
"""Words of a 403 that reports a secondary rate limit. An older Enterprise Server calls the limit abuse detection."""
_REDIRECTS = range(300, 400)
_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """State of one rate limit of an installation, from the headers of an answer. `reset` is a time in Unix seconds."""

    resource: str
    limit: int
    remaining: int
    reset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """GitHub's request to wait `after` seconds before the next call that counts in `quota`.

    If `quota` is `EVERYTHING`, all calls of the installation must wait.
    """

    after: float
    quota: str


def quota_of(answer: Answer) -> Quota | None:
    """Return the quota that the headers of an answer show, or None if the headers show none.

    An Enterprise Server without rate limits sends no such headers.
    """
    numbers = [_count(answer.headers.get(f"x-ratelimit-{name}")) for name in ("limit", "remaining", "reset")]
    limit, remaining, reset = numbers
    if limit is None or remaining is None or reset is None:
        return None
    return Quota(resource=_resource(answer), limit=limit, remaining=remaining, reset=reset)


def limit_of(answer: Answer, now: datetime) -> Limit | None:
    """Return the limit that an answer reports, or None if it reports no limit."""
    if answer.status not in {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}:
        return None
    if "retry-after" in answer.headers:
        retry_after = _seconds(answer.headers.get("retry-after"))
        return Limit(after=DEFAULT_WAIT if retry_after is None else retry_after, quota=EVERYTHING)
    if answer.headers.get("x-ratelimit-remaining") == "0":
        reset = _seconds(answer.headers.get("x-ratelimit-reset"), most=math.inf)
        # GitHub gives the reset in whole seconds, so Ostler waits one second longer.
        after = DEFAULT_WAIT if reset is None else min(max(reset - now.timestamp(), 0) + 1, LONGEST_WAIT)
        return Limit(after=after, quota=_resource(answer))
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS or any(words in answer.body for words in _SECONDARY):
        return Limit(after=DEFAULT_WAIT, quota=EVERYTHING)
    return None


def refusal(answer: Answer, *, what: str, now: datetime) -> UpstreamError:
    """Return the error for an answer that reports a failure. `what` names the call, such as `mint`.

    The attribute `words` of the error is GitHub's reason, cleaned so that it is safe to show.
    """
    error = _refusal(answer, what=what, now=now)
    error.status, error.words = answer.status, words_of(answer)
    return error


def _refusal(  # noqa: PLR0911  one line for each meaning
    answer: Answer, *, what: str, now: datetime
) -> UpstreamError:
    status = answer.status
    limit = limit_of(answer, now)
    if limit is not None:
        return RateLimited(f"GitHub asks to wait before the next {what} ({status})", after=limit.after)
    text = f"GitHub answered {status} to {what}"
    if status == HTTPStatus.FORBIDDEN and b"installation has been suspended" in answer.body:
        return Suspended("the App's installation is suspended")
    if status in _REFUSED:
        return Forbidden(text)
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE} or status in _REDIRECTS:
        # A redirect that was not followed: the owner or repository has another name now.
        return Gone(text)
    if status == HTTPStatus.CONFLICT:
        return Conflict(text)
    if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
        return Invalid(text)
    return Retryable(text, status=status)


def refused_token(answer: Answer, *, now: datetime) -> UpstreamError:
    """Return the error for an answer that refused the App a token of an installation.

    A 404, a 410 or a redirect means that the installation does not exist. The error is then `NotInstalled`.
    """
    error = refusal(answer, what="installation token", now=now)
    if not isinstance(error, Gone):
        return error
    gone = NotInstalled("the App is no longer installed for this account or repository")
    gone.status = error.status
    return gone


def _resource(answer: Answer) -> str:
    name = answer.headers.get("x-ratelimit-resource", "core")
    return name if 0 < len(name) <= LONGEST_NAME and name.isprintable() else "core"


def _seconds(text: str | None, *, most: float = LONGEST_WAIT) -> float | None:
    return min(float(text), most) if text and text.isascii() and text.isdecimal() else None


def _count(text: str | None) -> int | None:
    seconds = _seconds(text, most=2.0**53)
    return None if seconds is None else int(seconds)
