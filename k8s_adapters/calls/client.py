"""Client of the Kubernetes API. It uses the credentials and connections of the official package, but plain JSON bodies.

The package reads kubeconfigs and in-cluster files, renews tokens and owns the TLS connections. The generated models of
the package are not used, because a typed patch costs three times the CPU of the same call with plain JSON.

Every call has a connect and a read timeout in seconds, and goes through the one retry layer. The client raises only
errors of `ostler.errors`. Code above this package does not handle HTTP.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import orjson
import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from yaml import YAMLError

from k8s_adapters.calls import writes
from k8s_adapters.calls.refusals import WEBHOOK_FAILED, words_in
from k8s_adapters.calls.retry import Answer, TruncatedAnswer, find_failure, retry
from ostler.clock import Timing, utcnow
from ostler.errors import ConfigurationError, Conflict, Forbidden, Gone, Invalid, Retryable, UpstreamError
from ostler.reasons import endpoint
from ostler.upstreams import COUNTED_FROM, SERVER_ERROR, SUCCESS, TALLY, Upstream
from rules.pools.spec_writers import FIELD_MANAGER
from rules.upstream.retry import ONCE, RetryPolicy, parse_retry_after

Json = dict[str, Any]
T = TypeVar("T")

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
# An answer with only the metadata costs the client and the server half the CPU of an answer with the whole object.
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

_DEFAULT_POLICY = RetryPolicy()
_MEANINGS: dict[int, type[UpstreamError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: Gone,
    409: Conflict,
    422: Invalid,
}
_PORTS = {"http": 80, "https": 443}
_TOKEN_KEPT = 1.0  # seconds; getting the token from the package costs a quarter of a whole call


@dataclass(frozen=True, kw_only=True)
class Line:
    """An open connection to the API server, and what a request on it needs.

    `prefix` is the path in the URL of the API server, which is usually empty. `read_timeout` is in seconds.
    """

    socket: socket.socket
    host: str
    port: int
    secure: bool
    prefix: str
    authorization: str | None = field(repr=False)
    read_timeout: float


class KubeClient:
    """Calls one API server in the name of one identity. Threads may share it."""

    def __init__(
        self,
        *,
        load: Callable[[], ApiClient],
        connect_timeout: float,
        read_timeout: float,
        timing: Timing | None = None,
        policy: RetryPolicy = _DEFAULT_POLICY,
    ) -> None:
        self._policy = policy
        self.timing = timing or Timing()
        self._load = load
        self._api = load()
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._reloading = threading.Lock()
        self._token: tuple[ApiClient, float, str | None] | None = None

    def with_timing(self, timing: Timing) -> KubeClient:
        """Return a client that shares the connections of this one, but waits by another clock."""
        other = copy(self)
        other.timing = timing
        return other

    @property
    def host(self) -> str:
        """Return the URL of the API server."""
        return str(self._api.configuration.host)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float | None = None,
        policy: RetryPolicy | None = None,
        impersonate: str | None = None,
    ) -> Json:
        """Make one call, and return the JSON object from the body of the answer.

        `timeout` limits each attempt, in seconds: the time to connect together with the wait for the answer, and then
        each wait for more bytes of the body. `policy` limits the number of attempts, and the time after which no
        attempt begins. If `policy` is None, the policy of the client applies. If `impersonate` is given, the call is
        made in the name of this user. This process then needs the right to impersonate the user.

        If the first attempt of a POST created the object but its answer was lost, a retry raises `Conflict`. Raises
        `Gone`, `Conflict`, `Invalid`, `Forbidden`, `RateLimited` or `Retryable` if the call fails.
        """
        headers = {"Accept": accept} | ({} if impersonate is None else {"Impersonate-User": impersonate})
        content = None
        if body is not None:
            content, headers["Content-Type"] = orjson.dumps(body), content_type
        return self._request(method, path, query, content, headers, timeout, policy, _object)

    def get(
        self,
        path: str,
        *,
        decode: Callable[[bytes], T],
        query: Mapping[str, str | int] | None = None,
        accept: str = JSON,
        policy: RetryPolicy | None = None,
    ) -> T:
        """Return the result of `decode` for the body of the answer to a GET.

        Use this method for a large body if `decode` parses only a part of the body. If `decode` raises `ValueError`,
        the body is invalid and the call is retried. Raises the same errors as `request`.
        """
        return self._request("GET", path, query, None, {"Accept": accept}, None, policy, decode)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None,
        content: bytes | None,
        headers: Mapping[str, str],
        timeout: float | None,
        policy: RetryPolicy | None,
        decode: Callable[[bytes], T],
    ) -> T:
        address = f"{path}?{urlencode(query)}" if query else path
        what = f"{method} {path}"
        answered: list[Answer] = []

        def attempt(left: float | None) -> T:
            seconds = _least(timeout, left)

            def send(api: ApiClient, token: str | None, spent: float) -> T:
                within = None if seconds is None else max(seconds - spent, 0.001)
                mine = {**headers, "User-Agent": FIELD_MANAGER} | ({} if token is None else {"Authorization": token})
                return self._send(api, method, address, content, mine, within, decode)

            try:
                return self._as_us(send)
            except Answer as answer:
                answered.append(answer)
                raise

        try:
            result = self._retried(attempt, what=what, policy=policy)
        except UpstreamError as error:
            # The last attempt might have been cut off by the deadline. An earlier answer then has the cause.
            error.words = words_in(answered[-1]) if answered else None
            writes.note_failure(method, path, error)
            raise
        writes.note_success(method, path)
        return result

    def _retried(self, attempt: Callable[[float | None], T], *, what: str, policy: RetryPolicy | None) -> T:
        try:
            return retry(attempt, what=what, policy=policy or self._policy, timing=self.timing)
        except Answer as answer:
            raise by_meaning(what, answer) from answer

    def open(self, path: str, *, query: Mapping[str, str | int], read_timeout: float) -> urllib3.BaseHTTPResponse:
        """Return the answer to a GET as a stream. The caller must read and close the stream.

        The call is not retried, except once after a 401 if new credentials can be read.
        `read_timeout` is the maximum number of seconds between two pieces of the stream. Raises the same errors as
        `request`.
        """
        what = f"GET {path}"
        address = f"{path}?{urlencode(query)}"

        def attempt(_left: float | None) -> urllib3.BaseHTTPResponse:
            return self._as_us(lambda api, token, _spent: self._stream(api, token, address, read_timeout))

        try:
            return retry(attempt, what=what, policy=ONCE, timing=self.timing)
        except Answer as answer:
            raise by_meaning(what, answer) from answer

    def dial(self, what: str, begin: Callable[[Line], T], *, policy: RetryPolicy | None = None) -> T:
        """Open a connection for a protocol other than plain HTTP, and return the result of `begin`.

        A failed attempt is repeated in the same cases as an attempt of `request`. `begin` must therefore raise `Answer`
        or a network failure only if a repetition is safe, and must return every other failure. `begin` owns the
        connection, and must close a connection that it does not return. `what` names the call in error messages. Raises
        the same errors as `request`.
        """

        def attempt(left: float | None) -> T:
            def send(api: ApiClient, token: str | None, _spent: float) -> T:
                with _counted(left):
                    return begin(self._dial(api, token, left))

            return self._as_us(send)

        return self._retried(attempt, what=what, policy=policy)

    def close(self) -> None:
        """Close the idle connections."""
        self._api.rest_client.pool_manager.clear()

    @property
    def server(self) -> str:
        """Return host and port of the API server."""
        return endpoint(self._api.configuration.host)

    def _as_us(self, send: Callable[[ApiClient, str | None, float], T]) -> T:
        """Call `send` with the connections, the Authorization header and the seconds since this method began.

        After a 401 the credentials are read again. If the credentials are new, `send` is called once more.
        """
        began = self.timing.clock()
        api, token = self._credentials(began)
        try:
            return send(api, token, 0)
        except Answer as answer:
            if answer.status != HTTPStatus.UNAUTHORIZED or not self._renewed(api, token):
                raise
        now = self.timing.clock()
        return send(*self._credentials(now), now - began)

    def _credentials(self, now: float) -> tuple[ApiClient, str | None]:
        """Return the connections and the Authorization header of a call that begins now."""
        api, known = self._api, self._token
        if known is not None and known[0] is api and now - known[1] < _TOKEN_KEPT:
            return api, known[2]
        try:
            token = _authorization(api)
        except (config.ConfigException, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else "the credentials do not contain a usable token"
            raise Retryable(f"the token for the API server cannot be read: {why or 'no reason was given'}") from error
        self._token = (api, now, token)  # one assignment, so that other threads see all of it or none
        return api, token

    def _send(
        self,
        api: ApiClient,
        method: str,
        address: str,
        content: bytes | None,
        headers: Mapping[str, str],
        seconds: float | None,
        decode: Callable[[bytes], T],
    ) -> T:
        with _counted(seconds):
            answer = api.rest_client.pool_manager.urlopen(
                method,
                api.configuration.host + address,
                body=content,
                headers=headers,
                timeout=urllib3.Timeout(connect=self._connect_timeout, read=self._read_timeout, total=seconds),
                retries=False,
                redirect=False,
            )
            return _read(answer, decode)

    def _stream(self, api: ApiClient, token: str | None, address: str, read_timeout: float) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": JSON, "User-Agent": FIELD_MANAGER} | ({} if token is None else {"Authorization": token})
        answer = api.rest_client.pool_manager.urlopen(
            "GET",
            api.configuration.host + address,
            headers=headers,
            timeout=urllib3.Timeout(connect=self._connect_timeout, read=read_timeout),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        if answer.status not in SUCCESS:
            with closing(answer):
                _read(answer, _object)
        return answer

    def _dial(self, api: ApiClient, token: str | None, left: float | None) -> Line:
        """Open a connection with the trusted authorities, the client certificate and the proxy of the other calls.

        `left` is the number of seconds until the deadline of the call, or None.
        """
        url = urlsplit(api.configuration.host)
        pool = api.rest_client.pool_manager.connection_from_url(api.configuration.host)
        # urllib3 has no public way to open a connection that its pool does not reuse. The type of such a connection has
        # no attribute for the socket.
        link: Any = pool._new_conn()  # noqa: SLF001
        link.timeout = _least(self._connect_timeout, left)
        try:
            if pool.proxy is not None:
                pool._prepare_proxy(link)  # noqa: SLF001
            if link.sock is None:
                link.connect()
        except BaseException:
            link.close()
            raise
        return Line(
            socket=link.sock,
            host=str(url.hostname),
            port=url.port or _PORTS[url.scheme],
            secure=url.scheme == "https",
            prefix=url.path.rstrip("/"),
            authorization=token,
            read_timeout=_least(self._read_timeout, left) or self._read_timeout,
        )

    def _renewed(self, refused: ApiClient, token: str | None) -> bool:
        """Read the credentials again after a 401.

        Return True if other credentials than the refused ones are in use now. The package reads an in-cluster token
        only once a minute. Without this method, a revoked token might stay in use for a minute.
        """
        with self._reloading:
            if self._api is refused:
                try:
                    fresh = self._load()
                except ConfigurationError:  # the file might be half written, so the 401 is raised
                    return False
                if _authorization(fresh) == token:
                    return False
                self._api = fresh
            return True


def make_client(
    *,
    kubeconfig: str | None,
    connect_timeout: float = 2.0,
    read_timeout: float = 12.0,
    pool_size: int = 16,
    timing: Timing | None = None,
    named: str = "OSTLER_KUBECONFIG",
    policy: RetryPolicy = _DEFAULT_POLICY,
) -> KubeClient:
    """Return a client for the cluster that `kubeconfig` names.

    If `kubeconfig` is None or empty, the client is for the cluster that this process runs in. `kubeconfig` may name
    several files, in the format of the variable KUBECONFIG. `named` is the option or variable that sets `kubeconfig`.
    Error messages contain this name.

    `read_timeout` is longer than the 10 seconds that the API server waits for an admission webhook by default, so that
    the client receives the text that names the webhook.

    `pool_size` is the number of connections that stay open. If more threads call at the same time, further connections
    are opened for these calls. `policy` applies to calls that pass no policy. Its default is 4 attempts without a
    deadline.

    Raises `ConfigurationError` if the credentials cannot be read.
    """

    def load() -> ApiClient:
        # The configuration is loaded each time. A copy would share the renewal hook of the package, which overwrites
        # any token in the copy.
        configuration = _in_cluster() if not kubeconfig else _by_file(kubeconfig, named)
        configuration.connection_pool_maxsize = pool_size
        configuration.keep_alive = True
        return ApiClient(configuration)

    return KubeClient(
        load=load, connect_timeout=connect_timeout, read_timeout=read_timeout, timing=timing, policy=policy
    )


def _bare() -> Configuration:
    """Return the package's default configuration without the proxy that the package takes from the environment.

    The proxy in the environment is for calls that leave the network. As in kubectl, a `proxy-url` in a kubeconfig is
    used even if NO_PROXY excludes the server.
    """
    configuration = Configuration()
    configuration.proxy = configuration.no_proxy = None
    return configuration


def _in_cluster() -> Configuration:
    configuration = _bare()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise ConfigurationError(
            "OSTLER_KUBECONFIG: no kubeconfig is set, and this process has no ServiceAccount token of a Pod; "
            "set it to the path of a kubeconfig"
        ) from error
    return configuration


def _by_file(kubeconfig: str, named: str) -> Configuration:
    """Return the configuration of a kubeconfig.

    Raises `ConfigurationError` if the kubeconfig cannot be used. The package raises errors of many types in this case,
    and this function replaces them all.
    """
    files = [each for each in kubeconfig.split(os.pathsep) if each]
    if not any(Path(each).expanduser().exists() for each in files):
        raise ConfigurationError(f"{named}: {' or '.join(files)} does not exist; name an existing kubeconfig")
    configuration = _bare()
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig,
            context=_first_context(files),
            client_configuration=configuration,
            persist_config=False,
        )
        host = urlsplit(configuration.host)
        usable = host.scheme in {"http", "https"} and bool(host.hostname) and host.port != 0
    except Exception as error:
        raise ConfigurationError(
            f"{named}: {kubeconfig} is not a usable kubeconfig: {_why_unusable(error)}; "
            "`kubectl config view` shows how kubectl reads it"
        ) from error
    if not usable:
        raise ConfigurationError(
            f"{named}: {kubeconfig} names the server {configuration.host!r}; the server must be https://HOST:PORT"
        )
    return configuration


def _first_context(files: Sequence[str]) -> str | None:
    """Return the current context of several kubeconfigs: the context of the first file that names one.

    Return None for a single file, and if no file names a context. kubectl also uses the first context. The package
    would use the last context.
    """
    if len(files) == 1:
        return None
    for each in (Path(file).expanduser() for file in files):
        content = yaml.safe_load(each.read_text()) if each.exists() else None
        if isinstance(content, dict) and content.get("current-context"):
            return str(content["current-context"])
    return None


def _why_unusable(error: Exception) -> str:
    """Return a description of the error in a kubeconfig.

    The description does not quote the content of the kubeconfig, because the content might be a credential.
    """
    match error:
        case config.ConfigException():
            said = str(error).removeprefix("Invalid kube-config file. ").splitlines()
            return said[0].rstrip(".") if said else "it is incomplete"
        case YAMLError():
            mark = getattr(error, "problem_mark", None)
            return "it is not YAML" + ("" if mark is None else f" (line {mark.line + 1})")
        case UnicodeError():
            return "it is not text"
        case OSError():
            return f"it cannot be read ({(error.strerror or 'no reason was given').lower()})"
        case _:
            return "it does not have the parts of a kubeconfig (clusters, users, contexts, current-context)"


def part(of: Json, name: str) -> Json:
    """Return an object inside another one. The API server leaves out empty objects, or sends null."""
    return of.get(name) or {}


def object_path(kind: str, *, namespace: str, name: str | None = None, group: str = "") -> str:
    """Return the path of an object. `kind` is a plural, such as `pods`.

    If `name` is None, return the path of the collection. `group` is the API group, and the version of the group is v1.
    The default is the group of core objects.
    """
    api = f"/apis/{group}/v1" if group else "/api/v1"
    collection = f"{api}/namespaces/{quote(namespace, safe='')}/{kind}"
    return collection if name is None else f"{collection}/{quote(name, safe='')}"


def _authorization(api: ApiClient) -> str | None:
    settings = api.configuration.auth_settings().get("BearerToken")
    if settings is None or not settings["value"]:
        return None
    value = str(settings["value"])
    kind, _, token = value.partition(" ")
    return f"Bearer {token.strip()}" if kind.lower() == "bearer" else f"Bearer {value}"


@contextmanager
def _counted(seconds: float | None) -> Iterator[None]:
    """Count an attempt for the gate of Kubernetes. `seconds` is the time limit of the attempt, or None for no limit.

    If an admission webhook of the cluster does not answer, the API server answers 500. Such an attempt counts as
    answered, because the API server is healthy.

    Two kinds of failure are not counted, because they do not show a failure of Kubernetes. The first is an error in
    this process. The second is a network failure, such as a timeout, of an attempt with a time limit below
    `COUNTED_FROM`.
    """
    handled = sys.exception()
    try:
        yield
    except Exception as error:
        failure = find_failure(error, handled=handled)
        if failure is None or (failure.status is None and seconds is not None and seconds < COUNTED_FROM):
            raise
        status = failure.status
        webhook = isinstance(error, Answer) and WEBHOOK_FAILED in error.message
        failed = status is None or status >= SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
        failed = failed and not webhook
        TALLY.note(Upstream.KUBERNETES, failed=failed)
        raise
    TALLY.note(Upstream.KUBERNETES, failed=False)


def _read(answer: urllib3.BaseHTTPResponse, decode: Callable[[bytes], T]) -> T:
    """Return the decoded body of a successful answer.

    Raises `Answer` if the status is not 2xx, and `TruncatedAnswer` if `decode` raises ValueError.
    """
    if answer.status in SUCCESS:
        try:
            return decode(answer.data)
        except ValueError as error:
            raise TruncatedAnswer(f"status {answer.status} with an unexpected body") from error
    raise refusal_answer(answer.status, answer.data, answer.headers.get("Retry-After"))


def refusal_answer(status: int, body: bytes, retry_after: str | None) -> Answer:
    """Return the exception for an answer with another status than the expected one."""
    reason, message = _status_object(body)
    after = parse_retry_after(retry_after, now=utcnow())
    return Answer(status=status, reason=reason, message=message, retry_after=after)


def _object(data: bytes) -> Json:
    content = orjson.loads(data)
    if not isinstance(content, dict):
        raise TruncatedAnswer("the body is not a JSON object")
    return content


def _status_object(data: bytes) -> tuple[str, str]:
    """Return the reason and the message of a Kubernetes `Status`.

    Return two empty texts if the body is no JSON object. Such a body comes from another server, for example a proxy.
    """
    try:
        content = orjson.loads(data)
    except ValueError:
        return "", ""
    if not isinstance(content, dict):
        return "", ""
    return str(content.get("reason") or ""), str(content.get("message") or "")


def by_meaning(what: str, answer: Answer) -> UpstreamError:
    """Return the error for an answer that is not retried."""
    if answer.status == HTTPStatus.GONE:  # the version of the list or watch is too old, and a new list might succeed
        return Retryable(f"{what}: {answer}", status=answer.status)
    return _MEANINGS.get(answer.status, Invalid)(f"{what}: {answer}")


def _least(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)
