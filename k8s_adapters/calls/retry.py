"""The one retry layer of calls to Kubernetes.

This layer classifies a failure, and `rules.upstream.retry` decides whether and when to repeat the call. No layer below
retries a call (urllib3's own retries are off). Layers above must not retry the same call again. Tests pass their own
clock, sleep and randomness. Times are in seconds.
"""

from __future__ import annotations

import errno
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import TypeVar

import urllib3.exceptions

from ostler.clock import Timing
from ostler.errors import RateLimited, Retryable
from ostler.upstreams import SERVER_ERROR
from rules.upstream.retry import Failure, Network, RetryPolicy, decide

T = TypeVar("T")

_RETRIED = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_ERRNO = {
    errno.ENETUNREACH: Network.UNREACHABLE,
    errno.EHOSTUNREACH: Network.UNREACHABLE,
    errno.ENETDOWN: Network.UNREACHABLE,
    errno.EHOSTDOWN: Network.UNREACHABLE,
    errno.EADDRNOTAVAIL: Network.UNREACHABLE,
    errno.ETIMEDOUT: Network.TIMEOUT,
    errno.ECONNREFUSED: Network.REFUSED,
    errno.ECONNRESET: Network.RESET,
    errno.ECONNABORTED: Network.RESET,
    errno.EPIPE: Network.RESET,
}
# The first match is used, so a subclass is listed before its base class.
_CLASSES: tuple[tuple[type[BaseException], Network], ...] = (
    (socket.gaierror, Network.NAME),
    (urllib3.exceptions.NameResolutionError, Network.NAME),
    (ssl.SSLError, Network.TLS),
    (urllib3.exceptions.SSLError, Network.TLS),
    (TimeoutError, Network.TIMEOUT),
    (urllib3.exceptions.TimeoutError, Network.TIMEOUT),
    (ConnectionRefusedError, Network.REFUSED),
    (ConnectionError, Network.RESET),
)
# Wrappers of urllib3 around the real cause. A wrapper counts only if no error of the chain shows the real cause.
_WRAPPERS: tuple[tuple[type[BaseException], Network], ...] = (
    (urllib3.exceptions.NewConnectionError, Network.UNREACHABLE),
    (urllib3.exceptions.IncompleteRead, Network.TRUNCATED),
    (urllib3.exceptions.ProtocolError, Network.RESET),
    (urllib3.exceptions.ProxyError, Network.UNREACHABLE),
)


class Answer(Exception):
    """An HTTP status other than 2xx.

    The text of this exception omits the server's message, because the message might quote the request.
    """

    def __init__(self, *, status: int, reason: str, message: str, retry_after: float | None) -> None:
        super().__init__(f"{status} {reason}".strip())
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class TruncatedAnswer(Exception):
    """An answer with status 2xx and an unexpected body. The call might have been applied or not."""


def retry(attempt: Callable[[float | None], T], *, what: str, policy: RetryPolicy, timing: Timing | None = None) -> T:
    """Call `attempt`, and repeat it as `policy` allows. Return the result of `attempt`.

    `attempt` gets the remaining seconds, or None without a deadline. If an answer shows that no retry can succeed, the
    error of this answer is raised unchanged. Raises `Retryable` or `RateLimited` if the attempts or the deadline are
    used up. The messages of these two errors contain `what`, the name of the call.
    """
    timing = timing or Timing()
    began = timing.clock()
    handled = sys.exception()
    number = 0
    while True:
        number += 1
        elapsed = timing.clock() - began
        left = None if policy.deadline is None else policy.deadline - elapsed
        if left is not None and left <= 0:
            raise Retryable(f"{what}: no time left for an attempt")
        try:
            return attempt(left)
        except Exception as error:
            failure = find_failure(error, handled=handled)
            if failure is None:
                raise
            decision = decide(
                policy=policy, attempt=number, elapsed=timing.clock() - began, failure=failure, roll=timing.roll()
            )
            if not decision.retry:
                if not _may_succeed_later(failure):
                    raise
                raise _exhausted(what, failure, decision.reason) from error
        timing.sleep(decision.wait)


def find_failure(error: BaseException, *, handled: BaseException | None = None) -> Failure | None:
    """Return the failure that caused an error. Return None if the cause is neither an answer nor a network failure.

    The error and all its causes are searched. A status takes precedence over a network failure. `handled` is the
    exception that was being handled when the call began. Python makes this exception the context of each new error.
    This exception did not cause the new error, so the search ends before it.
    """
    chain = list(_chain(error, until=handled))
    network: Network | None = None
    for link in chain:
        status = getattr(link, "status", None)
        if isinstance(status, int) and not isinstance(status, bool):
            return Failure(status=status, retry_after=getattr(link, "retry_after", None))
        network = network or _network(link)
    if network is None:
        network = next((kind for link in chain for wrapper, kind in _WRAPPERS if isinstance(link, wrapper)), None)
    return None if network is None else Failure(network=network)


def answer_of(error: BaseException) -> Answer | None:
    """Return the answer that caused an error, or None if no answer caused it."""
    return next((link for link in _chain(error) if isinstance(link, Answer)), None)


def single(policy: RetryPolicy, *, left: float | None) -> RetryPolicy:
    """Return `policy` with a single attempt and a deadline of `left` seconds."""
    return replace(policy, attempts=1, deadline=left)


def _chain(error: BaseException, *, until: BaseException | None = None) -> Iterator[BaseException]:
    """Yield an error and its causes. If an error has an explicit cause, its context is not followed.

    The chain ends before a cycle, and before the exception `until`.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and link is not until and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _network(link: BaseException) -> Network | None:
    if isinstance(link, TruncatedAnswer):
        return Network.TRUNCATED
    # NewConnectionError is a subclass of a timeout, but the cause of the error is more precise.
    if type(link) is urllib3.exceptions.NewConnectionError:
        return None
    for kind, network in _CLASSES:
        if isinstance(link, kind):
            return network
    return _ERRNO.get(link.errno or 0) if isinstance(link, OSError) else None


def _may_succeed_later(failure: Failure) -> bool:
    """Return whether a later call might succeed.

    A later call might succeed after a network failure, after a status that is retried, and after any other 5xx.
    """
    status = failure.status
    return status is None or status in _RETRIED or status >= SERVER_ERROR


def _exhausted(what: str, failure: Failure, reason: str) -> Retryable | RateLimited:
    if failure.status == HTTPStatus.TOO_MANY_REQUESTS and failure.retry_after is not None:
        return RateLimited(
            f"{what}: the API server asked to wait {failure.retry_after:.0f} s; {reason}", after=failure.retry_after
        )
    cause = f"status {failure.status}" if failure.status is not None else failure.network and failure.network.value
    return Retryable(f"{what}: {cause}; {reason}", status=failure.status)
