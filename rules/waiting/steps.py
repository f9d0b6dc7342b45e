"""Explanations, and the steps that a job passes on its way to a runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

_FEWEST = 20
"""Least number of jobs that percentiles of their waits are given for."""


class WaitsFor(StrEnum):
    """Event that must happen before a job continues."""

    NOTHING = "nothing"
    ENVIRONMENT = "environment"
    POOL = "pool"
    ROUTING = "routing"
    ACCESS = "access"
    BUDGET = "budget"
    TIME = "time"
    GITHUB = "github"
    RESTORE = "restore"
    POD = "pod"
    MATCH = "match"
    STAMP = "stamp"
    MINT = "mint"
    DELIVERY = "delivery"
    START = "start"
    RELEASE = "release"
    END = "end"


class Source(StrEnum):
    """System that the facts of a check come from. Ostler's own rows are in Postgres.

    `pod` is the Pod itself: the exit codes of its containers.
    """

    GITHUB = "github"
    KUBERNETES = "kubernetes"
    POSTGRES = "postgres"
    POD = "pod"


class Step(StrEnum):
    """Step of a job on its way to a runner.

    - `environment`: GitHub lets the job go.
    - `records`: the rows about the job are current. They are not after a restore of Postgres.
    - `account`: an operator has allowed the job's account.
    - `pool`: exactly one pool serves the job best, and takes jobs.
    - `runner_group`: no known runner group refuses the repository.
    - `backoff`: no wait applies after a refusal by GitHub, or after runners that ended before the job began.
    - `runners`: the pool's runners execute jobs. GitHub chooses the jobs of persistent runners in this step.
    - `budget`: the account's budget has room for the job.
    - `pod`: the pool has a warm Pod.
    - `turn`: the matcher has chosen the job, and has made a claim.
    - `answer`: GitHub answers whether the job is over. Only a job with doubts about its result has this step.
    - `release`: the claim is released, and the job is then queued again. Only such a job has this step.
    - `stamp`: the Pod carries the labels of the claim.
    - `mint`: GitHub has made a configuration for the runner.
    - `delivery`: the Pod has fetched this configuration.
    - `start`: GitHub has reported that the runner executes the job.
    """

    ENVIRONMENT = "environment"
    RECORDS = "records"
    ACCOUNT = "account"
    POOL = "pool"
    RUNNER_GROUP = "runner_group"
    BACKOFF = "backoff"
    RUNNERS = "runners"
    BUDGET = "budget"
    POD = "pod"
    TURN = "turn"
    ANSWER = "answer"
    RELEASE = "release"
    STAMP = "stamp"
    MINT = "mint"
    DELIVERY = "delivery"
    START = "start"

    @property
    def source(self) -> Source:
        """Return the system that the facts of this step come from."""
        match self:
            case Step.ENVIRONMENT | Step.ANSWER | Step.RUNNER_GROUP | Step.BACKOFF | Step.MINT | Step.START:
                return Source.GITHUB
            case Step.RECORDS | Step.POD | Step.STAMP | Step.DELIVERY:
                return Source.KUBERNETES
            case _:
                return Source.POSTGRES


class Result(StrEnum):
    """Result of a check.

    - `passed`: the job has passed the step, or the check found no problem.
    - `waits`: the job cannot pass the step now, or the check found a problem. The first of these checks is the one that
      the explanation names.
    - `open`: the job has not reached the step, or nothing is known.
    """

    PASSED = "passed"
    WAITS = "waits"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Check:
    """The check of one step. `at` is the time at which the job passed the step, or None if it is not recorded."""

    step: Step
    result: Result
    evidence: str | None
    at: datetime | None
    source: Source


@dataclass(frozen=True, slots=True)
class Expected:
    """Waits of the jobs of a pool that began recently, for an estimate of another job's wait.

    `jobs` is the number of these jobs: executed jobs that were completed in the last hour, at most the newest 500, and
    only those of the accounts that the reader may see. The median `p50` and the 90th percentile `p90` are seconds from
    GitHub's `queued` to the begin of the execution. Both are None if there are fewer than 20 jobs.
    """

    jobs: int
    p50: float | None
    p90: float | None

    @classmethod
    def of(cls, jobs: int, p50: float | None, p90: float | None) -> Expected:
        """Return the waits of `jobs` jobs, without the percentiles if the jobs are too few for them."""
        return cls(jobs, p50, p90) if jobs >= _FEWEST else cls(jobs, None, None)

    def describe(self) -> str:
        """Return a sentence about the waits."""
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs" if self.jobs else "no jobs"
        if self.p50 is None or self.p90 is None:
            return f"Unknown, because {'only ' if self.jobs else ''}{jobs} of the last hour can be compared."
        return f"{self.p50:,.0f} s in the median, {self.p90:,.0f} s in the 90th percentile of {jobs} of the last hour."


@dataclass(frozen=True, slots=True)
class Explanation:
    """The event that a job waits for, a sentence about this event, and a cure or None.

    - `next_at`: the time at which Ostler tries again by itself, or None if the job waits for no time.
    - `ahead`: number of jobs of the same account and pool that come first, at most 1000. None if the job is held or not
      queued.
    - `expected`: recent waits of the job's pool. None if the job is not queued or has no pool.
    - `checks`: every step of the job in order. The list is empty if the job runs or is completed.
    """

    waits_for: WaitsFor
    summary: str
    cure: str | None = None
    next_at: datetime | None = None
    ahead: int | None = None
    expected: Expected | None = None
    checks: tuple[Check, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of a Pod, a pool or an account. `at` is the time of the evidence, or None if it is not recorded.

    `cure` is what a person can do about a problem, or None.
    """

    check: str
    result: Result
    evidence: str | None
    source: Source
    at: datetime | None = None
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The checks of a Pod, a pool or an account, in order. The first problem is the summary, with its cure or None."""

    summary: str
    cure: str | None
    checks: tuple[Finding, ...]

    @classmethod
    def of(cls, checks: Sequence[Finding], *, otherwise: str) -> Diagnosis:
        """Return the diagnosis of these checks. Without a problem, the summary is `otherwise`."""
        first = next((each for each in checks if each.result is Result.WAITS and each.evidence), None)
        if first is None or first.evidence is None:
            return cls(otherwise, None, tuple(checks))
        return cls(sentence(first.evidence), first.cure, tuple(checks))


def sentence(words: str) -> str:
    """Return words as a sentence: with a capital letter at the begin and a full stop at the end."""
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith((".", "!", "?")) else ".")
