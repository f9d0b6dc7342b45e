"""Brakes for pools whose runners never execute: when a pool or an account is braked, and when a probe may go.

A failure is a Pod that was given a JIT and ended, or whose runner never came, while its job was still queued at GitHub:
the runner is too old, its image is broken, or it does not reach GitHub. What is read are the failures in a row of the
pool's present template, since the last execution.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rules.claims.pod_ends import How

FEWEST_JOBS = 3
FEWEST_PODS = 2
"""So many jobs have failed on so many Pods before a pool, or an account in it, is braked."""

FIRST_WAIT = 10.0
LONGEST_WAIT = 300.0
"""Seconds before the first probe, doubled by every probe that fails, and the longest."""

PROBE_LASTS = timedelta(minutes=15)
"""A claim that is older is no probe any more: its runner waits for GitHub to give it a job."""

TOO_OLD = 7
"""Exit code of a runner whose version GitHub refuses, where it was asked for (`poller/run.sh`)."""

JOB_TRIES = 3
ASIDE = timedelta(hours=1)
"""A job on which so many Pods have failed is set aside, and tried once after each such time."""

ENDED_BEFORE_IT = "ended before it began"
"""Words in the hold detail of such a job, by which its explanation is told from others that are set aside."""

_TAKEN_AWAY = frozenset({How.DELETED, How.EVICTED, How.PREEMPTED, How.NODE})


@dataclass(frozen=True, slots=True)
class Failure:
    """A delivered Pod that never executed. `claimed_at`: when its claim was made; `why`: the end of it, in words."""

    pod_uid: str
    job_id: int
    account_id: int
    claimed_at: datetime
    at: datetime
    exit_code: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Brake:
    """Dispatch that is held back, of a whole pool or of one account in it (`account_id`).

    `since`: when it was braked; `last_at`: the last failure that counted; `probe_at`: when one claim may be made.
    `accounts`: the accounts that have failures, the one with the latest failure last. `tells_last`: whoever reads it
    may see how the latest failure ended.
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
        """Return the brake as somebody may read it who sees these accounts alone (None: all).

        How a runner of another account ended is not theirs. That the pool's runners do not start is.
        """
        if accounts is None or (self.accounts and self.accounts[-1] in accounts):
            return self
        return replace(self, tells_last=False)

    @property
    def too_old(self) -> bool:
        """Whether GitHub refuses the version of the runner."""
        return self.exit_code == TOO_OLD

    def describe(self) -> str:
        """Return what is wrong, in one clause."""
        ended = f"{self.pods} {'runner' if self.pods == 1 else 'runners'} in a row ended without a job"
        if self.too_old:
            code = f" (exit code {TOO_OLD})" if self.tells_last else ""
            return f"GitHub refuses the version of its runner as too old{code}; {ended}"
        if not self.tells_last:
            return ended
        code = "" if self.exit_code is None else f"exit code {self.exit_code}, "
        return f"{ended}; the last one: {code}{self.why}"


def counts(how: How) -> bool:
    """Return whether a Pod that ended so says anything about its runner; one that somebody took away does not."""
    return how not in _TAKEN_AWAY


def wait_seconds(step: int) -> float:
    """Return the wait before the probe that follows so many counted failures."""
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(max(0, step - 1), 10))


def brake_of(failures: Sequence[Failure]) -> Brake | None:
    """Return the brake that the failures in a row of a pool amount to, or None.

    Failures of one account alone brake that account, unless the version of the runner is refused. What was claimed
    before the last failure that counted doubles nothing: it was under way already. When the brake of an account becomes
    that of the pool, it begins anew: the other accounts do not inherit a long wait.
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
