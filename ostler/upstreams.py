"""Counts of this process's calls to GitHub and Kubernetes and of the failed calls among them.

Adapters record every attempt here. The process regularly writes the counts to Postgres and resets them.
`models.upstream.gates` adds up the counts of all processes. A call failed if the upstream answered with a 5xx status,
was overloaded, or gave no answer. A refusal, a rate limit or a failing admission webhook of the cluster is not a
failure, because none of them shows that the upstream is unhealthy. A call with a time limit below `COUNTED_FROM`
seconds that timed out is not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ostler import telemetry

COUNTED_FROM = 1.0
"""Shortest time limit, in seconds, of a call whose time-out counts as a failure of the upstream.

A call with a shorter limit can time out although the upstream is healthy. An example is a token review with a limit of
0.3 seconds.
"""

SUCCESS = range(200, 300)
SERVER_ERROR = 500


class Upstream(StrEnum):
    """A server that has a gate: GitHub or Kubernetes."""

    GITHUB = "github"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of counted attempts, and number of failed attempts among them."""

    calls: int
    errors: int


class Tally:
    """Counts of one process for each upstream. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Upstream, (0, 0))

    def note(self, upstream: Upstream, *, failed: bool) -> None:
        """Count one attempt. If `failed` is true, count one failure as well."""
        with self._lock:
            calls, errors = self._counts[upstream]
            self._counts[upstream] = calls + 1, errors + failed
        telemetry.UPSTREAM_CALLS.labels(upstream, "failed" if failed else "answered").inc()

    def take(self) -> Mapping[Upstream, Counts]:
        """Return the counts since the last call of this method, and reset them.

        The result has no entry for an upstream without calls.
        """
        with self._lock:
            taken, self._counts = self._counts, dict.fromkeys(Upstream, (0, 0))
        return {upstream: Counts(calls, errors) for upstream, (calls, errors) in taken.items() if calls}


TALLY = Tally()
"""The counts of this process."""
