"""One pool of connections to GitHub. Each call is one request without a retry. A GET follows up to two redirects.

Every wait on the network has a time limit. A call without a complete answer raises `Retryable` without a status. GitHub
might have applied such a call or not. The standard variables for proxies apply, and private certificate authorities are
trusted (`ostler.egress`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import urllib3

from ostler import egress, telemetry
from ostler.errors import Retryable
from ostler.reasons import endpoint, reason_and_cure
from ostler.upstreams import COUNTED_FROM, SERVER_ERROR, TALLY, Upstream

API_VERSION = "2022-11-28"
CONNECTIONS = 32
MOST_REDIRECTS = 2
PIECE = 64 * 1024
MOST_BYTES = 16 * 1024 * 1024
"""Most bytes of an answer that are read. A page of one hundred items is much smaller."""

# A renamed repository answers GET with a redirect. urllib3 drops the credential when the host changes.
_FOLLOW = urllib3.Retry(
    total=None,
    connect=0,
    read=0,
    status=0,
    other=0,
    redirect=MOST_REDIRECTS,
    respect_retry_after_header=False,
    raise_on_redirect=False,
)


_TUNNEL = re.compile(r"Tunnel connection failed: ([0-9]{3})")
"""Pattern of the error text of Python's http.client if a proxy refuses a call. Only the status in the text is used."""

_BY_ID = re.compile(r"/repositories/[0-9]{1,19}/actions/runners/[a-z0-9-]{1,64}")


class Deadline:
    """The time limit of a call, including all its requests and waits. If `seconds` is None, there is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, limit: float) -> float:
        """Return the seconds that the next wait may take. The result is at most `limit`.

        Raises `Retryable` if no time is left. The caller then does not begin the wait.
        """
        left = self.remaining()
        if left is None:
            return limit
        if left <= 0:
            raise Retryable("no time left for a call to GitHub")
        return min(left, limit)

    def remaining(self) -> float | None:
        """Return the remaining seconds, which may be negative. Return None if there is no limit."""
        return None if self._end is None else self._end - time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer from GitHub. `redirects` is the number of redirects that were followed.

    The names in `headers` are compared without regard to case. `body` must never go into an exception (law L13).
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    redirects: int = 0


def _read(response: urllib3.BaseHTTPResponse, call: Deadline) -> bytes:
    """Return the body of an answer. `call` limits the time for the whole body.

    The timeout of the socket alone is not enough, because it restarts with each piece of the body.
    """
    pieces, size = [], 0
    try:
        while piece := response.read1(PIECE):
            pieces.append(piece)
            size += len(piece)
            _limit(size)
            call.left(0)
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return b"".join(pieces)


def _limit(size: int) -> None:
    if size > MOST_BYTES:
        raise Retryable(f"GitHub's answer has more than {MOST_BYTES // 2**20} MiB")


def connections(proxy: egress.Proxy | None, environment: Mapping[str, str]) -> urllib3.PoolManager:
    """Return a connection pool. If there is a proxy, the pool connects through the proxy.

    Raises `ConfigurationError` if a file of certificates in the environment cannot be used.
    """
    trusted = egress.trust(environment)
    if proxy is None:
        return urllib3.PoolManager(maxsize=CONNECTIONS, ssl_context=trusted)
    login = {} if proxy.login is None else urllib3.make_headers(proxy_basic_auth=proxy.login)
    return urllib3.ProxyManager(
        proxy.url, proxy_headers=login, maxsize=CONNECTIONS, ssl_context=trusted, proxy_ssl_context=trusted
    )


def _refused_by(proxy: egress.Proxy, status: int) -> str:
    match status:
        case HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return (
                "the proxy requires a login (407); write the address as http://user:password@host:port into "
                f"{proxy.variable}"
            )
        case HTTPStatus.FORBIDDEN:
            return "the proxy does not allow this host (403); allow the host in the proxy, or add it to NO_PROXY"
        case _:
            return f"the proxy answered {status}"


class Http:
    """The connection pool. Threads may share it. `timeout` is in seconds, for one request and its answer.

    `environment` has the variables that name proxies and certificate authorities. By default it is the environment of
    the process. Raises `ConfigurationError` if `environment` names a proxy or a file of certificates that cannot be
    used.
    """

    def __init__(self, *, api_url: str, timeout: float, environment: Mapping[str, str] = os.environ) -> None:
        self._api_url = api_url.rstrip("/")
        self._timeout = timeout
        self._proxy = egress.proxy_for(self._api_url, environment)
        self._pool = connections(self._proxy, environment)

    def request(
        self,
        *,
        method: str,
        path: str,
        authorization: str | None,
        deadline: Deadline,
        body: bytes | None = None,
        etag: str | None = None,
        api_version: str = API_VERSION,
    ) -> Answer:
        """Return the answer to one request, whatever the status. If `etag` is given, the status might be 304.

        Raises `Retryable` if there is no complete answer.
        """
        headers = {
            "Accept": "application/vnd.github+json",
            "User-Agent": "ostler",
            "X-GitHub-Api-Version": api_version,
        }
        if authorization is not None:
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = "application/json"
        if etag is not None:
            headers["If-None-Match"] = etag
        allowed = deadline.left(self._timeout)
        call = Deadline(allowed)
        began = time.monotonic()
        status = None
        try:
            response = self._pool.request(
                method,
                self._api_url + path,
                headers=headers,
                body=body,
                timeout=urllib3.Timeout(total=call.left(self._timeout)),
                redirect=method == "GET",
                retries=_FOLLOW if method == "GET" else False,
                preload_content=False,
            )
            content = _read(response, call)
            status = response.status
            # For plain http, the proxy itself sends this status.
            if self._proxy is not None and status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
                raise Retryable(f"GitHub at {self._where()} did not answer: {_refused_by(self._proxy, status)}")
        except urllib3.exceptions.HTTPError as error:
            # The text of the cause might contain the URL with the names in it.
            raise Retryable(f"GitHub at {self._where()} did not answer: {self._why(error)}") from None
        finally:
            telemetry.github_answered(method, path, status=status, seconds=time.monotonic() - began)
            if status is not None or allowed >= COUNTED_FROM:
                TALLY.note(Upstream.GITHUB, failed=status is None or status >= SERVER_ERROR)
        followed = 0 if response.retries is None else len(response.retries.history)
        return Answer(status=response.status, headers=response.headers, body=content, redirects=followed)

    def _why(self, error: urllib3.exceptions.HTTPError) -> str:
        """Return a description of the failure. If a fix is known, the description contains the fix."""
        if self._proxy is not None and (found := _TUNNEL.search(str(error))) is not None:
            return _refused_by(self._proxy, int(found[1]))
        return reason_and_cure(error)

    def _where(self) -> str:
        """Return the host and port of GitHub. If there is a proxy, the text also names the proxy."""
        where = endpoint(self._api_url)
        return where if self._proxy is None else f"{where}, by the proxy {self._proxy.address},"

    def moved_repository(self, answer: Answer) -> str | None:
        """Return the new path of a call to a renamed repository, or None if there is no such path.

        This method is for calls other than GET. The new path contains the id of the repository. No other redirect is
        followed, because a credential and a body must be sent only to this API ("Renaming a repository").
        """
        if answer.status not in {307, 308}:
            return None
        path = answer.headers.get("location", "").removeprefix(self._api_url)
        return path if _BY_ID.fullmatch(path) else None

    def close(self) -> None:
        """Close every connection."""
        self._pool.clear()
