"""Plan of a chaos run: each fault and its time, a pure function of the seed and of the number of jobs.

There are two kinds of faults. The faults of `Rates` meet random messages and calls. A strike is due when a given number
of jobs is over. The same seed therefore causes the same strikes at the same points of the work, at any speed of the
work.
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
"""Number of jobs after which each sort of strike comes again.

Once per `EVERY` jobs, one process, store or upstream is struck, one Pod vanishes, one job is cancelled, and one pool or
node is changed. That is one strike of each sort per 20 jobs. On real nodes, one kubelet or containerd is killed too.
"""

FREEZES = 2 * EVERY
"""Number of jobs per freeze of one process."""

FROZEN = (1.0, 25.0)
"""Shortest and longest freeze in seconds. Postgres ends an idle transaction after 30 seconds."""


class Blow(StrEnum):
    """Effect of a strike.

    Killed processes are restarted. Vanished Pods and deleted pools are created again. Outages, freezes, cordons, and
    scaled or paused pools end after some seconds. A flush of Redis, a cancelled job and the new image of a pool remain.
    """

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
    KUBELET_KILLED = "a kubelet is killed"
    CONTAINERD_KILLED = "a containerd is killed"


FOR_POOLS = (Blow.POOL_SCALED, Blow.POOL_ROLLED, Blow.POOL_PAUSED, Blow.POOL_DELETED, Blow.NODE_CORDONED)
"""Changes to pools and nodes, as people and autoscalers make them. Each occurs once before any change occurs twice."""

ON_REAL_NODES = (Blow.KUBELET_KILLED, Blow.CONTAINERD_KILLED)
"""Blows against real nodes, in turn."""

_OTHERS = {Blow.POD_VANISHES, Blow.JOB_CANCELLED, Blow.FREEZE, *FOR_POOLS, *ON_REAL_NODES}
AGAINST_US = tuple(blow for blow in Blow if blow not in _OTHERS)
"""Blows against processes, stores and upstreams. Each blow occurs once before any blow occurs twice."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Share of all messages and calls that meet a fault of each kind.

    Webhooks are lost, never sent, doubled, or so late that later webhooks overtake them. `mints` is the share of mints
    whose reply is lost. `github` and `kubernetes` are the shares of calls that get an error status, a reset
    connection or a truncated answer.
    `lists` is the share of runners that are missing from a list of GitHub.
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
"""Largest delay of a late webhook in seconds."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow, due when `after` jobs are over.

    `dice` (0 to 1) chooses the target. `seconds` is the time until the target comes back.
    """

    after: int
    blow: Blow
    dice: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """All faults and strikes of one run."""

    seed: int
    jobs: int
    rates: Rates
    strikes: Sequence[Strike]

    def github(self) -> FaultPlan:
        """Return the faults on Ostler's calls to GitHub."""
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
        """Return the faults on Ostler's calls to the API server."""
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
        """Yield the plan as lines of text. Equal plans have equal lines."""
        yield f"seed {self.seed}, {self.jobs} jobs"
        yield from (f"{name}: {share:.1%}" for name, share in asdict(self.rates).items())
        for name, plan in (("GitHub", self.github()), ("API server", self.kubernetes())):
            yield from (f"{name}: {json.dumps(fault, sort_keys=True)}" for fault in plan.dump()["faults"])
        for strike in self.strikes:
            yield f"after {strike.after} jobs: {strike.blow} (dice {strike.dice:.3f}, {strike.seconds:.1f} s)"


def make_plan(
    *, seed: int, jobs: int, rates: Rates | None = None, every: int = EVERY, real_nodes: bool = False
) -> ChaosPlan:
    """Return the plan of a seed. `every` is the number of jobs per strike of each sort.

    With `real_nodes`, kubelets and containerds are killed too.
    """
    strikes = tuple(_strikes(seed, jobs, every, real_nodes=real_nodes))
    return ChaosPlan(seed=seed, jobs=jobs, rates=rates or Rates(), strikes=strikes)


def _strikes(seed: int, jobs: int, every: int, *, real_nodes: bool) -> list[Strike]:
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
    found += [*_for_pools(seed, jobs, every), *_freezes(seed, jobs)]
    if real_nodes:
        found += _on_real_nodes(seed, jobs, every)
    return sorted(found, key=lambda strike: strike.after)


def _on_real_nodes(seed: int, jobs: int, every: int) -> Iterator[Strike]:
    """Yield the blows against real nodes. Separate random numbers keep the other strikes of a seed unchanged."""
    dice = random.Random(f"nodes/{seed}")
    for number, first in enumerate(range(0, jobs, every)):
        after = first + dice.randrange(min(every, jobs - first))
        blow = ON_REAL_NODES[number % len(ON_REAL_NODES)]
        yield Strike(after, blow, round(dice.random(), 3), round(dice.uniform(0.5, 15), 1))


def _for_pools(seed: int, jobs: int, every: int) -> Iterator[Strike]:
    """Yield the changes to pools and nodes. Separate random numbers keep the other strikes of a seed unchanged."""
    dice = random.Random(f"pools/{seed}")
    deck: list[Blow] = []
    for first in range(0, jobs, every):
        deck = deck or dice.sample(FOR_POOLS, len(FOR_POOLS))
        after = first + dice.randrange(min(every, jobs - first))
        yield Strike(after, deck.pop(), round(dice.random(), 3), round(dice.uniform(5, 15), 1))


def _freezes(seed: int, jobs: int) -> Iterator[Strike]:
    """Yield the freezes. Separate random numbers keep the other strikes of a seed unchanged."""
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
    """Return a fault that refuses a call with a `Status` object like that of the API server."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "code": int(status),
        "message": "this answer is a fault that the lab injects",
    }
    return Fault(
        kind="status",
        status=status,
        method_regex=method_regex,
        probability=probability,
        body=json.dumps(body),
        headers={"Content-Type": "application/json", **(headers or {})},
    )
