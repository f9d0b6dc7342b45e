"""Six of the laws of docs/laws.md, checked after a run on its rows, events, Pods and the lab's own logs.

Each check is a pure function from a `History` to broken laws as sentences. Only the functions at the end read Postgres
and the cluster. Times of two transactions are never compared. The order of event ids is compared, because a transaction
that writes an event has seen the events that it depends on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Engine, text

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.runners.pods import list_pods
from rules.claims.machines import TRANSITIONS, ClaimState, Machine
from rules.claims.pod_view import PodView
from rules.claims.stamps import INITIAL

BEGINS = frozenset({"claim", "retire"})
ENDS = frozenset(
    name for name, entry in TRANSITIONS.items() if entry.machine is Machine.CLAIM and entry.target == ClaimState.ENDED
)
_NEVER = 2**63


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """One row of `claims`. Sizes are in millicores and MiB."""

    id: int
    purpose: str
    job_id: int | None
    pod_uid: str
    account_id: int | None
    vcpu: int
    memory: int
    created_at: datetime
    delivered_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """One row of `claim_events`."""

    id: int
    claim_id: int
    transition: str


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    """Budget of an account. It never changes during a run."""

    count: int
    vcpu: int
    memory: int

    def exceeded_by(self, used: Mapping[str, int]) -> bool:
        """Return whether `used`, whose keys are the names of the fields, exceeds the budget in any field."""
        return used["count"] > self.count or used["vcpu"] > self.vcpu or used["memory"] > self.memory


@dataclass(frozen=True, kw_only=True)
class PodLeft:
    """A runner Pod that exists at the end of a run. `stamp` is its claim annotation, `owner` its owner label."""

    uid: str
    name: str
    stamp: str | None
    owner: int | None
    over: bool


@dataclass(frozen=True, kw_only=True)
class History:
    """Remains of a run.

    `remapped`: claims that GitHub gave another job. `deleted`: UIDs of Pods that the test deleted.
    """

    claims: Sequence[ClaimRow] = ()
    events: Sequence[EventRow] = ()
    jobs: Mapping[int, str] = field(default_factory=dict)
    budgets: Mapping[int, BudgetRow] = field(default_factory=dict)
    pods: Sequence[PodLeft] = ()
    github: Sequence[Mapping[str, Any]] = ()
    kubelet: Sequence[Mapping[str, Any]] = ()
    remapped: Collection[int] = frozenset()
    deleted: Collection[str] = frozenset()

    def spans(self) -> dict[int, tuple[int, int]]:
        """Return, for each claim, the id of the event that began it and the id of the event that ended it."""
        begun = {event.claim_id: event.id for event in self.events if event.transition in BEGINS}
        ended = {event.claim_id: event.id for event in self.events if event.transition in ENDS}
        return {claim.id: (begun.get(claim.id, 0), ended.get(claim.id, _NEVER)) for claim in self.claims}


def one_claim(history: History) -> Iterator[str]:
    """Law L1: no Pod UID or job has two live claims at once, and each stamp on a Pod belongs to a claim of that Pod."""
    spans = history.spans()
    by_pod: defaultdict[str, list[int]] = defaultdict(list)
    by_job: defaultdict[int, list[int]] = defaultdict(list)
    for claim in history.claims:
        by_pod[claim.pod_uid].append(claim.id)
        # A remapped claim is left out: its row has only its last job, and not the time of the swap.
        if claim.job_id is not None and claim.id not in history.remapped:
            by_job[claim.job_id].append(claim.id)
    for what, groups in (("Pod", by_pod), ("job", by_job)):
        for key, claims in groups.items():
            for first, second in pairwise(sorted(claims, key=spans.__getitem__)):
                if spans[second][0] < spans[first][1]:
                    yield f"L1: {what} {key} had claims {first} and {second} at the same time"
    pods = {claim.id: claim.pod_uid for claim in history.claims}
    for pod in history.pods:
        if pod.stamp not in {None, INITIAL} and pods.get(_claim_of(pod.stamp)) != pod.uid:
            yield f"L1: Pod {pod.name} carries the stamp {pod.stamp} of a claim that is not its own"


def within_budget(history: History) -> Iterator[str]:
    """Law L2: no insert of a claim exceeded the budget of its account."""
    claims = {claim.id: claim for claim in history.claims}
    used: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for event in sorted(history.events, key=lambda event: event.id):
        claim = claims[event.claim_id]
        if (
            claim.purpose != "job"
            or claim.account_id is None
            or not (event.transition == "claim" or event.transition in ENDS)
        ):
            continue
        sign = 1 if event.transition == "claim" else -1
        mine = used[claim.account_id]
        mine.update({"count": sign, "vcpu": sign * claim.vcpu, "memory": sign * claim.memory})
        if sign > 0 and history.budgets[claim.account_id].exceeded_by(mine):
            yield f"L2: claim {claim.id} took account {claim.account_id} beyond its budget: {dict(mine)}"


def nothing_left(history: History) -> Iterator[str]:
    """Law L4: at the end no claim is live, no job is open or unknown, and no Pod is stamped or over."""
    for claim in history.claims:
        if claim.ended_at is None:
            yield f"L4: claim {claim.id} ({claim.purpose}, job {claim.job_id}) never ended"
    for job, state in history.jobs.items():
        if state != "completed":
            yield f"L4: job {job} is {state} in the rows"
    for event in history.github:
        if event["event"] == "job_queued" and event["job"] not in history.jobs:
            yield f"L4: job {event['job']} has no row"
    for pod in history.pods:
        if pod.owner is not None and not pod.over:
            yield f"L4: Pod {pod.name} is stamped and has no live claim"
        elif pod.over:
            yield f"L4: Pod {pod.name} has ended and is still there"


def in_order(history: History) -> Iterator[str]:
    """Law L5: each delivered claim was claimed, then stamped or its stamp given up, then minted, then delivered."""
    events: defaultdict[int, list[str]] = defaultdict(list)
    for event in sorted(history.events, key=lambda event: event.id):
        events[event.claim_id].append(event.transition)
    for claim in history.claims:
        names = events[claim.id]
        if claim.delivered_at is None and "deliver" not in names:
            continue
        firsts = [name for name in names if name in {"claim", "stamp_on", "stamp_gave_up", "mint", "deliver"}]
        steps = [name for name in dict.fromkeys(firsts) if name not in {"stamp_on", "stamp_gave_up"}]
        stamped = firsts[1:2]
        if steps != ["claim", "mint", "deliver"] or not stamped or stamped[0] not in {"stamp_on", "stamp_gave_up"}:
            yield f"L5: claim {claim.id} was delivered after {', '.join(firsts) or 'nothing'}"


def retired_under_a_claim(history: History) -> Iterator[str]:
    """Law L7: each Pod that was deleted before its end had a retire claim first. Deletions by the test do not count."""
    retired = {claim.pod_uid: claim.created_at for claim in history.claims if claim.purpose == "retire"}
    for event in history.kubelet:
        if event["event"] != "pod_deleted" or event.get("phase") in {"Succeeded", "Failed"}:
            continue
        uid = str(event["uid"])
        if uid in history.deleted:
            continue
        since = retired.get(uid)
        if since is None or since > datetime.fromisoformat(str(event["at"])):
            yield f"L7: Pod {event.get('pod')} was deleted while {event.get('phase')} and without a retire claim"


def one_pod_per_jit(history: History) -> Iterator[str]:
    """Law L11: only one Pod UID received the JIT of a runner."""
    pods: defaultdict[str, set[str]] = defaultdict(set)
    for event in history.kubelet:
        if event["event"] == "jit_received":
            pods[f"claim {event.get('claim')}"].add(str(event["uid"]))
            if event.get("runner_name"):
                pods[f"runner {event['runner_name']}"].add(str(event["uid"]))
    for what, uids in pods.items():
        if len(uids) > 1:
            yield f"L11: the JIT of {what} was received by {len(uids)} Pods: {', '.join(sorted(uids))}"


INVARIANTS: Mapping[str, Callable[[History], Iterator[str]]] = {
    "L1": one_claim,
    "L2": within_budget,
    "L4": nothing_left,
    "L5": in_order,
    "L7": retired_under_a_claim,
    "L11": one_pod_per_jit,
}


def broken(history: History) -> list[str]:
    """Return every violation of a law as a sentence."""
    return [problem for invariant in INVARIANTS.values() for problem in invariant(history)]


def _claim_of(stamp: str | None) -> int:
    number = (stamp or "").partition(".")[0]
    return int(number) if number.isdecimal() else -1


def read_rows(engine: Engine) -> dict[str, Any]:
    """Return the parts of a `History` that are stored in Postgres, as keyword arguments."""
    with engine.connect() as db:
        claims = db.execute(
            text("""
                SELECT id, purpose, job_id, pod_uid, account_id, vcpu, memory, created_at, delivered_at, ended_at
                FROM claims ORDER BY id
            """)
        ).mappings()
        events = db.execute(text("SELECT id, claim_id, transition FROM claim_events ORDER BY id")).mappings()
        jobs = db.execute(text("SELECT id, state FROM jobs"))
        return {
            "claims": [ClaimRow(**row) for row in claims],
            "events": [EventRow(**row) for row in events],
            "jobs": {row.id: row.state for row in jobs},
            "budgets": read_budgets(db),
        }


def read_budgets(db: Connection) -> dict[int, BudgetRow]:
    """Return the budget of each account by its id."""
    rows = db.execute(text("SELECT id, budget_count, budget_vcpu, budget_memory FROM accounts"))
    return {number: BudgetRow(count=count, vcpu=vcpu, memory=memory) for number, count, vcpu, memory in rows}


def read_pods(kube: KubeClient, *, namespace: str) -> list[PodLeft]:
    """Return the runner Pods that are in the cluster now, except for terminating Pods."""
    return [_left(pod) for pod in list_pods(kube, namespace=namespace) if not pod.terminating]


def _left(pod: PodView) -> PodLeft:
    return PodLeft(uid=pod.uid, name=pod.name, stamp=pod.stamp, owner=pod.owner, over=pod.is_terminal)
