"""Logs of containers: what the program of a container has written, as its node stores it.

Both output streams are in one log, in the order in which the runtime of the node has read them. With follow, the node
sends new output until the container has ended. A stream can also end early, without an error, if the API server or its
connection to the node ends. The caller must therefore read again until the container has ended and nothing is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import urllib3

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.calls.retry import find_failure
from ostler.errors import Retryable
from rules.upstream.retry import Network

_PIECE = 64 * 1024


class LogStream:
    """One read of the log of a container. Each line begins with its time and a space."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        pod: str,
        container: str,
        since: int | None,
        follow: bool,
        silence: float,
    ) -> None:
        """Open the log. `since` is a second of the clock of the node, and older lines are left out.

        A stream without output for `silence` seconds ends. Raises the errors of `KubeClient.request`. The call is not
        repeated.
        """
        query: dict[str, str | int] = {"container": container, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if since is not None:
            query["sinceTime"] = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%M:%SZ}"
        path = object_path("pods", namespace=namespace, name=pod)
        self._what = f"log of container {container} of Pod {pod}"
        self._stopped = False
        self._answer = client.open(f"{path}/log", query=query, read_timeout=silence)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._answer.close()

    def stop(self) -> None:
        """End the stream, even while another thread waits for its next piece."""
        self._stopped = True
        try:
            self._answer.shutdown()
        except (OSError, ValueError, RuntimeError):  # the connection has ended already
            return

    def pieces(self) -> Iterator[bytes]:
        """Yield the pieces until the stream ends or is silent. Raises `Retryable` if the connection breaks."""
        try:
            yield from self._answer.stream(_PIECE)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            failure = find_failure(error)
            network = None if failure is None else failure.network
            if self._stopped or network is Network.TIMEOUT:
                return
            how = "the answer is not valid HTTP" if network is None else network.value
            raise Retryable(f"{self._what}: the connection broke: {how}") from error
