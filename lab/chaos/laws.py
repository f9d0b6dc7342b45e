"""The laws that a chaos run can check: pure judgements on one reading of rows and Pods, or on the logs.

`lab.invariants` and `lab.verdict` judge the whole history of a run after its end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lab.chaos.freezer import Freeze
from lab.invariants import BudgetRow
from lab.verdict import ended_unseen

CHECKS_APART = 60.0
"""Seconds between the two checks that prove that a runner is absent."""

MARGIN = 15.0
"""Tolerance in seconds that is subtracted from `CHECKS_APART`.

A list might leave out a runner that exists. The first check might therefore find a runner absent up to `MARGIN` seconds
before GitHub deletes the runner.
"""

REFUSED = 503
ANSWERS_WITHIN = 10.0
"""Seconds that the lab's GitHub waits for an answer."""

Log = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Broken:
    """A violation of a law: the law's number, and a description."""

    law: str
    what: str

    def __str__(self) -> str:
        return f"{self.law}: {self.what}"


@dataclass(frozen=True, slots=True)
class LiveClaim:
    """A claim that has not ended. Sizes are in millicores and MiB."""

    id: int
    purpose: str
    state: str
    stamp: str
    job_id: int | None
    pod_uid: str
    account_id: int | None
    vcpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class LingeringPod:
    """A Pod that outlives its claim, with the account and the size of the claim that was delivered to it last."""

    uid: str
    account_id: int
    vcpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class Moment:
    """One snapshot of the rows. `unclaimed` are jobs in state `claimed` without a live claim.

    `lingering` are Pods that have not ended and have no live job claim, although a claim was delivered to them.
    """

    claims: Sequence[LiveClaim]
    budgets: Mapping[int, BudgetRow]
    unclaimed: Sequence[int]
    lingering: Sequence[LingeringPod] = ()


def at_a_moment(moment: Moment) -> Iterator[Broken]:
    """Judge one snapshot by the laws L1, L2, L4 and L5."""
    for what, counts in (
        ("Pod", Counter(claim.pod_uid for claim in moment.claims)),
        ("job", Counter(claim.job_id for claim in moment.claims if claim.job_id is not None)),
    ):
        yield from (Broken("L1", f"{what} {key} has {many} live claims") for key, many in counts.items() if many > 1)
    used: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for claim in moment.claims:
        if claim.purpose == "job" and claim.account_id is not None:
            used[claim.account_id].update({"count": 1, "vcpu": claim.vcpu, "memory": claim.memory})
    for pod in moment.lingering:
        used[pod.account_id].update({"count": 1, "vcpu": pod.vcpu, "memory": pod.memory})
    for account, mine in used.items():
        if moment.budgets[account].exceeded_by(mine):
            yield Broken("L2", f"account {account} has {dict(mine)} in live claims and Pods that outlive their claim")
    for job in moment.unclaimed:
        yield Broken(
            "L4", f"job {job} is in state claimed without a live claim: the end of its claim did not change its state"
        )
    for claim in moment.claims:
        if claim.state in {"minted", "delivered"} and claim.stamp == "none":
            yield Broken(
                "L5", f"claim {claim.id} is {claim.state}, but its Pod was not stamped, and the stamp was not given up"
            )


@dataclass(frozen=True, slots=True)
class ClaimSpan:
    """The lifetime of one claim of a Pod. `removing` is True if the removal of the stamp was begun."""

    id: int
    purpose: str
    job_id: int | None
    created_at: datetime
    delivered_at: datetime | None
    ended_at: datetime | None
    removing: bool

    def lived_at(self, moment: datetime) -> bool:
        """Return whether the claim was live at that moment."""
        return self.created_at <= moment and (self.ended_at is None or self.ended_at > moment)


def of_a_deletion(pod: str, *, seen_at: datetime, claims: Iterable[ClaimSpan]) -> Iterator[Broken]:
    """Judge the observed deletion of a Pod that was not terminal and that only Ostler can have deleted.

    A retire claim must exist (law L7). A Pod with a live retire claim has no other live claim. The retire claim
    therefore also proves that the deletion did not rely on outdated claims (law L8), and that no Pod with a JIT was
    deleted (law L3).
    """
    spans = [claim for claim in claims if claim.created_at <= seen_at]
    if not any(claim.purpose == "retire" for claim in spans):
        yield Broken("L7", f"Pod {pod} was deleted without a retire claim")
    for claim in spans:
        if claim.purpose != "retire" and claim.lived_at(seen_at):
            yield Broken("L8", f"Pod {pod} was deleted while its {claim.purpose} claim {claim.id} was live")
            if claim.delivered_at is not None and claim.delivered_at <= seen_at:
                yield Broken("L3", f"Pod {pod} was deleted while it had the JIT of claim {claim.id}")


def of_an_unstamp(pod: str, *, seen_at: datetime, claims: Iterable[ClaimSpan]) -> Iterator[Broken]:
    """Judge the observed loss of a Pod's stamp. The loss re-routes the Pod. After a delivery, the loss breaks law L3.

    If the removal of the stamp began before the delivery, the loss might be observed after the delivery. In that case
    the claim has `removing`, and no law is broken.
    """
    for claim in claims:
        if claim.delivered_at is not None and claim.delivered_at <= seen_at and not claim.removing:
            yield Broken("L3", f"Pod {pod} lost its stamp after the JIT of claim {claim.id} was delivered")


@dataclass(frozen=True, slots=True)
class Absence:
    """A claim whose release began because its runner was absent in two checks. `at` is in Unix seconds."""

    claim_id: int
    runner_name: str
    at: float


def of_absences(absences: Iterable[Absence], github: Log) -> Iterator[Broken]:
    """Judge by GitHub's log each release whose reason was an absent runner (law L8).

    A runner that was registered a moment before the release cannot have been absent in two checks.
    """
    gone = {event["runner"]: float(event["at"]) for event in github if event["event"] == "runner_deleted"}
    for absence in absences:
        since = absence.at - gone.get(absence.runner_name, absence.at)
        if since < CHECKS_APART - MARGIN:
            seen = "was registered" if since <= 0 else f"was absent for only {since:.0f} s"
            yield Broken(
                "L8",
                f"claim {absence.claim_id} was released because its runner was absent in two checks, but it {seen}",
            )


def of_strangers(strangers: Collection[str], github: Log) -> Iterator[Broken]:
    """Judge whether Ostler deregistered runners that it did not mint (law L3).

    A runner without a row in Ostler might be in use by another client of the scope.
    """
    for event in github:
        if event["event"] == "runner_deleted" and event["runner"] in strangers:
            yield Broken("L3", f"runner {event['runner']} was deregistered, although Ostler did not mint it")


def of_executions(kubelet: Log, *, vanished: Collection[str], github: Log) -> Iterator[Broken]:
    """Judge by the kubelet's log whether a Pod was deleted while it executed a job (law L3).

    `vanished` are the UIDs of Pods that the run itself deleted. A Pod whose runner ended unseen is no violation if its
    job was over according to the log of `github`.
    """
    excused = {*vanished, *ended_unseen(github, kubelet)}
    for event in kubelet:
        if event["event"] == "pod_deleted" and event.get("job") is not None and event["uid"] not in excused:
            yield Broken("L3", f"Pod {event['pod']} was deleted while it executed job {event['job']}")


@dataclass(frozen=True, slots=True)
class Kill:
    """One run of a sweep: the number of its repairs that ended a Pod or a runner, and the number that was allowed."""

    sweep: str
    run_id: int
    killed: int
    allowed: int


def of_budgets(kills: Iterable[Kill]) -> Iterator[Broken]:
    """Yield a violation for each run of a sweep that exceeded its budget (law L9)."""
    for kill in kills:
        if kill.killed > kill.allowed:
            yield Broken(
                "L9",
                f"{kill.sweep} ended {kill.killed} Pods or runners in run {kill.run_id}; {kill.allowed} were allowed",
            )


@dataclass(frozen=True, slots=True)
class Refusals:
    """Webhooks that were refused with 503, counted by reason.

    `silent`: web was frozen or had just been started, or Postgres had crashed. `frozen`: a frozen process had locked a
    row of the webhook. `contended`: web logged that a row of the webhook was locked, and no frozen process explains it.
    `unexplained`: the webhooks without a reason.
    """

    silent: int = 0
    frozen: int = 0
    contended: int = 0
    unexplained: tuple[Broken, ...] = ()


def of_refusals(
    github: Log,
    *,
    freezes: Iterable[Freeze],
    silences: Iterable[tuple[float, float]],
    contended: Collection[str],
) -> Refusals:
    """Judge the webhooks that were refused: a locked row may delay only those webhooks that need it (law L14).

    `freezes` are the frozen processes, and `silences` are spans in Unix seconds in which web cannot answer. `contended`
    are the GUIDs of the webhooks whose row was locked according to web's log. Web's log is used only if neither a
    silence nor a freeze explains a refusal, and such refusals are counted separately.
    """
    freezes, silences = list(freezes), list(silences)
    runners = {event["job"]: event["runner"] for event in github if event["event"] in {"job_assigned", "job_started"}}
    found = Counter[str]()
    unexplained = []
    for event in github:
        if event["event"] != "webhook_sent" or event["status"] != REFUSED:
            continue
        at, job = float(event["at"]), event["job"]
        frozen = [freeze for freeze in freezes if freeze.overlaps(at - ANSWERS_WITHIN, at)]
        if any(began <= at <= ended for began, ended in silences):
            found["silent"] += 1
        elif any(job in freeze.jobs or runners.get(job) in freeze.runners for freeze in frozen):
            found["frozen"] += 1
        elif event["guid"] in contended:
            found["contended"] += 1
        else:
            beside = f"{', '.join(freeze.process for freeze in frozen) or 'nothing'} was frozen"
            what = f"webhook {event['guid']} ({event['action']} of job {job}) was refused at {at:.0f} while {beside}"
            unexplained.append(Broken("L14", f"{what}, and web logged no locked row"))
    return Refusals(**found, unexplained=tuple(unexplained))
