"""A watch of the runner Pods of one namespace: one long answer, read line by line.

Thin on purpose: one connection per `PodWatch`, which goes on where the one before it ended. Who lists again, waits and
begins anew is the caller's to decide; the errors say what happened. The package's own `Watch` is not used: see
docs/decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import orjson
import urllib3

from k8s_adapters.client import Json, KubeClient, object_path
from k8s_adapters.names import POOL_LABEL
from k8s_adapters.pods import PodSeen, read_pod
from k8s_adapters.retry import find_failure
from ostler.errors import Retryable
from rules.retry import Network

GRACE = 5.0
"""Seconds after the server's own time-out for which nothing need come before a connection counts as dead."""

_GONE = 410


class WatchExpired(Retryable):
    """The server has forgotten what came after our version (410, or an event that says so): list again."""


class WatchSilent(Retryable):
    """The server should have ended the watch by now, or said something: the connection is dead."""


class WatchBroken(Retryable):
    """The connection ended in the middle, or what came over it makes no sense."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One event. `pod` is None for a bookmark, and for a Pod that cannot be read."""

    kind: str
    version: str
    pod: PodSeen | None


class PodWatch:
    """One connection; a context manager. `stop()` may come from another thread, and ends `events()` early."""

    def __init__(self, client: KubeClient, *, namespace: str, since: str, seconds: int) -> None:
        """Ask the server for a watch of so many seconds. Raises `WatchExpired` and what the client raises."""
        self._stopped = False
        query: dict[str, str | int] = {
            "watch": "1", "labelSelector": POOL_LABEL, "resourceVersion": since, "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }  # fmt: skip
        path = object_path("pods", namespace=namespace)
        try:
            self._answer = client.open(path, query=query, read_timeout=seconds + GRACE)
        except Retryable as error:
            if error.status == _GONE:
                raise WatchExpired("the watch's version is too old", status=_GONE) from error
            if _is_timeout(error):
                raise WatchSilent("the watch was not answered") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._answer.close()

    def stop(self) -> None:
        """End it, also while another thread waits for its next event."""
        self._stopped = True
        try:
            self._answer.shutdown()
        except (OSError, ValueError, RuntimeError):  # it has ended by itself
            return

    def events(self) -> Iterator[PodEvent]:
        """Yield events until the server ends the watch, which it does in time, or `stop()`.

        Raises `WatchExpired`, `WatchSilent` and `WatchBroken`.
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
                    raise WatchSilent("the watch went silent") from error
                raise WatchBroken(f"the watch broke off: {type(error).__name__}") from error
            if piece is None or self._stopped:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.strip():
                    yield _read(line)
        if rest.strip() and not self._stopped:
            raise WatchBroken("the watch ended in the middle of an event")


def _is_timeout(error: BaseException) -> bool:
    failure = find_failure(error)
    return failure is not None and failure.network is Network.TIMEOUT


def _read(line: bytes) -> PodEvent:
    """Return the event of a line."""
    try:
        event: Json = orjson.loads(line)
        kind, found = str(event["type"]), event["object"]
        if kind == "ERROR":
            code = found.get("code")
            raise WatchExpired(f"the watch ended with an error: {code} {found.get('reason')}", status=code)
        version = str(found["metadata"]["resourceVersion"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WatchBroken(f"an event that makes no sense: {type(error).__name__}") from error
    return PodEvent(kind, version, None if kind == "BOOKMARK" else _pod(found))


def _pod(found: Any) -> PodSeen | None:
    """Return a Pod; None for one that we cannot read, which stops no other (law L14)."""
    try:
        return read_pod(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
