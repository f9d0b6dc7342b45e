"""Brakes for pools whose runners never execute: the start of a brake, and the time of each probe.

A probe is the one claim that a braked pool or account gets. It tests whether the runners execute jobs again.

A failure is a Pod that got a JIT and never executed a job, while the job stayed queued at GitHub. Either the Pod ended,
or the Pod's runner never appeared. Usual causes are a runner that is too old, a broken image, and a runner that cannot
reach GitHub. The brake depends on the consecutive failures since the last execution. Only failures of the pool's
present template count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rules.claims.pod_ends import How

FEWEST_JOBS = 3
FEWEST_PODS = 2
"""`FEWEST_JOBS` different jobs and `FEWEST_PODS` different Pods must fail before a pool or an account is braked.

If GitHub refuses the version of the runner, one failure is enough.
"""

FIRST_WAIT = 10.0
LONGEST_WAIT = 300.0
"""Longest wait before a probe in seconds. `FIRST_WAIT` is the wait before the first probe.

Each failed probe doubles the wait, up to `LONGEST_WAIT`.
"""

PROBE_LASTS = timedelta(minutes=15)
"""Maximum age of a probe.

The runner of an older claim only waits for a job. An older claim therefore does not test the pool any more.
"""

LONGEST_DISPUTED_WAIT = 40.0
"""Longest wait before a probe in seconds while GitHub refuses a runner version that its own list accepts.

GitHub is then expected to accept the runners again soon, without a change of the pool.
"""

TOO_OLD = 7
"""Exit code of a runner whose version GitHub refuses. `poller/run.sh` makes the runner exit with this code."""

JOB_TRIES = 3
ASIDE = timedelta(hours=1)
"""Time between two tries of a job that is set aside. A job is set aside after failures on `JOB_TRIES` Pods."""

ENDED_BEFORE_IT = "ended before it began"
"""Phrase in the hold detail of a job that was set aside after failures.

`rules.waiting.held` selects the explanation of the job by this phrase.
"""

_TAKEN_AWAY = frozenset({How.DELETED, How.EVICTED, How.PREEMPTED, How.NODE})


@dataclass(frozen=True, slots=True)
class Failure:
    """A Pod that got a JIT and never executed a job.

    `claimed_at` is the time of the Pod's claim. `at` is the time of the failure. `why` describes the end of the Pod.
    """

    pod_uid: str
    job_id: int
    account_id: int
    claimed_at: datetime
    at: datetime
    exit_code: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """A runner version, and the time until which GitHub's list of versions accepts it."""

    version: str
    until: datetime

    def describe(self) -> str:
        """Return the clause about a version that GitHub nevertheless refuses."""
        return (
            f"but GitHub's own list accepts version {self.version} until {self.until:%Y-%m-%d}, so this looks like an "
            "incident at GitHub"
        )


@dataclass(frozen=True, slots=True)
class Brake:
    """A limit of one claim at a time. `account_id` is the braked account, or None if the whole pool is braked.

    - `since`: start of the brake.
    - `last_at`: time of the last failure that began or changed the wait. The wait starts at this time.
    - `probe_at`: earliest time of the next claim.
    - `jobs`, `pods`: numbers of different jobs and Pods that failed.
    - `exit_code`, `why`: exit code and description of the latest failure.
    - `accounts`: the accounts with failures. The account with the latest failure comes last.
    - `tells_last`: the reader may see the details of the latest failure.
    - `accepted`: the runner version that GitHub refuses, and the end of the time in which GitHub's own list accepts it.
      None if GitHub's list is not known or agrees.
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
    accepted: Accepted | None = None

    def seen_by(self, accounts: Collection[int] | None) -> Brake:
        """Return the brake for a reader who can see only `accounts`. None means all accounts.

        If the latest failure is not of one of these accounts, the details of the failure are hidden. The fact that the
        pool's runners do not start is always shown.
        """
        if accounts is None or (self.accounts and self.accounts[-1] in accounts):
            return self
        return replace(self, tells_last=False)

    @property
    def too_old(self) -> bool:
        """Return whether GitHub refuses the version of the runner."""
        return self.exit_code == TOO_OLD

    def describe(self) -> str:
        """Return a clause about the failures that caused the brake."""
        ended = f"{self.pods} {'runner' if self.pods == 1 else 'runners'} in a row ended without a job"
        if self.too_old:
            code = f" (exit code {TOO_OLD})" if self.tells_last else ""
            but = "" if self.accepted is None else f", {self.accepted.describe()}"
            return f"GitHub refuses the version of the runner as too old{code}{but}; {ended}"
        if not self.tells_last:
            return ended
        code = "" if self.exit_code is None else f"exit code {self.exit_code}, "
        return f"{ended}; the last runner: {code}{self.why}"


def counts(how: How) -> bool:
    """Return whether a Pod that ended in this way counts as a failure.

    If another client or the cluster removed the Pod, the Pod does not count as a failure.
    """
    return how not in _TAKEN_AWAY


def wait_seconds(step: int, *, longest: float = LONGEST_WAIT) -> float:
    """Return the seconds to wait before the next probe after `step` counted failures."""
    return min(longest, FIRST_WAIT * 2.0 ** min(max(0, step - 1), 10))


def brake_of(failures: Sequence[Failure], *, accepted: Accepted | None = None) -> Brake | None:
    """Return the brake that results from the consecutive failures of a pool, or None if there is no reason for a brake.

    If all failures are of one account, only this account is braked. There is one exception: if GitHub refuses the
    version of the runner, the whole pool is braked. A failure doubles the wait only if the claim of its Pod was made
    after `last_at`. Earlier claims were not probes of this wait. If the brake of an account becomes the brake of the
    pool, the wait starts again at `FIRST_WAIT`. The other accounts therefore do not inherit a long wait.

    `accepted`: the runner version of the pool, and until when GitHub's list accepts it.
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
    disputed = accepted if newest.exit_code == TOO_OLD and accepted is not None and accepted.until > newest.at else None
    longest = LONGEST_WAIT if disputed is None else LONGEST_DISPUTED_WAIT
    return Brake(
        account_id=None if pool_wide else newest.account_id,
        since=since,
        last_at=last_at,
        probe_at=last_at + timedelta(seconds=wait_seconds(step, longest=longest)),
        jobs=len(jobs),
        pods=len(pods),
        exit_code=newest.exit_code,
        why=newest.why,
        accounts=tuple(sorted(latest, key=lambda account: (latest[account], account == newest.account_id))),
        accepted=disputed,
    )
