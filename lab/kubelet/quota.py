"""Quota of Pods that run as real processes. Only Pods that executed a job use it up."""

from __future__ import annotations


class RealQuota:
    """Makes Pods real until `wanted` real Pods have executed a job.

    At most `wanted` Pods are real at once. A real Pod that ends without a job frees its place for another one.
    """

    def __init__(self, *, wanted: int) -> None:
        self._wanted = wanted
        self._alive = 0
        self._used = 0

    def take(self) -> bool:
        """Return whether the next Pod must be real. If so, the caller calls `give_back` when the Pod ends."""
        if self._used + self._alive >= self._wanted:
            return False
        self._alive += 1
        return True

    def give_back(self, *, used: bool) -> None:
        """Record the end of a real Pod. `used`: it executed a job."""
        self._alive -= 1
        self._used += used
