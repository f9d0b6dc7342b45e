"""Brakes for pools whose runners never execute: the time when dispatch is braked, and the time of each probe.

A failure is a Pod that got a JIT and then ended, or whose runner never appeared, while its job stayed queued at GitHub.
The runner is then too old, its image is broken, or it cannot reach GitHub. The rule reads the consecutive failures of
the pool's present template since the last execution.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rules.claims.pod_ends import How

FEWEST_JOBS = 3
FEWEST_PODS = 2
"""Fewest different jobs and fewest different Pods that must fail before a pool, or an account in it, is braked."""

FIRST_WAIT = 10.0
LONGEST_WAIT = 300.0
"""Seconds. `FIRST_WAIT` is the wait before the first probe.

Each failed probe doubles the wait, up to `LONGEST_WAIT`.
"""

PROBE_LASTS = timedelta(minutes=15)
"""Longest age of a probe.

The runner of an older claim only waits for a job, so the claim counts as no probe any more.
"""

TOO_OLD = 7
"""Exit code of a runner whose version GitHub refuses. `poller/run.sh` makes the runner use it."""

JOB_TRIES = 3
ASIDE = timedelta(hours=1)
"""A job that failed on `JOB_TRIES` Pods is set aside. It is tried once after each period of `ASIDE`."""

ENDED_BEFORE_IT = "ended before it began"
"""Phrase in the hold detail of a job that was set aside after failures. It selects the explanation of the job."""

_TAKEN_AWAY = frozenset({How.DELETED, How.EVICTED, How.PREEMPTED, How.NODE})


@dataclass(frozen=True, slots=True)
class Failure:
    """A Pod with a delivery that never executed a job. `claimed_at` is the time of its claim.

    `why` describes its end.
    """

    pod_uid: str
    job_id: int
    account_id: int
    claimed_at: datetime
    at: datetime
    exit_code: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Brake:
    """A restriction of dispatch to one probe at a time. `account_id` is the braked account, or None for the whole pool.

    - `since`: start of the brake.
    - `last_at`: time of the last failure that counted.
    - `probe_at`: earliest time of the next claim.
    - `jobs`, `pods`: numbers of different jobs and Pods that failed.
    - `exit_code`, `why`: exit code and description of the latest failure.
    - `accounts`: the accounts with failures, ordered by their latest failure.
    - `tells_last`: whether the reader may see how the latest failure ended.
    """

    account_id: int | None
    since: datetime
    last_at: datetime
    probe_at: datetime
    jobs: int
    pods: int
    exit_code: int | None
    why: str
    accounts: tuple[int, ...] = ()
    tells_last: bool = True

    def seen_by(self, accounts: Collection[int] | None) -> Brake:
        """Return the brake for a reader who may see only these accounts, or all accounts if `accounts` is None.

        The end of another account's runner is hidden. The fact that the pool's runners do not start is always shown.
        """
        if accounts is None or (self.accounts and self.accounts[-1] in accounts):
            return self
        return replace(self, tells_last=False)

    @property
    def too_old(self) -> bool:
        """Return whether GitHub refuses the version of the runner."""
        return self.exit_code == TOO_OLD

    def describe(self) -> str:
        """Return a clause that describes the problem."""
        ended = f"{self.pods} {'runner' if self.pods == 1 else 'runners'} in a row ended without a job"
        if self.too_old:
            code = f" (exit code {TOO_OLD})" if self.tells_last else ""
            return f"GitHub refuses the version of its runner as too old{code}; {ended}"
        if not self.tells_last:
            return ended
        code = "" if self.exit_code is None else f"exit code {self.exit_code}, "
        return f"{ended}; the last one: {code}{self.why}"


def counts(how: How) -> bool:
    """Return whether a Pod with this end counts as a failure.

    If another client removed the Pod, its end is no failure.
    """
    return how not in _TAKEN_AWAY


def wait_seconds(step: int) -> float:
    """Return the seconds to wait before the probe that follows `step` counted failures."""
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(max(0, step - 1), 10))


def brake_of(failures: Sequence[Failure]) -> Brake | None:
    """Return the brake that results from the consecutive failures of a pool, or None.

    If all failures are of one account, only this account is braked, unless GitHub refuses the version of the runner. A
    claim that was made before the last counted failure was under way already, so its failure does not double the wait.
    If the brake of an account becomes the brake of the pool, the wait starts again at its first length. The other
    accounts therefore do not inherit a long wait.
    """
    jobs: set[int] = set()
    pods: set[str] = set()
    latest: dict[int, datetime] = {}
    old = pool_wide = False
    since = last_at = None
    step = 0
    ordered = sorted(failures, key=lambda failure: failure.at)
    for failure in ordered:
        jobs.add(failure.job_id)
        pods.add(failure.pod_uid)
        latest[failure.account_id] = failure.at
        old |= failure.exit_code == TOO_OLD
        widened = not pool_wide and (old or len(latest) > 1)
        pool_wide |= widened
        if since is None or last_at is None:
            if old or (len(jobs) >= FEWEST_JOBS and len(pods) >= FEWEST_PODS):
                since, last_at, step = failure.at, failure.at, 1
        elif widened:
            since, last_at, step = failure.at, failure.at, 1
        elif failure.claimed_at > last_at:
            last_at, step = failure.at, step + 1
    if since is None or last_at is None:
        return None
    newest = ordered[-1]
    return Brake(
        account_id=None if pool_wide else newest.account_id,
        since=since,
        last_at=last_at,
        probe_at=last_at + timedelta(seconds=wait_seconds(step)),
        jobs=len(jobs),
        pods=len(pods),
        exit_code=newest.exit_code,
        why=newest.why,
        accounts=tuple(sorted(latest, key=lambda account: (latest[account], account == newest.account_id))),
    )
