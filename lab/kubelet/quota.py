"""Quota of Pods that run as real processes: as many as are requested, counted by the jobs that they executed."""

from __future__ import annotations


class RealQuota:
    """Lets Pods be real until `wanted` real Pods have executed a job.

    At most `wanted` are real at once; one that ends without a job makes room for another.
    """

    def __init__(self, *, wanted: int) -> None:
        self._wanted = wanted
        self._alive = 0
        self._used = 0

    def take(self) -> bool:
        """Return whether the next Pod is to be real; if so, `give_back` it at its end."""
        if self._used + self._alive >= self._wanted:
            return False
        self._alive += 1
        return True

    def give_back(self, *, used: bool) -> None:
        """A real Pod ended, having executed a job or not."""
        self._alive -= 1
        self._used += used
