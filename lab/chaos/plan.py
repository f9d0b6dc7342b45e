"""Plan of a chaos run: each failure and its time, a pure function of the seed and of the number of jobs.

There are two kinds of failures. Any message or call may meet a fault, at a rate of `Rates`. A strike is due when a
number of jobs are over. The same seed therefore causes the same failures at the same points of the work, however fast
it runs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from http import HTTPStatus

from lab.faults import Fault, FaultPlan

EVERY = 20
"""Number of jobs per strike of each sort.

For this many jobs, one process, store or upstream is struck, one Pod vanishes, one job is cancelled, and one pool or
node is changed. That is 5 % of the jobs.
"""

FREEZES = 2 * EVERY
"""Number of jobs per frozen process. A process is frozen for about half of the time that these jobs take."""

FROZEN = (1.0, 25.0)
"""Shortest and longest time in seconds that a process is frozen. Postgres ends an idle transaction after 30 seconds."""


class Blow(StrEnum):
    """Effect of a strike. Killed processes are started again, and outages end."""

    KILL_WORKER = "kill a worker"
    KILL_WEB = "kill web"
    KILL_BEAT = "kill a beat"
    KILL_WATCH = "kill the watch"
    FLUSH_REDIS = "flush Redis"
    RESTART_POSTGRES = "restart Postgres"
    GITHUB_GONE = "GitHub is gone"
    KUBERNETES_GONE = "the API server is gone"
    POD_VANISHES = "a Pod vanishes"
    JOB_CANCELLED = "a job is cancelled"
    FREEZE = "a web or worker process is frozen inside a transaction"
    POOL_SCALED = "a pool is scaled to half"
    POOL_ROLLED = "a pool's image changes"
    POOL_PAUSED = "a pool is paused"
    POOL_DELETED = "a pool is deleted, and made again"
    NODE_CORDONED = "the node is cordoned"


FOR_POOLS = (Blow.POOL_SCALED, Blow.POOL_ROLLED, Blow.POOL_PAUSED, Blow.POOL_DELETED, Blow.NODE_CORDONED)
"""Changes of pools and nodes that people and autoscalers make. Each is made once before any is made twice."""

AGAINST_US = tuple(
    blow for blow in Blow if blow not in {Blow.POD_VANISHES, Blow.JOB_CANCELLED, Blow.FREEZE, *FOR_POOLS}
)
"""Strikes against processes, stores and upstreams. Each is made once before any is made twice."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Share of the messages and calls that meet a fault of each kind.

    Webhooks are lost, never sent, sent twice, or sent late. `mints`: the answer of a mint is lost. `github`,
    `kubernetes`: a call fails in one of the ways that the proxy supports. `lists`: a runner is missing from a list of
    GitHub.
    """

    webhooks_lost: float = 0.05
    webhooks_never_sent: float = 0.01
    webhooks_doubled: float = 0.05
    webhooks_late: float = 0.05
    mints: float = 0.05
    github: float = 0.05
    kubernetes: float = 0.05
    lists: float = 0.05


LATEST = 10.0
"""Longest delay in seconds of a late webhook."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One strike, due when `after` jobs are over.

    `dice` (0 to 1) chooses the target. `seconds` is the time until the target recovers.
    """

    after: int
    blow: Blow
    dice: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """All failures of one run."""

    seed: int
    jobs: int
    rates: Rates
    strikes: Sequence[Strike]

    def github(self) -> FaultPlan:
        """Return the faults of Ostler's calls to GitHub."""
        each = self.rates.github / 5
        slow_down = {"Retry-After": "1"}
        return FaultPlan(
            [
                Fault(
                    kind="reset_after",
                    method_regex="POST",
                    path_regex=".*generate-jitconfig.*",
                    probability=self.rates.mints,
                ),
                Fault(kind="status", status=HTTPStatus.INTERNAL_SERVER_ERROR, probability=each),
                Fault(kind="status", status=HTTPStatus.TOO_MANY_REQUESTS, headers=slow_down, probability=each),
                *(Fault(kind=kind, probability=each) for kind in ("reset_before", "reset_after", "truncate")),
            ],
            seed=self.seed,
        )

    def kubernetes(self) -> FaultPlan:
        """Return the faults of Ostler's calls to the API server."""
        each = self.rates.kubernetes / 6
        return FaultPlan(
            [
                _refusal(HTTPStatus.CONFLICT, "Conflict", each, method_regex="POST|PATCH|PUT|DELETE"),
                _refusal(HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequests", each, headers={"Retry-After": "1"}),
                _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", each),
                *(Fault(kind=kind, probability=each) for kind in ("reset_before", "reset_after", "truncate")),
            ],
            seed=self.seed + 1,
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines that describe the plan. Equal plans have equal lines."""
        yield f"seed {self.seed}, {self.jobs} jobs"
        yield from (f"{name}: {share:.1%}" for name, share in asdict(self.rates).items())
        for name, plan in (("GitHub", self.github()), ("API server", self.kubernetes())):
            yield from (f"{name}: {json.dumps(fault, sort_keys=True)}" for fault in plan.dump()["faults"])
        for strike in self.strikes:
            yield f"after {strike.after} jobs: {strike.blow} (dice {strike.dice:.3f}, {strike.seconds:.1f} s)"


def make_plan(*, seed: int, jobs: int, rates: Rates | None = None, every: int = EVERY) -> ChaosPlan:
    """Return the plan of a seed."""
    return ChaosPlan(seed=seed, jobs=jobs, rates=rates or Rates(), strikes=tuple(_strikes(seed, jobs, every)))


def _strikes(seed: int, jobs: int, every: int) -> list[Strike]:
    dice = random.Random(f"strikes/{seed}")
    found: list[Strike] = []
    deck: list[Blow] = []
    for first in range(0, jobs, every):
        window = min(every, jobs - first)
        if not deck:
            deck = dice.sample(AGAINST_US, len(AGAINST_US))
        for blow in (deck.pop(), Blow.POD_VANISHES, Blow.JOB_CANCELLED):
            seconds = dice.uniform(4, 8) if blow in {Blow.GITHUB_GONE, Blow.KUBERNETES_GONE} else dice.uniform(0.5, 3)
            found.append(Strike(first + dice.randrange(window), blow, round(dice.random(), 3), round(seconds, 1)))
    return sorted([*found, *_for_pools(seed, jobs, every), *_freezes(seed, jobs)], key=lambda strike: strike.after)


def _for_pools(seed: int, jobs: int, every: int) -> Iterator[Strike]:
    """Yield the changes of pools and nodes.

    Their dice are separate, so that they do not change the other strikes of a seed.
    """
    dice = random.Random(f"pools/{seed}")
    deck: list[Blow] = []
    for first in range(0, jobs, every):
        deck = deck or dice.sample(FOR_POOLS, len(FOR_POOLS))
        after = first + dice.randrange(min(every, jobs - first))
        yield Strike(after, deck.pop(), round(dice.random(), 3), round(dice.uniform(5, 15), 1))


def _freezes(seed: int, jobs: int) -> Iterator[Strike]:
    """Yield the freezes. Their dice are separate, so that they do not change the other strikes of a seed."""
    dice = random.Random(f"freezes/{seed}")
    for first in range(0, jobs, FREEZES):
        strike = Strike(
            first + dice.randrange(FREEZES), Blow.FREEZE, round(dice.random(), 3), round(dice.uniform(*FROZEN), 1)
        )
        if strike.after < jobs:
            yield strike


def _refusal(
    status: HTTPStatus,
    reason: str,
    probability: float,
    *,
    method_regex: str = ".*",
    headers: dict[str, str] | None = None,
) -> Fault:
    """Return a fault that refuses a call in the format of the API server."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "code": int(status),
        "message": "a fault of the lab",
    }
    return Fault(
        kind="status",
        status=status,
        method_regex=method_regex,
        probability=probability,
        body=json.dumps(body),
        headers={"Content-Type": "application/json", **(headers or {})},
    )
