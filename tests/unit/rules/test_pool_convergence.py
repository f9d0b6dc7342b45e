"""Repeated plans: every state of a pool reaches the wanted number of fresh Pods, and stays there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from rules.pools.pod_states import PodState
from rules.pools.pool_plan import IDLE, ObservedPod, PlanFacts, PoolPlan, plan, rolls
from rules.pools.starts import IMAGE_REFUSED, NOTHING_YET, Starts, Trouble, accepted, recovered
from tests.unit.rules.pool_strategies import NOW, pods_of, pools_of

TICK = timedelta(seconds=10)
MOST = 50
LIMIT = 3000
"""Ticks within which a pool of 60 Pods converges, although it replaces one Pod at a time and loses most reconciles."""

STARTS = (
    NOTHING_YET,
    Starts(failures=3, failed_at=NOW, create_after=NOW + timedelta(minutes=5), trouble=Trouble.IMAGE),
    Starts(failures=1, failed_at=NOW, create_after=NOW, trouble=Trouble.UNSCHEDULABLE),
    Starts(failed_at=NOW, trouble=Trouble.UNSCHEDULABLE),
    Starts(trouble=Trouble.QUOTA),
)


@dataclass
class World:
    """A pool whose Pods change by themselves. No webhook and no event of the watch ever arrives.

    `lasts`: ticks that a Pod stays in a state, by its id. `lost`: number in four ticks in which no reconcile runs. The
    jobs of the Pods in `endless` do not end.
    """

    pool: PlanFacts
    pods: dict[int, ObservedPod]
    lasts: Sequence[int]
    lost: frozenset[int]
    endless: frozenset[int]
    persistent: bool
    now: datetime = NOW
    ticks: int = 0
    since: dict[int, int] = field(default_factory=dict)
    """Tick at which the state of each Pod changed."""
    polled: dict[int, datetime] = field(default_factory=dict)
    creates: bool = False

    def look(self, *, now: datetime | None = None) -> PoolPlan:
        """Return the plan of a reconcile, after the failed starts were reset as `tasks.pools.plan` does."""
        polls = [at for number, at in self.polled.items() if number in self.pods and not self.pods[number].stale]
        starts = recovered(
            self.pool.starts, first_polls=polls, rolls=rolls(self.pool.pool, self.pods.values(), now=now or self.now)
        )
        return plan(replace(self.pool, starts=starts), list(self.pods.values()), most=MOST, now=now or self.now)

    def tick(self) -> None:
        """Let ten seconds pass: one step of each Pod that is due, then one reconcile unless it is lost."""
        self.ticks += 1
        self.now += TICK
        for number, pod in list(self.pods.items()):
            if self.ticks - self.since.get(number, 0) > self.lasts[number % len(self.lasts)]:
                self.put(number, self.after(pod))
        if self.ticks % 4 not in self.lost:
            self.reconcile()

    def put(self, number: int, pod: ObservedPod | None) -> None:
        """Record a Pod after its step. None is a Pod that is gone."""
        if pod is None:
            del self.pods[number]
        elif pod != self.pods.get(number):
            self.pods[number] = pod
            self.since[number] = self.ticks

    def reconcile(self) -> None:
        """Plan, and carry out the plan. The retirement of a registered runner asks GitHub first."""
        made = self.look()
        self.pool = replace(self.pool, starts=made.starts)
        self.creates = made.creates
        for number in made.give_up:
            del self.pods[number]
        for retirement in made.retire:
            pod = self.pods[retirement.id]
            asks = pod.registered_at is not None
            assert pod.state in IDLE or asks, "only a persistent runner is asked for while it might have a job"
            self.put(pod.id, replace(pod, state=PodState.BUSY if asks else PodState.RETIRING, marked=asks))
        if made.create:
            self.pool = replace(self.pool, starts=accepted(self.pool.starts))
        for _ in range(made.create):
            number = max(self.pods, default=0) + 10**6
            self.put(
                number,
                ObservedPod(
                    id=number,
                    state=PodState.STARTING,
                    created_at=self.now,
                    generation=self.now,
                    unborn=True,
                    seen=False,
                ),
            )

    def after(self, pod: ObservedPod) -> ObservedPod | None:
        """Return a Pod after its next step by the kubelet, GitHub or a sweep. None is a Pod that is gone."""
        if pod.unborn:
            return replace(pod, unborn=not self.creates, seen=self.creates)
        if not pod.seen or pod.node_gone or (pod.terminating and pod.state in IDLE):
            return after_disturbance(pod)
        if pod.marked:  # GitHub refuses until the job ends
            return replace(pod, state=PodState.RETIRING, marked=False, registering=False, registered_at=None)
        if pod.registering or pod.registered_at is not None:
            at = pod.registered_at or self.now
            return replace(pod, state=PodState.WARM, registering=False, registered_at=at)
        if pod.state is PodState.STARTING and not never_polls(pod):
            self.polled[pod.id] = self.now
            state = PodState.RESERVED if self.persistent else PodState.WARM
            return replace(pod, state=state, registering=self.persistent)
        return pod if self.is_endless(pod) else after_job_step(pod)

    def is_endless(self, pod: ObservedPod) -> bool:
        """Return whether a Pod executes a job that does not end."""
        return pod.state is PodState.BUSY and pod.id % 8 in self.endless

    @property
    def rests(self) -> bool:
        """Return whether no Pod has a step left, and the plan has nothing to do now and in an hour."""
        moves = any(pod.unborn or self.after(pod) != pod for pod in self.pods.values())
        plans = (self.look(), self.look(now=self.now + 360 * TICK))
        return not moves and not any(made.create or made.retire or made.give_up for made in plans)


def never_polls(pod: ObservedPod) -> bool:
    """Return whether a Pod has a start that fails. Only its retirement ends it."""
    ended = pod.poller_exit_code is not None or pod.runner_exit_code is not None
    return ended or pod.unschedulable or pod.waiting in IMAGE_REFUSED


def after_disturbance(pod: ObservedPod) -> ObservedPod | None:
    """Return a Pod that was missing from the list, lost its node, or was deleted by another client. Half are gone.

    The kubelet of the other half of deleted Pods does not answer, so that only a retirement ends them.
    """
    if pod.id % 2:
        return None
    if not pod.seen:
        return replace(pod, seen=True)
    return replace(pod, node_gone=False) if pod.node_gone else replace(pod, overdue=True)


def after_job_step(pod: ObservedPod) -> ObservedPod | None:
    """Return a Pod with or without a job claim after its next step. A claim might be released before its delivery."""
    if pod.state in {PodState.RETIRING, PodState.SPENT}:
        return None
    even = pod.id % 2 == 0
    steps = {
        PodState.RESERVED: PodState.BUSY if even else PodState.WARM,
        PodState.BUSY: PodState.ENDING,
        PodState.ENDING: PodState.SPENT,
        PodState.UNRESPONSIVE: PodState.WARM if even else PodState.RETIRING,
    }
    return replace(pod, state=steps.get(pod.state, pod.state))


@given(
    of=pools_of,
    pods=pods_of(max_size=40),
    starts=st.sampled_from(STARTS),
    lasts=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    lost=st.frozensets(st.integers(0, 2)),
    endless=st.frozensets(st.integers(0, 7), max_size=4),
    persistent=st.booleans(),
)
@settings(max_examples=150)
def test_every_state_converges_to_the_wanted_fresh_pods_and_rests_without_events(
    of: PlanFacts,
    pods: list[ObservedPod],
    starts: Starts,
    lasts: list[int],
    lost: frozenset[int],
    endless: frozenset[int],
    persistent: bool,
) -> None:
    # A pool whose runners grow old never rests.
    spec = replace(of.pool, paused=False, max_runner_age=None)
    of = replace(of, pool=spec, gate_open=True, web_beats=True, starts=starts)
    world = World(of, {pod.id: pod for pod in pods}, lasts, lost, endless, persistent)
    while not world.rests:
        world.tick()
        assert world.ticks < LIMIT, "the pool does not come to rest"
    busy = [pod for pod in world.pods.values() if world.is_endless(pod)]
    assert len(world.pods) == max(of.pool.wanted, len(busy))
    warm = [pod for pod in world.pods.values() if pod not in busy]
    assert all(pod.state is PodState.WARM and not pod.stale and not pod.cordoned for pod in warm)
