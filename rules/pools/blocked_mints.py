"""Backoffs of mints that hold jobs of a pool, in the words of the pool's condition."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from rules.claims.mint_questions import describe

INSTALLATION = "installation"
"""The kind of backoff that says that GitHub did not answer or asked to wait. The other kinds are refusals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedMints:
    """The backoff that holds the most jobs of a pool.

    `words`: why, GitHub's own words included. `jobs`: jobs of the pool that wait for it, its probe included;
    `oldest`: when the first of them was queued. `account`: the login that all of them are charged to.
    `others`: queued jobs of the pool that wait for nothing but a Pod. `more`: further backoffs that hold jobs of it.
    """

    kind: str
    key: str
    words: str
    failures: int
    not_before: datetime
    jobs: int
    oldest: datetime
    account: str
    others: int
    more: int

    @property
    def reason(self) -> str:
        """Return the reason of the condition: GitHub refuses what is asked for, or mints of an installation fail."""
        return "MintsBackOff" if self.kind == INSTALLATION else "MintsRefused"

    def describe(self, *, busy: int, now: datetime) -> str:
        """Return the condition's message. `busy`: Pods of the pool that have a job, which this does not concern."""
        waits = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        verb, oldest = ("waits", "queued at") if self.jobs == 1 else ("wait", "the oldest since")
        told = [
            f"{waits} of account {self.account} {verb}: {describe(self.kind, self.key)}: {self.words.rstrip('.')}",
            f"{oldest} {_time(self.oldest)}, {self._next_try(now)}",
        ]
        if self.more:
            told.append("1 more backoff delays jobs" if self.more == 1 else f"{self.more} more backoffs delay jobs")
        if busy or self.others:
            told.append(f"not affected: {_count(busy, 'Pod')} with a job and {_count(self.others, 'queued job')}")
        return "; ".join(told)

    def _next_try(self, now: datetime) -> str:
        if self.not_before <= now:
            return "the next try is due now"
        by = "by" if self.kind == INSTALLATION and self.failures else "at"  # such an installation is probed meanwhile
        return f"next try {by} {_time(self.not_before)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
