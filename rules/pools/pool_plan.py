"""Plan of one reconcile of a pool: Pods to create, Pods to retire with reasons, and failed starts of new Pods.

The plan depends only on observations. A Pod that has a job or might hold a JIT is never retired (law L3). The number of
retirements per tick is limited (law L9). A busy persistent runner can be in a plan, because its retirement begins with
the question to GitHub, which refuses while the runner executes a job. Without the question, a runner that gets one job
after the other would never leave.

A warm Pod is retired for its old template, or for its cordoned node, only while the number of unavailable replicas is
below its limit. A Pod of the new template counts as available only after its first poll, and a persistent runner only
when GitHub shows it as online. A template whose Pods never poll or register therefore stops its own rollout. Up to
`maxSurge` new Pods are created before old Pods are retired. Without surge, a pool with one warm Pod would be empty for
a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from rules.pools.pod_states import AVAILABLE, PodState
from rules.pools.pool_spec import PoolSpec
from rules.pools.starts import IMAGE_REFUSED, NOTHING_YET, Starts, Trouble, failed, trouble_of, without_room

IDLE = frozenset({PodState.STARTING, PodState.WARM, PodState.UNRESPONSIVE})
"""States of Pods that no claim needs. The retirement of an idle persistent runner removes the runner first."""


class Why(StrEnum):
    """Reason for the retirement of a Pod. The value is the text in the event of the claim."""

    SURPLUS = "the pool has too many Pods"
    DRAINED = "the pool is being deleted"
    FORBIDDEN = "the cluster does not allow the pool's Pod Security level"
    TEMPLATE = "the pool's template has changed"
    CORDONED = "the node of the Pod is cordoned"
    NOT_STARTED = "the Pod did not start to poll"
    AGE = "the runner is older than spec.maxRunnerAge"
    OVERDUE = "another client deleted the Pod, and its kubelet does not end it"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedPod:
    """One Pod, or the row of a Pod that is still to be created (`unborn`).

    - `generation`: creation of the pool's oldest present Pod that was made from the same template.
    - `stale`: the Pod was made from an older template.
    - `cordoned`, `node_gone`: the Pod's node is cordoned, or gone.
    - `gated`: the Pod has a scheduling gate, so the scheduler ignores it. `gated_at` is the time at which the Pod was
      last seen with a gate, or None. The time limit of the start begins there.
    - `seen`: the Pod was in the list. A Pod that was not in the list is not retired.
    - `terminating`: another client deletes the Pod, for example a drain of the node.
    - `unschedulable`: the scheduler found no node for the Pod. `no_node_because` is its message.
    - `waiting`: the kubelet's reason for a waiting container, or None.
    - `poller_exit_code`, `runner_exit_code`: exit code of each container, or None while the container runs.
    """

    id: int
    state: PodState
    created_at: datetime
    generation: datetime
    stale: bool = False
    cordoned: bool = False
    node_gone: bool = False
    unborn: bool = False
    seen: bool = True
    terminating: bool = False
    gated: bool = False
    gated_at: datetime | None = None
    unschedulable: bool = False
    no_node_because: str = ""
    waiting: str | None = None
    poller_exit_code: int | None = None
    runner_exit_code: int | None = None
    overdue: bool = False
    """True if another client deleted the Pod, and its grace period ended a minute ago."""
    marked: bool = False
    """True if Ostler is removing the persistent runner of the Pod. The Pod counts as a replica until the runner is gone
    from GitHub, and its number is subtracted from the surplus."""
    registering: bool = False
    """True if the Pod has a registration claim, and GitHub has not shown its runner as online yet or does not know it
    any more."""
    registered_at: datetime | None = None
    """Time at which GitHub first showed the persistent runner of the Pod as online. None while `registering`."""

    @property
    def serves(self) -> bool:
        """Return True if the Pod serves a job, or can serve a job at once."""
        return self.state in AVAILABLE and not self.registering

    @property
    def asks_github(self) -> bool:
        """Return True if a persistent runner is busy, and GitHub was not asked yet to remove it."""
        return self.state is PodState.BUSY and self.registered_at is not None and not self.marked


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanFacts:
    """A pool, with the facts beside its specification that affect its Pods.

    - `starts`: the failed starts of the pool, and the backoff after them.
    - `start_timeout`: maximum seconds from the creation of a Pod to its first poll.
    - `web_beats`: a web process ran during all of `start_timeout`. Otherwise a Pod might have been unable to poll.
    - `gate_open`: the gate of Kubernetes is ok. While the gate is tripped, no Pod is retired.
    - `retired`: number of Pods that earlier plans of this tick retired. A pool might be reconciled several times in a
      tick, and these runs share one budget.
    """

    pool: PoolSpec
    starts: Starts = NOTHING_YET
    start_timeout: float = 300.0
    web_beats: bool = False
    gate_open: bool = True
    retired: int = 0


@dataclass(frozen=True, slots=True)
class Retirement:
    """One Pod to retire. `detail` is a text that follows the reason, or is empty."""

    id: int
    why: Why
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.why}: {self.detail}" if self.detail else str(self.why)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPlan:
    """The actions, and the state of the pool before the actions.

    - `create`: number of rows to insert for new Pods.
    - `creates`: Pods may be created now for existing rows.
    - `give_up`: rows to close because their Pod was never created and is no longer needed.
    - `retire`: the Pods to retire.
    - `starts`: the new value of `PlanFacts.starts`.
    - `failed_starts`: the troubles of the Pods that are retired because they did not start.
    - `counts`: number of Pods by state, without rows that have no Pod and without `lost` Pods.
    - `registering`: number of these Pods whose persistent runner is not online yet.
    - `stale`: number of Pods of an older template.
    - `lost`: number of Pods that are not terminal and whose node is gone.
    - `hopeless`: the kubelet's reason for an image that can never be used, or None.
    - `wanted`: number of Pods that the pool should have.
    """

    create: int = 0
    creates: bool = False
    give_up: tuple[int, ...] = ()
    retire: tuple[Retirement, ...] = ()
    starts: Starts = NOTHING_YET
    failed_starts: tuple[Trouble, ...] = ()
    counts: Mapping[PodState, int]
    registering: int = 0
    stale: int = 0
    lost: int = 0
    hopeless: str | None = None
    wanted: int = 0

    @property
    def available(self) -> int:
        """Return how many Pods serve a job, or can serve a job at once."""
        return sum(self.counts.get(state, 0) for state in AVAILABLE) - self.registering

    @property
    def alive(self) -> int:
        """Return how many Pods are not spent, including Pods that are being retired."""
        return sum(count for state, count in self.counts.items() if state is not PodState.SPENT)

    @property
    def goes_on(self) -> bool:
        """Return True if the plan creates Pods, and the pool needs further Pods. Return False otherwise."""
        return 0 < self.create < self.wanted - self.alive


TICK = 9.0
"""Length in seconds of a tick of the reconciler.

All reconciles of a pool within a tick share one budget of retirements.

`TICK` is below the reconciler's interval of ten seconds. With a tick of ten seconds, a run that starts a little early
would share the budget of the run before. If that budget is used up, the early run could retire nothing. The next run
would start only ten seconds later.
"""


def budget_of(pods: int) -> int:
    """Return how many Pods may be retired in one tick if `pods` Pods are alive (law L9)."""
    return max(5, pods // 10)


def share_of(pool: PoolSpec) -> int:
    """Return how many replicas may be unavailable during a rollout: at least one.

    Surge Pods are not yet subtracted from this number.
    """
    return max(1, pool.wanted * pool.max_unavailable_percent // 100)


NO_ROOM = frozenset({Trouble.UNSCHEDULABLE, Trouble.QUOTA})
"""Troubles that mean a lack of room for one more Pod: no node is free, or the quota is used up."""

ROOM_WITHIN = 90.0
"""Seconds that a rollout waits until a node has room for a surge Pod.

The limit applies only while more Pods are warm than the rollout may replace at once.
"""

SURGE_AGAIN = timedelta(minutes=10)
"""Time after which a rollout that found no room for a surge Pod tries to create a surge Pod again."""


def surge_of(facts: PlanFacts) -> int:
    """Return how many Pods above the replicas a rollout may create.

    The default is 1 if only one replica may be unavailable, else 0. The result is 0 if this rollout found no room for a
    surge Pod. The rollout then retires an old Pod first, and the new Pod uses the room of the old Pod.
    """
    if facts.pool.wanted == 0 or facts.starts.trouble in NO_ROOM:
        return 0
    if facts.pool.max_surge is None:
        return int(share_of(facts.pool) == 1)
    return facts.pool.max_surge


def unavailable_of(facts: PlanFacts) -> int:
    """Return how many replicas may be unavailable during a rollout: `share_of` less the surge Pods."""
    return max(0, share_of(facts.pool) - surge_of(facts))


def _extra(facts: PlanFacts, kept: Iterable[ObservedPod], *, now: datetime) -> int:
    """Return how many Pods above the replicas are allowed now.

    The result is at most the number of Pods to replace. A busy runner that is too old counts too. Otherwise the surge
    Pod would be retired whenever the old runner gets a job.
    """
    old = sum(_is_replaced(facts.pool, pod, now) or (pod.asks_github and _is_old(facts.pool, pod, now)) for pod in kept)
    return min(surge_of(facts), old)


def _is_replaced(pool: PoolSpec, pod: ObservedPod, now: datetime) -> bool:
    """Return whether the Pod must be replaced because of its template, its node or the age of its runner.

    It is warm, or it is busy with a persistent runner that GitHub can be asked to remove. The age of a busy runner does
    not count.
    """
    outdated = pod.stale or pod.cordoned
    return (pod.asks_github and outdated) or (pod.state is PodState.WARM and (outdated or _is_old(pool, pod, now)))


def rolls(pool: PoolSpec, pods: Iterable[ObservedPod], *, now: datetime) -> bool:
    """Return whether some Pods must still be replaced because of their template, their node or their age."""
    return any(_is_replaced(pool, pod, now) and not _leaves(pod) for pod in pods)


def _room(facts: PlanFacts, kept: Sequence[ObservedPod], *, now: datetime) -> Starts:
    """Return the state of starts, updated by the result of creating a surge Pod.

    If more Pods are warm than a rollout may replace at once, the rollout waits `ROOM_WITHIN` seconds for a node for the
    surge Pod. After that, the rollout continues without surge. Otherwise the rollout waits for the whole
    `start_timeout`. After that, the surge Pod counts as a failed start.

    A rollout continues with surge again when enough of the warm Pods got jobs, or after `SURGE_AGAIN`.
    """
    starts = facts.starts
    refused = [
        pod for pod in kept if pod.state is PodState.STARTING and pod.unschedulable and pod.seen and not pod.stale
    ]
    warm = sum(pod.state is PodState.WARM for pod in kept)
    past = starts.failed_at is not None and now - starts.failed_at >= SURGE_AGAIN
    if starts.without_surge and not refused and (past or warm <= share_of(facts.pool)):
        return NOTHING_YET
    waits = any((now - pod.created_at).total_seconds() >= ROOM_WITHIN for pod in refused)
    beyond = len(kept) > facts.pool.wanted and surge_of(facts) > 0 and rolls(facts.pool, kept, now=now)
    if waits and beyond and warm > share_of(facts.pool) and starts.trouble is None:
        return without_room(since=now)
    return starts


def plan(facts: PlanFacts, pods: Sequence[ObservedPod], *, most: int, now: datetime) -> PoolPlan:
    """Return the plan of one reconcile. The plan creates at most `most` Pods."""
    pool = facts.pool
    kept = [pod for pod in pods if not _leaves(pod)]
    if not (pool.paused or pool.problem is not None or pool.terminating):
        facts = replace(facts, starts=_room(facts, kept, now=now))
    overdue = _overdue(facts, kept, now=now)
    starts, troubles = _count(facts, overdue, now=now)
    seen = _counted(facts, pods, kept)
    budget = max(0, budget_of(len(kept)) - facts.retired) if facts.gate_open else 0
    stuck = _stuck(pods)
    if pool.suspended:
        return replace(seen, retire=tuple(stuck[:budget]))
    most_kept = pool.wanted + _extra(facts, kept, now=now)
    too_many = max(0, len(kept) - most_kept - sum(pod.marked for pod in kept))
    give_up = [pod.id for pod in kept if pod.unborn][:too_many]
    surplus = too_many - len(give_up)
    retire = [*_retirements(facts, kept, overdue, surplus, now=now), *stuck][:budget]
    retired = {each.id for each in retire}
    # A failed start that could not be retired yet is counted later, when it is retired.
    counted = {pod.id for pod, _, _ in overdue} & retired
    starting = sum(pod.state is PodState.STARTING and pod.id not in retired for pod in kept) - len(give_up)
    starts = starts if counted else facts.starts
    create = max(0, min(most, most_kept - len(kept), pool.max_concurrent - starting))
    return replace(
        seen,
        create=0 if starts.waits(now) else create,
        creates=not starts.waits(now),
        give_up=tuple(give_up),
        retire=tuple(retire),
        starts=starts,
        failed_starts=tuple(trouble for pod_id, trouble in troubles if pod_id in counted),
    )


def _stuck(pods: Iterable[ObservedPod]) -> list[Retirement]:
    """Return the Pods that another client deleted, and that their kubelet does not end."""
    return [Retirement(pod.id, Why.OVERDUE) for pod in pods if pod.overdue and pod.state in IDLE]


def _counted(facts: PlanFacts, pods: Sequence[ObservedPod], kept: Sequence[ObservedPod]) -> PoolPlan:
    """Return a plan without actions: the state of the pool. `kept` are the Pods that count as replicas."""
    return PoolPlan(
        starts=facts.starts,
        counts=Counter(pod.state for pod in pods if not pod.unborn and not _is_lost(pod)),
        registering=sum(pod.registering and pod.state in AVAILABLE and not _is_lost(pod) for pod in pods),
        stale=sum(pod.stale for pod in kept),
        lost=sum(_is_lost(pod) for pod in pods),
        hopeless=_hopeless(kept),
        wanted=facts.pool.wanted,
    )


def _leaves(pod: ObservedPod) -> bool:
    """Return whether a Pod no longer counts as a replica.

    A Pod does not count if it is over, if Ostler retires it, or if its node is gone. If another client deletes a Pod,
    the Pod counts only while it is reserved, busy or ending. The sweep `gone_nodes` deletes the Pods of gone nodes.
    """
    if pod.node_gone or pod.state in {PodState.SPENT, PodState.RETIRING}:
        return True
    return pod.terminating and pod.state in IDLE


def _is_lost(pod: ObservedPod) -> bool:
    """Return whether a Pod is not spent and its node is gone. Without its node, the Pod might stay forever."""
    return pod.node_gone and pod.state is not PodState.SPENT


Overdue = tuple[ObservedPod, Trouble, str]


def _overdue(facts: PlanFacts, kept: Iterable[ObservedPod], *, now: datetime) -> list[Overdue]:
    """Return the Pods that did not poll within `start_timeout` or whose containers have ended, each with the cause.

    A Pod with a scheduling gate waits for another program, so it is not overdue. The result is empty if there was a
    time without a web process, because no process could then receive a poll.
    """
    if not facts.web_beats:
        return []
    found = []
    for pod in kept:
        if pod.state is not PodState.STARTING or pod.unborn or not pod.seen:
            continue
        ended = pod.poller_exit_code is not None or pod.runner_exit_code is not None
        began = pod.created_at if pod.gated_at is None else max(pod.created_at, pod.gated_at)
        if not ended and (pod.gated or (now - began).total_seconds() < facts.start_timeout):
            continue
        trouble, detail = trouble_of(
            waiting=pod.waiting,
            unschedulable=pod.unschedulable,
            no_node_because=pod.no_node_because,
            poller_exit_code=pod.poller_exit_code,
            seconds=facts.start_timeout,
            runner_exit_code=pod.runner_exit_code,
        )
        found.append((pod, trouble, detail))
    return found


def _count(facts: PlanFacts, overdue: Sequence[Overdue], *, now: datetime) -> tuple[Starts, list[tuple[int, Trouble]]]:
    """Return the state of starts after the failures in `overdue`, and the trouble of each Pod in `overdue`.

    The failure of a Pod of an older template does not change the state of starts.
    """
    starts = facts.starts
    for pod, trouble, detail in sorted(overdue, key=lambda each: each[0].created_at):
        if not pod.stale:
            starts = failed(starts, trouble=trouble, detail=detail, made_at=pod.created_at, now=now)
    return starts, [(pod.id, trouble) for pod, trouble, _ in overdue]


def _retirements(
    facts: PlanFacts, kept: Sequence[ObservedPod], overdue: Sequence[Overdue], too_many: int, *, now: datetime
) -> list[Retirement]:
    """Return the Pods to retire, most dispensable first.

    The order is: Pods that did not start, surplus Pods, stale starting Pods, and warm Pods to replace. A warm Pod is
    replaced because of its node, its template, or the age of its runner, in this order.

    The surplus has this order: unresponsive Pods, starting Pods without a node, other starting Pods, warm Pods, busy
    persistent runners. Busy runners therefore stay longest. Pods of one state have this order: Pods on cordoned nodes,
    stale Pods of the oldest template, other stale Pods, and within each template the newest Pod. Busy runners are
    replaced after warm Pods, and never because of their age.
    """
    gone = {pod.id: Retirement(pod.id, Why.NOT_STARTED, detail) for pod, _, detail in overdue}
    seen = sorted((pod for pod in kept if pod.seen and not pod.unborn), key=_dispensable)
    starting = [pod for pod in seen if pod.state is PodState.STARTING and pod.id not in gone]
    why = Why.DRAINED if facts.pool.terminating else Why.FORBIDDEN if facts.pool.forbidden else Why.SURPLUS
    surplus = _in_order_of_surplus(facts.pool, kept, seen, starting)[: max(0, too_many - len(gone))]
    gone |= {pod.id: Retirement(pod.id, why) for pod in surplus}
    gone |= {pod.id: Retirement(pod.id, Why.TEMPLATE) for pod in starting if pod.stale and pod.id not in gone}
    available = sum(pod.serves and pod.id not in gone and not pod.marked for pod in kept)
    # One surge Pod allows one old Pod to be retired.
    allowed = min(max(share_of(facts.pool), surge_of(facts)), unavailable_of(facts) + available - facts.pool.wanted)
    replaced = [each for each in _replaceable(facts.pool, seen, now) if each.id not in gone]
    return [*gone.values(), *replaced[: max(0, allowed)]]


def _in_order_of_surplus(
    pool: PoolSpec, kept: Sequence[ObservedPod], seen: Sequence[ObservedPod], starting: Sequence[ObservedPod]
) -> list[ObservedPod]:
    """Return the Pods that a pool with too many Pods may retire, most dispensable first.

    `seen` and `starting` are in the order of `_dispensable`.
    """
    unresponsive = [pod for pod in seen if pod.state is PodState.UNRESPONSIVE]
    without_node_first = sorted(starting, key=lambda pod: not pod.unschedulable)
    usable = [*(pod for pod in seen if pod.state is PodState.WARM), *(pod for pod in seen if pod.asks_github)]
    # A runner that is registering, or that GitHub does not know any more, might never serve. It makes no other surplus.
    serving = sum(pod.serves and not pod.marked for pod in kept)
    return [*unresponsive, *without_node_first, *usable[: max(0, serving - pool.wanted)]]


def _replaceable(pool: PoolSpec, seen: Sequence[ObservedPod], now: datetime) -> list[Retirement]:
    """Return the Pods that a new Pod should replace, in the order of `seen` within each reason."""
    warm = [pod for pod in seen if pod.state is PodState.WARM]
    fit = (pod for pod in warm if not pod.stale and not pod.cordoned)
    old = [Retirement(pod.id, Why.AGE) for pod in fit if _is_old(pool, pod, now)]
    return [*_outdated(warm), *old, *_outdated([pod for pod in seen if pod.asks_github])]


def _outdated(pods: Sequence[ObservedPod]) -> list[Retirement]:
    """Return the Pods to replace because of their node or their template, in this order."""
    cordoned = [Retirement(pod.id, Why.CORDONED) for pod in pods if pod.cordoned]
    return [*cordoned, *(Retirement(pod.id, Why.TEMPLATE) for pod in pods if pod.stale and not pod.cordoned)]


def _is_old(pool: PoolSpec, pod: ObservedPod, now: datetime) -> bool:
    """Return whether the persistent runner of a Pod is older than the pool allows."""
    if pool.max_runner_age is None or pod.registered_at is None:
        return False
    return (now - pod.registered_at).total_seconds() > pool.max_runner_age


def _dispensable(pod: ObservedPod) -> tuple[bool, bool, datetime, float, int]:
    """Return the sort key of Pods in the same state. The most dispensable Pod comes first.

    The newest Pod of a template comes first, because its node is more likely to be one that was added for a peak, and
    because the caches of an older runner hold more.
    """
    return not pod.cordoned, not pod.stale, pod.generation, -pod.created_at.timestamp(), pod.id


def _hopeless(kept: Iterable[ObservedPod]) -> str | None:
    """Return the kubelet's reason if the image of the present template can never be used, else None."""
    starting = (pod for pod in kept if pod.state is PodState.STARTING and not pod.stale)
    return next((pod.waiting for pod in starting if pod.waiting in IMAGE_REFUSED), None)
