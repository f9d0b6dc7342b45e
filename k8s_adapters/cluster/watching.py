"""Watches of the runner Pods, the hook Pods and the pools of one namespace.

A `Watch` is one connection, which begins at a given resource version. The answer of the API server is a stream with one
event per line. The type of the error shows how a watch ended. The caller decides when to list again, wait and
reconnect. `docs/decisions` explains why the `Watch` of the Kubernetes client package is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import orjson
import urllib3

from k8s_adapters.calls.client import Json, KubeClient, object_path
from k8s_adapters.calls.retry import find_failure
from k8s_adapters.names import HOOK_OF_LABEL, POOL_LABEL
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.pools.pools import pool_path
from k8s_adapters.runners.hook_pods import HookPodView, read_hook_pod
from k8s_adapters.runners.pods import read_pod
from ostler.errors import Retryable
from rules.claims.pod_view import PodView
from rules.pools.pool_spec import PoolSpec
from rules.upstream.retry import Network

GRACE = 5.0
"""Seconds that the client adds to the timeout of the watch.

If the API server sends no data for the sum of both times, the client closes the connection.
"""

_GONE = 410

T = TypeVar("T")


class WatchExpired(Retryable):
    """The API server no longer has the changes since the given resource version.

    The API server answers with 410 or sends an error event. Every error event counts as this error. The caller must
    list again.
    """


class WatchSilent(Retryable):
    """The API server did not answer the request for the watch, or sent nothing for its timeout plus `GRACE`."""


class WatchBroken(Retryable):
    """The connection broke in the middle of the watch, or the API server sent bytes that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One event. `item` is None for a bookmark, and for an object that cannot be parsed."""

    kind: str
    version: str
    item: T | None


class Watch(Generic[T]):
    """One connection, used as a context manager.

    Another thread may call `stop()`. The iterator of `events()` then ends early.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        *,
        selector: str | None,
        read: Callable[[Json], T],
        since: str,
        seconds: int,
    ) -> None:
        """Start a watch that lasts `seconds`.

        Raises `WatchExpired` if the resource version `since` is too old, and the errors of `KubeClient.request`.
        """
        self._stopped = False
        self._read = read
        query: dict[str, str | int] = {
            "watch": "1",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        if selector is not None:
            query["labelSelector"] = selector
        try:
            self._answer = client.open(path, query=query, read_timeout=seconds + GRACE)
        except Retryable as error:
            if error.status == _GONE:
                raise WatchExpired("the resource version of the watch is too old", status=_GONE) from error
            if _is_timeout(error):
                raise WatchSilent("the API server did not answer the watch request") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._answer.close()

    def stop(self) -> None:
        """End the watch, even while another thread waits for its next event."""
        self._stopped = True
        try:
            self._answer.shutdown()
        except (OSError, ValueError, RuntimeError):  # the connection has ended already
            return

    def events(self) -> Iterator[Event[T]]:
        """Yield events until the API server ends the watch after its timeout, or until another thread calls `stop()`.

        Raises `WatchExpired`, `WatchSilent` or `WatchBroken` if the watch ends in another way.
        """
        rest = b""
        pieces = self._answer.stream(None, decode_content=True)
        while True:
            try:
                piece = next(pieces, None)
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                if self._stopped:
                    return
                if _is_timeout(error):
                    raise WatchSilent(
                        f"the watch sent no bytes for its timeout and {GRACE:.0f} more seconds"
                    ) from error
                raise WatchBroken(f"the connection of the watch broke: {_how(error)}") from error
            if piece is None or self._stopped:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.strip():
                    yield _event(line, self._read)
        if rest.strip() and not self._stopped:
            raise WatchBroken("the watch ended in the middle of an event")


def _how(error: BaseException) -> str:
    failure = find_failure(error)
    return "the answer is not valid HTTP" if failure is None or failure.network is None else failure.network.value


def _is_timeout(error: BaseException) -> bool:
    failure = find_failure(error)
    return failure is not None and failure.network is Network.TIMEOUT


class PodWatch(Watch[PodView]):
    """A watch of runner Pods."""

    def __init__(self, client: KubeClient, *, namespace: str, since: str, seconds: int) -> None:
        """Start the watch. Raises the errors of `Watch`."""
        path = object_path("pods", namespace=namespace)
        super().__init__(client, path, selector=POOL_LABEL, read=read_pod, since=since, seconds=seconds)


class HookPodWatch(Watch[HookPodView]):
    """A watch of hook Pods."""

    def __init__(self, client: KubeClient, *, namespace: str, since: str, seconds: int) -> None:
        """Start the watch. Raises the errors of `Watch`."""
        path = object_path("pods", namespace=namespace)
        super().__init__(client, path, selector=HOOK_OF_LABEL, read=read_hook_pod, since=since, seconds=seconds)


class PoolWatch(Watch[PoolSpec]):
    """A watch of pools."""

    def __init__(self, client: KubeClient, *, namespace: str, since: str, seconds: int) -> None:
        """Start the watch. Raises the errors of `Watch`."""
        super().__init__(client, pool_path(namespace), selector=None, read=read_pool, since=since, seconds=seconds)


def _event(line: bytes, read: Callable[[Json], T]) -> Event[T]:
    """Return the event from a line of the answer."""
    try:
        event: Json = orjson.loads(line)
        kind, found = str(event["type"]), event["object"]
        if kind == "ERROR":
            code = found.get("code")
            raise WatchExpired(f"the watch ended with an error: {code} {found.get('reason')}", status=code)
        version = str(found["metadata"]["resourceVersion"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WatchBroken("the watch sent an event that is not JSON, or lacks a type or an object") from error
    return Event(kind, version, None if kind == "BOOKMARK" else _item(found, read))


def _item(found: Any, read: Callable[[Json], T]) -> T | None:
    """Return the parsed object, or None if the object cannot be parsed.

    One bad object must not stop the watch (law L14).
    """
    try:
        return read(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
