"""Errors by meaning: the small family that adapters raise and everything above them understands.

Nothing above an adapter knows HTTP. No message carries a response body or a credential (law L13):
Celery and Flower show exception texts.
"""

from __future__ import annotations


class OstlerError(Exception):
    """Root of every error that Ostler raises on purpose."""


class ConfigurationError(OstlerError):
    """A setting is missing or malformed; the message is one line that says which and what to do."""


class StoreUnreachable(OstlerError):
    """Postgres does not answer a process that starts, or a command; one line, and the next try may succeed."""


class UpstreamError(OstlerError):
    """A call to GitHub or Kubernetes did not succeed.

    `status` is the HTTP status, or None when no answer came or it does not matter. `words` are the upstream's own about
    a refusal, cleaned and in one line; they are for rows that people read, and no part of the error's text.
    """

    status: int | None = None
    words: str | None = None


class Retryable(UpstreamError):
    """The same call may succeed later; whether it was applied is unknown unless stated.

    `status` is the HTTP status, or None when no answer came.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RateLimited(UpstreamError):
    """The upstream asks us to wait; `after` is in seconds. The call was not applied.

    `paced`: the call was not made, and only our own pace asks to wait; a token comes in a moment.
    """

    def __init__(self, message: str, *, after: float, paced: bool = False) -> None:
        super().__init__(message)
        self.after = after
        self.paced = paced


class Gone(UpstreamError):
    """The thing asked for does not exist (404, or another UID lives under the name)."""


class NotInstalled(Gone):
    """The GitHub App is not installed there any more (404 to its token)."""


class Conflict(UpstreamError):
    """The thing exists and is not ours, or a precondition did not hold (409, 422 of a test)."""


class Forbidden(UpstreamError):
    """We are not allowed to (401, 403 without a rate limit)."""


class Suspended(Forbidden):
    """The installation of the GitHub App is suspended (403 that says so)."""


class Invalid(UpstreamError):
    """The upstream refused the content of the request (400, 422)."""


class Busy(UpstreamError):
    """GitHub refuses to delete a runner because it executes a job (422)."""
