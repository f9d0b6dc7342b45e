"""Counts of this process's calls to GitHub and Kubernetes and of their failures, since their last write to Postgres.

Adapters record every attempt here. `models.upstream.gates` adds up the counts of all processes. A call failed if the
upstream could not serve it: a 5xx status, an overload or no answer. A refusal or a rate limit counts as an answer,
because neither shows that the upstream is unhealthy. A call with a time limit below `PATIENCE` seconds that timed out
is not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ostler import telemetry

PATIENCE = 1.0
"""Time limit of a call in seconds from which a time-out counts as a failure of the upstream.

A call with a shorter limit, such as a token review with 0.3 seconds, can time out although the upstream is healthy.
"""

SUCCESS = range(200, 300)
SERVER_ERROR = 500


class Upstream(StrEnum):
    """Upstream that has a gate."""

    GITHUB = "github"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of counted attempts, and number of failures among them."""

    calls: int
    errors: int


class Tally:
    """Counts of one process. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Upstream, (0, 0))

    def note(self, upstream: Upstream, *, failed: bool) -> None:
        """Count one attempt, and one failure if `failed` is true."""
        with self._lock:
            calls, errors = self._counts[upstream]
            self._counts[upstream] = calls + 1, errors + failed
        telemetry.UPSTREAM_CALLS.labels(upstream, "failed" if failed else "answered").inc()

    def take(self) -> Mapping[Upstream, Counts]:
        """Return the counts since the last call of this method, and reset them.

        An upstream without calls is left out.
        """
        with self._lock:
            taken, self._counts = self._counts, dict.fromkeys(Upstream, (0, 0))
        return {upstream: Counts(calls, errors) for upstream, (calls, errors) in taken.items() if calls}


TALLY = Tally()
"""The counts of this process."""
