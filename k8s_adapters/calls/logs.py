"""Logs of containers: what the program of a container has written, as its node stores it.

Both output streams are in one log, in the order in which the runtime of the node has read them. With follow, the node
sends new output until the container has ended. A stream can also end early, without an error, if the API server or its
connection to the node ends. The caller must therefore read again until the container has ended and nothing is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime

import urllib3

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.calls.retry import find_failure
from ostler.errors import Retryable
from rules.upstream.retry import Network

_PIECE = 64 * 1024


class LogStream:
    """One read of the log of a container. Each line begins with its time and a space.

    The API server answers when the node has sent the first bytes. The call therefore begins in `pieces`, which a
    thread can execute while another one waits.
    """

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
        """Describe the read. `since` is a second of the clock of the node, and older lines are left out.

        The read ends after `silence` seconds without output.
        """
        query: dict[str, str | int] = {"container": container, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if since is not None:
            query["sinceTime"] = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%M:%SZ}"
        self._client, self._query, self._silence = client, query, silence
        self._path = f"{object_path('pods', namespace=namespace, name=pod)}/log"
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._stopped = False
        self.silent = False
        """Whether the read ended because of silence. A node that does not answer is silent too."""

    def stop(self) -> None:
        """End the read, even while another thread waits for its next piece."""
        self._stopped = True
        # The connection has ended already, or another thread closes it at this moment.
        with suppress(OSError, ValueError, RuntimeError, TypeError, AttributeError):
            if self._answer is not None:
                self._answer.shutdown()

    def pieces(self) -> Iterator[bytes]:
        """Yield the pieces until the log ends or is silent.

        Raises `Retryable` if the connection breaks, and the errors of `KubeClient.request`. The call is not repeated.
        """
        try:
            self._answer = self._client.open(self._path, query=self._query, read_timeout=self._silence)
            with closing(self._answer) as answer:
                if not self._stopped:
                    yield from answer.stream(_PIECE)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, Retryable) as error:
            failure = find_failure(error)
            network = None if failure is None else failure.network
            self.silent = network is Network.TIMEOUT
            if self._stopped or self.silent:
                return
            if isinstance(error, Retryable):
                raise
            how = "the answer is not valid HTTP" if network is None else network.value
            raise Retryable(f"GET {self._path}: the connection broke: {how}") from error
