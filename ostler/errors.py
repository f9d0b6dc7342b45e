"""Exceptions of settings, stores and adapters. The name of each exception says what it means to the caller.

Code above the adapters handles these classes instead of HTTP statuses. No message contains a response body or a
credential (law L13), because Celery and Flower show the messages of exceptions.
"""

from __future__ import annotations


class OstlerError(Exception):
    """Base class of the exceptions of this module, and of some exceptions of other modules."""


class ConfigurationError(OstlerError):
    """A setting is missing or malformed. The message is one line that names the setting and says what to do."""


class StoreUnreachable(OstlerError):
    """Postgres or Redis did not answer. A later attempt might succeed.

    Commands raise this exception, and processes raise it at their start.

    The message is one line.
    """


class UpstreamError(OstlerError):
    """A call to GitHub or Kubernetes did not succeed.

    `status` is the HTTP status, or None if no answer came or the status does not matter. `words` is the upstream's own
    explanation of a refusal, cleaned and in one line, or None. Ostler stores `words` in rows that people read. The
    message of the exception does not contain `words`.
    """

    status: int | None = None
    words: str | None = None


class Retryable(UpstreamError):
    """The same call might succeed later.

    The upstream might already have applied the call. `status` is the HTTP status, or None if no answer came.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RateLimited(UpstreamError):
    """The caller must wait before it repeats the call. The upstream did not apply the call.

    `after` is the wait in seconds. `paced` is true if Ostler's own rate limit delayed the call and no request was sent.
    """

    def __init__(self, message: str, *, after: float, paced: bool = False) -> None:
        super().__init__(message)
        self.after = after
        self.paced = paced


class ExecLost(UpstreamError):
    """The connection to a process in a container ended, or became silent, before the exit code arrived.

    The process might still run, and might have ended with any exit code. The same command must not be repeated unless
    a second execution is harmless.
    """


class Gone(UpstreamError):
    """The requested object does not exist (404), or an object with another UID has its name."""


class NotInstalled(Gone):
    """The GitHub App is no longer installed in the account or repository (404 for the App's token)."""


class Conflict(UpstreamError):
    """The object exists but does not belong to Ostler, or a precondition failed.

    The upstream answered 409, or 422 for a failed test of a JSON patch. Code above the adapters also raises this
    exception if another session has locked the rows that a call needs.
    """


class Forbidden(UpstreamError):
    """The upstream denied the call (401, or 403 without a rate limit)."""


class Suspended(Forbidden):
    """The installation of the GitHub App is suspended (a 403 whose body names the suspension)."""


class Invalid(UpstreamError):
    """The upstream refused the content of the request (400, 422)."""


class Busy(UpstreamError):
    """GitHub refuses to delete a runner because it executes a job (422)."""
