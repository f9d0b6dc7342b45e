"""A whole roll of a pool on nodes with room for a fixed number of Pods, in ticks of a reconciler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from rules.pools.pod_states import PodState
from rules.pools.pool_plan import ObservedPod, PoolPlan, plan, rolls
from rules.pools.pool_status import StatusFacts, conditions_of
from rules.pools.starts import NOTHING_YET, Starts, Trouble, accepted, over_quota, recovered
from tests.unit.rules.pool_strategies import SPEC, pool

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
TICK, STARTS_IN, ENDS_IN = 10, 20, 10
"""Seconds between two reconciles, from a node's acceptance to the first poll, and from a retirement to the end."""


@dataclass
class Pod:
    """A Pod of the simulation. Times are seconds since the start."""

    id: int
    created: int
    stale: bool = False
    busy: bool = False
    placed: int | None = None
    polled: int | None = None
    retired: int | None = None

    @property
    def state(self) -> PodState:
        if self.retired is not None:
            return PodState.RETIRING
        if self.busy:
            return PodState.BUSY
        return PodState.STARTING if self.polled is None else PodState.WARM


@dataclass
class Cluster:
    """A pool whose template has just changed. `room` is the number of Pods that its nodes or quota accept.

    It is a function of the time.
    """

    replicas: int
    room: Callable[[int], int]
    surge: int | None = None
    percent: int = 10
    quota: bool = False
    busy: int = 0
    start_timeout: float = 300.0
    starts: Starts = NOTHING_YET
    made: PoolPlan | None = None
    seconds: int = 0
    pods: list[Pod] = field(default_factory=list)
    fewest_warm: list[int] = field(default_factory=list)
    """Warm Pods after each tick."""

    def __post_init__(self) -> None:
        self.pods = [
            Pod(number, -9999, stale=True, busy=number < self.busy, placed=-9999, polled=-9999)
            for number in range(self.replicas)
        ]

    @property
    def warm(self) -> int:
        return sum(pod.state is PodState.WARM for pod in self.pods)

    @property
    def over(self) -> bool:
        fresh = [pod for pod in self.pods if not pod.stale and pod.state is PodState.WARM]
        return len(fresh) == self.replicas - self.busy and len(self.pods) == self.replicas

    def roll(self, *, until: int = 20_000) -> int:
        """Run the roll to its end, and return its duration in seconds."""
        while not self.over:
            self.tick()
            assert self.seconds < until, "the roll does not come to its end"
        return self.seconds

    def tick(self) -> None:
        """Let ten seconds pass: first the work of Kubernetes, then one reconcile."""
        self.seconds += TICK
        now = BEGUN + timedelta(seconds=self.seconds)
        self.pods = [pod for pod in self.pods if pod.retired is None or self.seconds - pod.retired < ENDS_IN]
        for pod in self.pods:
            placed = sum(each.placed is not None for each in self.pods)
            if pod.placed is None and placed < self.room(self.seconds):
                pod.placed = self.seconds
            if pod.placed is not None and pod.polled is None and self.seconds - pod.placed >= STARTS_IN:
                pod.polled = self.seconds
        observed = [self._observe(pod) for pod in self.pods]
        polls = [BEGUN + timedelta(seconds=pod.polled) for pod in self.pods if pod.polled is not None and not pod.stale]
        given = pool(
            self.replicas,
            max_surge=self.surge,
            max_unavailable_percent=self.percent,
            start_timeout=self.start_timeout,
        )
        going = rolls(given.pool, observed, now=now)
        given = replace(given, starts=recovered(self.starts, first_polls=polls, rolls=going))
        made = plan(given, observed, most=50, now=now)
        self.made, self.starts = made, made.starts
        for each in made.retire:
            pod = next(pod for pod in self.pods if pod.id == each.id)
            assert not pod.busy
            pod.retired = self.seconds
        for _ in range(made.create):
            if self.quota and len(self.pods) >= self.room(self.seconds):
                self.starts = over_quota(self.starts, detail="pods: all used")
                break
            self.starts = accepted(self.starts)
            self.pods.append(Pod(len(self.pods) + self.seconds * 100, self.seconds))
        self.fewest_warm.append(self.warm)

    def _observe(self, pod: Pod) -> ObservedPod:
        created = BEGUN + timedelta(seconds=pod.created)
        return ObservedPod(
            id=pod.id,
            state=pod.state,
            created_at=created,
            generation=created,
            stale=pod.stale,
            unschedulable=pod.placed is None,
        )


def full(replicas: int) -> Callable[[int], int]:
    return lambda _: replicas


@pytest.mark.parametrize("quota", [False, True], ids=["nodes", "quota"])
def test_roll_of_ten_on_full_nodes_takes_half_as_long_again_at_most(quota: bool) -> None:
    without = Cluster(10, full(10), surge=0).roll()

    rolled = Cluster(10, full(10), quota=quota)

    assert rolled.roll() <= 1.5 * without
    assert min(rolled.fewest_warm) >= 9


def test_long_roll_on_full_nodes_takes_half_as_long_again_at_most() -> None:
    without = Cluster(60, full(60), surge=0, percent=1).roll()

    assert Cluster(60, full(60), percent=1).roll() <= 1.5 * without


def test_surge_is_used_again_when_a_node_is_added() -> None:
    cluster = Cluster(60, lambda seconds: 60 if seconds < 300 else 70, percent=1)
    cluster.roll()

    assert min(cluster.fewest_warm) == 59
    assert min(cluster.fewest_warm[-60:]) == 60, "the last ten minutes of the roll had all Pods"


@pytest.mark.parametrize("replicas", [1, 10])
def test_pool_on_nodes_with_room_misses_no_pod_while_it_rolls(replicas: int) -> None:
    cluster = Cluster(replicas, full(replicas + 1))
    cluster.roll()

    assert min(cluster.fewest_warm) == replicas


def test_surge_above_the_share_rolls_as_many_at_a_time_and_misses_no_pod() -> None:
    by_default, larger = Cluster(10, full(100)), Cluster(10, full(100), surge=5)

    assert larger.roll() * 4 < by_default.roll()
    assert min(larger.fewest_warm) == 10


def test_last_warm_pod_goes_first_only_after_the_whole_start_timeout() -> None:
    cluster = Cluster(10, full(10), busy=9)
    while cluster.seconds <= 300:
        cluster.tick()
    assert min(cluster.fewest_warm) == 1

    assert cluster.roll() <= 400


def test_node_that_comes_within_the_wait_keeps_all_pods() -> None:
    cluster = Cluster(10, lambda seconds: 10 if seconds < 80 else 11)
    cluster.roll()

    assert min(cluster.fewest_warm) == 10


def test_node_that_comes_within_the_start_timeout_keeps_the_only_warm_pod() -> None:
    cluster = Cluster(1, lambda seconds: 1 if seconds < 250 else 2)
    cluster.roll()

    assert min(cluster.fewest_warm) == 1


def test_missing_room_is_a_memory_of_the_roll_and_no_failure() -> None:
    cluster = Cluster(10, full(10))
    while cluster.starts == NOTHING_YET:
        cluster.tick()
    assert (cluster.starts.trouble, cluster.starts.failures) == (Trouble.UNSCHEDULABLE, 0)
    assert cluster.starts.without_surge

    cluster.roll()
    cluster.tick()

    assert cluster.starts == NOTHING_YET


def test_conditions_say_that_a_roll_on_full_nodes_goes_on_without_surge() -> None:
    cluster = Cluster(10, full(10))
    while not cluster.starts.without_surge:
        cluster.tick()

    assert told(cluster, "Degraded") == (
        "False",
        "NoRoomToSurge",
        "Rolling without surge: no node has room for one more Pod; an old Pod is retired before a new one is created",
    )
    assert told(cluster, "Ready")[:2] == ("True", "PodsAvailable")

    cluster.roll()
    cluster.tick()

    assert told(cluster, "Degraded")[1] == "AsExpected"


def told(cluster: Cluster, kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition after the last tick."""
    assert cluster.made is not None
    found = conditions_of(StatusFacts(pool=SPEC, selector=""), cluster.made, now=BEGUN)
    return next((each.status, each.reason, each.message) for each in found if each.type == kind)


def test_roll_makes_no_pod_in_advance_while_a_successor_finds_no_node() -> None:
    """No node accepts the template, so its Pod must become old enough to count as a failed start."""
    cluster = Cluster(10, lambda _: 0, start_timeout=3600)
    for _ in range(400):
        cluster.tick()

    assert cluster.starts.failures == 1
    assert min(cluster.fewest_warm) == 9


def test_memory_of_full_nodes_takes_no_last_warm_pod() -> None:
    cluster = Cluster(10, full(10))
    while not cluster.starts.without_surge:
        cluster.tick()
    for _ in range(20):
        last = next(pod for pod in cluster.pods if pod.stale and pod.state is PodState.WARM)
        for pod in cluster.pods:
            pod.busy = pod is not last and pod.retired is None and pod.placed is not None
        cluster.tick()

        assert cluster.warm == 1


def test_quota_that_is_used_up_is_told_in_a_roll_on_full_nodes() -> None:
    cluster = Cluster(10, full(10))
    while not cluster.starts.without_surge:
        cluster.tick()

    starts = over_quota(cluster.starts, detail="pods: all used")

    assert (starts.trouble, starts.detail, starts.failed_at) == (Trouble.QUOTA, "pods: all used", None)
