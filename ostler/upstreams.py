"""Tally of this process's calls to GitHub and Kubernetes and their failures, since it was last written to Postgres.

Adapters note every attempt here; `models.upstream.gates` adds the counts of all processes up. A failure is an upstream
that cannot serve: 5xx, overload, no answer. A refusal is an answer, and so is a limit of GitHub's, which says nothing
about its health. An attempt that was given less than `PATIENCE` and ran out of it says nothing either.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ostler import telemetry

PATIENCE = 1.0
"""Seconds; less is our impatience (a token review gets 0.3 s), not the upstream's silence."""

SUCCESS = range(200, 300)
SERVER_ERROR = 500


class Upstream(StrEnum):
    """What a gate can be closed for."""

    GITHUB = "github"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Counts:
    """Attempts that say something, and those of them that failed."""

    calls: int
    errors: int


class Tally:
    """Counts of one process; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Upstream, (0, 0))

    def note(self, upstream: Upstream, *, failed: bool) -> None:
        """Count one attempt."""
        with self._lock:
            calls, errors = self._counts[upstream]
            self._counts[upstream] = calls + 1, errors + failed
        telemetry.UPSTREAM_CALLS.labels(upstream, "failed" if failed else "answered").inc()

    def take(self) -> Mapping[Upstream, Counts]:
        """Return the counts since the last call and reset them; upstreams without a call are left out."""
        with self._lock:
            taken, self._counts = self._counts, dict.fromkeys(Upstream, (0, 0))
        return {upstream: Counts(calls, errors) for upstream, (calls, errors) in taken.items() if calls}


TALLY = Tally()
"""The one of this process."""
