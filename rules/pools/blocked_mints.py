"""Backoffs and runner groups that block mints for jobs of a pool, described for the pool's condition."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from rules.claims.mint_questions import describe

INSTALLATION = "installation"
"""Kind of a backoff that concerns a whole installation.

Such a backoff begins because GitHub did not answer or asked to wait, or because the installation is suspended or
removed. A backoff of another kind begins because GitHub refused a mint.
"""

UNUSABLE_GROUP = "unusable_group"
"""Kind of jobs that wait because GitHub would not give them to a runner in the runner group of the pool.

The group does not exist, or it does not admit the repository of the job. There is no backoff, and the reason names the
group.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockedMints:
    """The backoff that blocks the most jobs of a pool, or the jobs that cannot use the runner group of the pool.

    - `words`: the reason, with GitHub's own message.
    - `failures`: number of consecutive failures.
    - `not_before`: end of the backoff.
    - `jobs`: number of the pool's jobs that wait for the end of the backoff, including the job that is tried first.
    - `oldest`: queue time of the oldest of these jobs.
    - `account`: login of the account of these jobs.
    - `others`: number of the pool's queued jobs that wait only for a Pod.
    - `more`: number of further backoffs that block jobs of the pool.
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
        """Return the reason of the condition.

        The reason is `MintsBackOff` for a backoff of an installation, and `MintsRefused` for any other backoff.
        """
        return "MintsBackOff" if self.kind == INSTALLATION else "MintsRefused"

    def describe(self, *, busy: int, now: datetime) -> str:
        """Return the message of the condition.

        `busy` is the number of the pool's Pods with a job. The backoff does not affect these Pods.
        """
        whose = "" if self.kind == UNUSABLE_GROUP else f"{describe(self.kind, self.key)}: "
        waits = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        verb, oldest = ("waits", "queued at") if self.jobs == 1 else ("wait", "the oldest since")
        told = [
            f"{waits} of account {self.account} {verb}: {whose}{self.words.rstrip('.')}",
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
        by = "by" if self.kind == INSTALLATION and self.failures else "at"  # a probe might start earlier
        return f"next try {by} {_time(self.not_before)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
