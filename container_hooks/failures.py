"""Failure of a command: one line for the log of the job that states what happened, why, and what to do."""

from __future__ import annotations

import re
from http import HTTPStatus

from k8s_adapters.calls.refusals import Refusal, refusal_of
from k8s_adapters.calls.retry import answer_of
from ostler.errors import ExecLost, Forbidden, Gone, OstlerError, RateLimited, Retryable, UpstreamError

LONGEST_LINE = 600


class HookFailed(OstlerError):
    """A command cannot be executed. The message is one line for the user of the job.

    `code` is the exit code of the command. `denied` is True if the API server denied a permission.
    """

    def __init__(self, message: str, *, code: int = 1, denied: bool = False) -> None:
        super().__init__(one_line(message))
        self.code = code
        self.denied = denied


def one_line(text: str, *, longest: int = LONGEST_LINE) -> str:
    """Return the text in one line, without control characters, and with at most `longest` characters."""
    flat = re.sub(r"[\x00-\x1f\x7f\s]+", " ", text).strip()
    return flat if len(flat) <= longest else f"{flat[: longest - 1]}…"


def failure_of(doing: str, error: OstlerError) -> HookFailed:
    """Return the failure of a call to Kubernetes. `doing` states what failed, for example `Pod x was not created`."""
    if isinstance(error, HookFailed):
        return error
    if isinstance(error, ExecLost):
        return HookFailed(f"{doing}: the connection was lost before the exit code arrived: {error}")
    return HookFailed(f"{doing}: {_why(error)}", denied=_is_denial(error))


def _why(error: OstlerError) -> str:
    if not isinstance(error, UpstreamError):
        return str(error)
    if _is_denial(error):
        return "the API server denies the permission; ask the operator to check the rights of container jobs"
    if (refusal := refusal_of(error)) is not None:
        return _refused(refusal)
    if isinstance(error, Gone):
        return "the object no longer exists; if its node was lost, run the job again"
    if isinstance(error, Retryable | RateLimited):
        return f"the API server did not carry out the call ({error}); run the job again later"
    return error.words or str(error)


def _refused(refusal: Refusal) -> str:
    if refusal.quota:
        return (
            f"the quota of the namespace is used up ({refusal.text}); run fewer jobs at once, or ask the operator to "
            "raise the ResourceQuota"
        )
    return f"the API server refuses the object: {refusal.text}; change the container's options, or ask the operator"


def _is_denial(error: OstlerError) -> bool:
    """Return whether RBAC or the authentication denied a call. A refusal by an admission policy does not count."""
    if not isinstance(error, Forbidden):
        return False
    answer = answer_of(error)
    return answer is None or answer.status == HTTPStatus.UNAUTHORIZED or "cannot" in answer.message.split()
