"""Explanations of a job's state for a person.

The API and the command give the same explanation: the event that the job waits for, a sentence about this event, and a
cure if an operator can do something. The explanation calls the functions that decide (`rules.claims.fairness`), so it
cannot name another rule than the one that left the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from rules.claims.fairness import AccountView, Budget, JobHead, SkipReason, Turn, Usage, refusal
from rules.claims.machines import ClaimState, JobState, Stamp
from rules.claims.mint_questions import cure_of_cause, cure_of_refusal
from rules.claims.pod_ends import PodEnd, describe
from rules.claims.runner_brakes import ENDED_BEFORE_IT, Brake
from rules.pools.starts import Trouble
from rules.routing.access import cure_of
from rules.routing.holds import HoldReason
from rules.routing.labels import ONLY_A_GROUP, PoolLabels, describe_rule, refusing_rule

_WELL = frozenset({"success", "skipped", "neutral"})
"""Conclusions of jobs without a failure. The explanation of such a job does not mention the end of its Pod."""


class WaitsFor(StrEnum):
    """Event that must happen before a job continues."""

    NOTHING = "nothing"
    ENVIRONMENT = "environment"
    POOL = "pool"
    ROUTING = "routing"
    ACCESS = "access"
    BUDGET = "budget"
    TIME = "time"
    GITHUB = "github"
    RESTORE = "restore"
    POD = "pod"
    MATCH = "match"
    STAMP = "stamp"
    MINT = "mint"
    DELIVERY = "delivery"
    START = "start"
    RELEASE = "release"
    END = "end"


@dataclass(frozen=True, slots=True)
class RegisteredRunners:
    """The persistent runners of a pool.

    `scope` is the organisation or repository that the runners are registered in. `online` is the number of runners that
    GitHub showed as online, and `busy` the number of runners that execute a job. `failure` says why the last
    registration failed, or is None if a later one succeeded.
    """

    scope: str
    online: int
    busy: int
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The pool of a job.

    `warm` is the number of warm Pods that the matcher can use, and `taken` the number of Pods with a live job claim.
    """

    id: int
    name: str
    vcpu_millicores: int
    memory_mib: int
    replicas: int
    draining: bool
    deleted: bool
    taken: int
    warm: int
    silent: int = 0
    """Number of Pods whose polls are held by a web process that has sent no heartbeat. The matcher ignores them."""
    rerouting: bool = False
    """The routing fields of the pool have changed, and the pool's queued jobs will soon be routed again."""
    autoscaled: bool = False
    max_replicas: int = 0
    """Maximum number of replicas that the autoscaler may set. Without autoscaling, the value has no meaning."""
    paused: bool = False
    problem: str | None = None
    """Error in the RunnerPool that prevents the creation of Pods, or None."""
    trouble: Trouble | None = None
    trouble_detail: str = ""
    failing: str | None = None
    """Description of the calls that create the Pods of the pool, if they keep failing, or None."""
    gated: str | None = None
    """Description of the scheduling gates, if too few Pods are available because of them, or None."""
    without_surge: bool = False
    """A rollout found no room for a surge Pod, so the rollout retires old Pods before it creates new Pods."""
    create_after: datetime | None = None
    """Time before which no Pod is created because of failed starts, or None."""
    brake: Brake | None = None
    """Brake of the pool, or None.

    While the pool is braked, one job at a time is tried, because the pool's runners never execute.
    """
    cluster_gate: str | None = None
    """Reason why the gate of Kubernetes is closed, or None if the gate is open.

    While the gate is closed, the autoscaler adds no Pod.
    """
    runners: RegisteredRunners | None = None
    """The runners of a persistent pool, or None if the pool's runners run one job."""


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """The live claim of a job. `last_error` is the error of the claim's present step, which is retried, or None."""

    id: int
    state: ClaimState
    stamp: Stamp
    pod: str
    runner: str | None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class LostPod:
    """A Pod that ended or was deleted while the job had a delivered claim on it."""

    name: str
    end: PodEnd


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Known facts about a job.

    `ahead` is the number of jobs of the same account in the same pool that come before this job. `near` is the result
    of `closest_pool`.
    """

    id: int
    state: JobState
    hold_reason: HoldReason | None
    hold_detail: str | None
    not_before: datetime | None
    labels: tuple[str, ...]
    account_id: int
    account: str
    budget: Budget
    usage: Usage
    pool: PoolFacts | None
    ahead: int | None
    claim: ClaimFacts | None
    runner: str | None
    conclusion: str | None
    near: str | None
    turn: Turn | None = None
    """Place of a queued job in the matcher's plan, or None if the job's account is not in the plan."""
    reserved_for: str | None = None
    """The job and the pool of the reservation in `turn`, for a sentence."""
    lost: LostPod | None = None
    database_older: bool = False
    """Postgres was restored to an earlier state. No job is matched until `ostler restore` has run."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The event that a job waits for, a sentence about this event, and a cure or None."""

    waits_for: WaitsFor
    summary: str
    cure: str | None = None


def explain(job: JobFacts) -> Explanation:
    """Return the explanation of a job's state.

    If a job that runs or has failed lost its Pod, the explanation also says how the Pod ended.
    """
    found = _explain(job)
    if job.lost is None or job.conclusion in _WELL or job.state not in {JobState.COMPLETED, JobState.RUNNING}:
        return found
    told = describe(job.lost.end, pod=f"Pod {job.lost.name} of the job")
    return found if told is None else replace(found, summary=f"{found.summary} {told}.")


def _explain(job: JobFacts) -> Explanation:
    if job.state is JobState.COMPLETED:
        return Explanation(WaitsFor.NOTHING, f"The job is completed at GitHub: {job.conclusion or 'no conclusion'}.")
    if job.state is JobState.WAITING:
        return Explanation(
            WaitsFor.ENVIRONMENT,
            "GitHub holds the job for an environment; the job is not queued yet and uses no budget.",
            "Approve the deployment on GitHub, or check the environment's protection rules.",
        )
    if job.database_older and job.state is not JobState.RUNNING:
        return Explanation(
            WaitsFor.RESTORE,
            "Postgres was restored to an earlier state than the cluster, so the row of this "
            "job might be outdated, and no job is matched.",
            "Run `ostler restore` (docs/operations/recovery.md).",
        )
    if job.hold_reason is not None:
        return _held(job, job.hold_reason)
    if job.state is JobState.RUNNING:
        return Explanation(WaitsFor.END, f"The job runs on {job.runner or 'an unknown runner'}.")
    if job.state is JobState.CLAIMED:
        return _claimed(job)
    return _queued(job)


def _held(job: JobFacts, reason: HoldReason) -> Explanation:
    detail = job.hold_detail or "no detail was recorded"
    until = "an unknown time" if job.not_before is None else f"{job.not_before:%Y-%m-%d %H:%M:%S} UTC"
    labels = ", ".join(job.labels)
    match reason:
        case HoldReason.NO_POOL if not job.labels:
            return Explanation(
                WaitsFor.POOL,
                f"No pool serves the job: {ONLY_A_GROUP}.",
                "Ostler chooses the pool by labels: add the labels of a pool to `runs-on` of the workflow, beside its "
                "group. Then cancel this run and start the workflow again.",
            )
        case HoldReason.NO_POOL:
            return Explanation(
                WaitsFor.POOL,
                f"No pool serves the job: its labels are {labels}. {job.near or 'There is no pool at all.'}",
                "Add a RunnerPool whose runnerLabels contain all these labels, or correct `runs-on` of the workflow. "
                "The job continues automatically within a minute.",
            )
        case HoldReason.UNKNOWN_ACCOUNT:
            return Explanation(
                WaitsFor.ACCESS,
                f"Account {job.account} ({job.account_id}) is unknown, and no operator has allowed it.",
                f"Allow the account: {cure_of(account_id=job.account_id, login=job.account)}. The held jobs of the "
                "account then continue.",
            )
        case HoldReason.NOT_ALLOWED:
            return Explanation(
                WaitsFor.POOL,
                f"Pools have the labels of the job ({labels}), but no pool is allowed to serve the job: {detail}.",
                "Relax this rule in the spec of the RunnerPool, or add a pool that allows the job. The fields "
                "volumes.reclaim, lifecycle and registration cannot be changed (docs/operations/volumes.md). The "
                "job continues within a minute. Allow jobs of forks only in pools whose nodes and network you would "
                "lend to strangers (docs/security.md).",
            )
        case HoldReason.ORIGIN_UNKNOWN:
            return Explanation(
                WaitsFor.GITHUB,
                f"The pool of the job depends on the origin of its run, and {detail}. Ostler asks GitHub once per run.",
                (
                    "No action is needed, unless GitHub cannot be reached, or the App lacks the permission to read "
                    "Actions."
                ),
            )
        case HoldReason.RUNNER_GROUP:
            return Explanation(
                WaitsFor.POOL,
                f"The runner group of the pool does not fit the job: {detail}. The group is checked again at {until}.",
                (
                    "In the organisation: Settings, Actions, Runner groups: create the group, or correct which "
                    "repositories it admits, as the reason says. Or correct runnerGroup of the RunnerPool. The job "
                    "then continues within a minute."
                ),
            )
        case HoldReason.TWO_POOLS:
            return Explanation(
                WaitsFor.ROUTING,
                f"Several pools serve the job equally well ({detail}), and Ostler does not choose between these pools.",
                "Give one of these pools a higher routingPriority, or give the pools different labels.",
            )
        case HoldReason.BUDGET_ZERO:
            return Explanation(
                WaitsFor.BUDGET,
                f"The budget of account {job.account} allows no job at all.",
                f"Raise the budget: `ostler account set {job.account_id} --count N`, or PUT "
                f"/api/v1/accounts/{job.account_id}/budget.",
            )
        case HoldReason.BACKOFF:
            return Explanation(
                WaitsFor.TIME,
                f"Ostler could not get a runner for the job from GitHub ({detail}); the next try is not before "
                f"{until}.",
                cure_of_refusal(detail),
            )
        case HoldReason.SET_ASIDE if ENDED_BEFORE_IT in detail:
            return Explanation(
                WaitsFor.TIME,
                f"The job was set aside: {detail}. Ostler tries the job again at {until}, or when the template of the "
                "pool changes.",
                _RUNNERS_CURE,
            )
        case HoldReason.SET_ASIDE:
            return Explanation(
                WaitsFor.TIME,
                f"The job was set aside: {detail}. Ostler tries the job again at {until}.",
                cure_of_cause(detail) or "Wait until Ostler tries the job again, or cancel the job.",
            )
        case HoldReason.ASK_GITHUB:
            return Explanation(
                WaitsFor.GITHUB,
                f"The result of the job is unknown ({detail}), and Ostler asks GitHub for the result.",
                "No action is needed, unless GitHub cannot be reached or the App was removed from the account.",
            )


def _claimed(job: JobFacts) -> Explanation:
    claim = job.claim
    if claim is None:
        return Explanation(
            WaitsFor.GITHUB,
            "The job is claimed, but has no live claim. The sweep unresolved_jobs asks GitHub and repairs the state of "
            "the job.",
        )
    on = f"claim {claim.id} on Pod {claim.pod}"
    match claim.state:
        case ClaimState.CLAIMED if claim.stamp is Stamp.NONE:
            found = WaitsFor.STAMP, f"The job has {on}. The Pod is about to be stamped."
        case ClaimState.CLAIMED:
            found = WaitsFor.MINT, f"The job has {on}. Ostler is asking GitHub for the configuration of the runner."
        case ClaimState.MINTED:
            found = WaitsFor.DELIVERY, f"The job has {on}. The Pod has not fetched the configuration of its runner yet."
        case ClaimState.DELIVERED:
            found = (
                WaitsFor.START,
                f"The job has {on}. GitHub has not reported yet that runner {claim.runner} executes the job.",
            )
        case ClaimState.RELEASING:
            failed = "" if claim.last_error is None else f" The last try failed: {claim.last_error}."
            found = (
                WaitsFor.RELEASE,
                f"The job had {on}. The claim is being released, and the job is then queued again.{failed}",
            )
        case _:
            found = WaitsFor.END, f"The job has {on}, and the runner of the Pod executes a job."
    return Explanation(*found)


def _queued_at_github(job: JobFacts, pool: PoolFacts, runners: RegisteredRunners) -> Explanation:
    """Return the explanation of a job that GitHub must give to a persistent runner."""
    many = f"{runners.online} of {pool.replicas} runners are online, and {runners.busy} of them run a job"
    failure = "" if runners.failure is None else f" The last registration failed: {runners.failure}."
    failure += "" if pool.failing is None else f" The API server does not create Pods: {pool.failing}."
    most = pool.max_replicas if pool.autoscaled else pool.replicas
    short = _short_of_budget(job, pool) if pool.autoscaled else None
    if short is not None:
        failure += f" The autoscaler adds no runner for account {job.account}, whose budget has no room: {short}."
    return Explanation(
        WaitsFor.GITHUB,
        f"The runners of pool {pool.name} are persistent, so GitHub chooses a runner for the job: {many}.{failure}",
        f"{_raise(pool, most + 1)} If runners are idle, check that {runners.scope} and the pool's runnerGroup admit "
        "the repository of the job.",
    )


def _queued(job: JobFacts) -> Explanation:
    pool = job.pool
    if pool is None or pool.deleted or pool.draining:
        what = "The job has no pool" if pool is None else f"Pool {pool.name} of the job takes no new jobs"
        return Explanation(WaitsFor.POOL, f"{what}; the job is matched again within a minute.")
    if pool.rerouting:
        return Explanation(
            WaitsFor.POOL,
            (
                f"Pool {pool.name} of the job has changed, and Ostler is routing the jobs of the pool again. This job "
                "is routed soon."
            ),
        )
    if pool.runners is not None:
        return _queued_at_github(job, pool, pool.runners)
    place = _place(job.ahead)
    brake = pool.brake
    if brake is not None and brake.account_id in {None, job.account_id}:
        whose = f"pool {pool.name}" if brake.account_id is None else f"account {job.account} in pool {pool.name}"
        return Explanation(
            WaitsFor.POOL,
            f"{place} The runners of {whose} do not start: {brake.describe()}. "
            f"Ostler tries one job at a time, the next job at {brake.probe_at:%Y-%m-%d %H:%M:%S} UTC "
            "or when the previous try has ended.",
            _cure_of_brake(brake),
        )
    short = _short_of_budget(job, pool)
    if short is not None:
        return Explanation(
            WaitsFor.BUDGET,
            f"{place} Account {job.account} has no room in its budget: {short}.",
            _budget_cure(job, pool),
        )
    turn = job.turn
    if turn is not None and turn.reservation is not None and turn.refused is SkipReason.RESERVED:
        kept, since = turn.reservation, turn.reservation.queued_at
        return Explanation(
            WaitsFor.BUDGET,
            f"{place} The rest of the budget of account {job.account} is reserved for its older job "
            f"{job.reserved_for or kept.job_id}, which waits since {since:%Y-%m-%d %H:%M:%S} UTC: "
            f"{_cores(kept.vcpu_millicores)} vCPU and {_gib(kept.memory_mib)} GiB for {kept.count} job. "
            f"{_use(job, pool)}.",
            f"Wait until Pods of the account end: the older job then gets its Pod. Or raise the budget by the reserved "
            f"part: `ostler account set {job.account_id}` with --count, --vcpu or --memory.",
        )
    if pool.warm == 0:
        why, cure = _no_pod(pool)
        return Explanation(WaitsFor.POD, f"{place} No Pod of pool {pool.name} is warm: {why}.", cure)
    warm = f"Pool {pool.name} has {pool.warm} {'warm Pod' if pool.warm == 1 else 'warm Pods'}"
    if turn is not None and turn.picked:
        return Explanation(
            WaitsFor.MATCH,
            f"{place} {warm}, and no rule holds the job back: the next run of the matcher gives it a Pod.",
            "Wait a few seconds. If the job still waits after a minute, check with `ostler doctor` that workers run.",
        )
    return Explanation(
        WaitsFor.MATCH,
        f"{place} {warm} for jobs that come first: those of accounts that use less of their share, then older jobs.",
    )


def _budget_cure(job: JobFacts, pool: PoolFacts) -> str:
    """Return the cure for a full budget.

    The cure advises waiting only if the whole budget is large enough for the job.
    """
    budget, wanted = job.budget, []
    if budget.count < 1:
        wanted.append("--count 1")
    if budget.vcpu_millicores < pool.vcpu_millicores:
        wanted.append(f"--vcpu {_cores(pool.vcpu_millicores)}")
    if budget.memory_mib < pool.memory_mib:
        wanted.append(f"--memory {_gib(pool.memory_mib)}")
    if not wanted:
        return (
            "Wait until a Pod of the account ends. A Pod counts in the budget until it ends, even after its job. Or "
            "raise the budget: "
            f"`ostler account set {job.account_id}` with --count, --vcpu or --memory."
        )
    return (
        "Waiting does not help: the whole budget is too small for one job of this pool. Raise the budget to this size "
        "or more: "
        f"`ostler account set {job.account_id} {' '.join(wanted)}`."
    )


def _no_pod(pool: PoolFacts) -> tuple[str, str]:
    """Return the reason why no Pod is warm, and the cure.

    If there are several obstacles, the reason is the first obstacle that a person can remove.
    """
    if pool.problem is not None:
        return f"the RunnerPool is invalid ({pool.problem})", f"Correct the spec of RunnerPool {pool.name}."
    if pool.paused:
        return "the pool is paused and creates no Pods", f"Resume the pool: `ostler pool resume {pool.name}`."
    most = pool.max_replicas if pool.autoscaled else pool.replicas
    if most <= 0:
        field = "spec.autoscaling.maxReplicas" if pool.autoscaled else "replicas"
        return f"the field {field} of the pool is 0", f"Waiting does not help. {_raise(pool, 1)}"
    if pool.failing is not None:
        return f"the API server does not create its Pods ({pool.failing})", _FAILING_CURE
    if pool.trouble is not None:
        why, cure = _TROUBLES[pool.trouble]
        detail = f" ({pool.trouble_detail})" if pool.trouble_detail else ""
        after = pool.create_after
        later = "" if after is None else f"; the next Pod is not created before {after:%Y-%m-%d %H:%M:%S} UTC"
        return f"{why}{detail}{later}", cure
    if pool.silent > 0:
        return f"{pool.silent} of its Pods poll a web process that has sent no heartbeat for 15 seconds", (
            "Check that the web processes run and reach Postgres. The Pods poll another web process when their "
            "connection ends."
        )
    if pool.gated is not None:
        return pool.gated[:1].lower() + pool.gated[1:], _GATED_CURE
    counts = f"{pool.taken} of {pool.replicas} Pods have a job"
    if pool.taken < pool.replicas:
        why = ", without a surge Pod because no node has room for one more" if pool.without_surge else ""
        return f"{counts}, and the others start, end or are replaced{why}", (
            "Wait until a Pod starts. If none starts within a few minutes, run "
            f"`kubectl describe rpool {pool.name}` in the namespace of the pool."
        )
    if not pool.autoscaled or pool.replicas >= most:
        return counts, f"Wait until one of these jobs ends, or make the pool larger. {_raise(pool, most + 1)}"
    if pool.cluster_gate is not None:
        return f"{counts}, and the autoscaler adds no Pods while the gate of Kubernetes is closed", (
            f"See `ostler gates`: {pool.cluster_gate}."
        )
    return f"{counts}, and the autoscaler can set up to {most} replicas", (
        "Wait: the autoscaler adds Pods within seconds. If it adds none, `ostler pool list --why` shows the reason."
    )


def _cure_of_brake(brake: Brake) -> str:
    if not brake.too_old:
        return _RUNNERS_CURE
    return _TOO_OLD_CURE if brake.accepted is None else _DISPUTED_CURE


def _raise(pool: PoolFacts, least: int) -> str:
    """Return a sentence that tells an operator how to enlarge a pool to at least `least` Pods.

    In an autoscaled pool, the operator may only change `maxReplicas`.
    """
    if pool.autoscaled:
        return f"Set spec.autoscaling.maxReplicas of RunnerPool {pool.name} to {least} or more."
    return f"Set the replicas: `ostler pool scale {pool.name} {least}`, or more."


_TOO_OLD_CURE = "Use an image with a newer runner in the RunnerPool. The pool resumes as soon as its template changes."
_DISPUTED_CURE = (
    "Wait until GitHub accepts the version again; the pool then resumes by itself. A newer runner might help."
)
_RUNNERS_CURE = (
    "See the log of container `runner` of a Pod of the pool. Usual causes are a broken image, a read-only file system, "
    "a missing proxy or CA, and no route to GitHub. The pool resumes with its first execution, or when its template "
    "changes."
)
_FAILING_CURE = (
    "Repair the component that the message names, for example an admission webhook without running Pods. Ostler "
    "repeats the calls with each reconcile."
)
_GATED_CURE = (
    "Wait until the program that manages the gates, for example Kueue, admits the Pods, or give the queue of this "
    "program more room."
)

_TROUBLES = {
    Trouble.IMAGE: (
        "the nodes cannot pull its image",
        "Correct `image` of the RunnerPool, or the registry's credentials. A new Pod is created right after a change.",
    ),
    Trouble.CONTAINER: (
        "the containers of its Pods cannot be created or started",
        "Check that each Secret, ConfigMap and volume that its Pod template names exists in its namespace.",
    ),
    Trouble.UNSCHEDULABLE: (
        "no node accepts its Pods",
        "Add nodes, or lower the resources of the pool, or correct its node selector and tolerations.",
    ),
    Trouble.POLLER: (
        "its Pods end before their first poll",
        "See the log of container `poller` of one of these Pods. The log shows why web refused the poll.",
    ),
    Trouble.UNRESPONSIVE: (
        "its Pods run, but web receives no poll from them",
        "Check that the Pods reach web at OSTLER_DISPATCH_URL: DNS, network policies, and the log of `poller`.",
    ),
    Trouble.REFUSED: (
        "the API server refuses its Pods",
        "Correct what the message names: Pod Security of the namespace, an admission webhook, or a field of the spec.",
    ),
    Trouble.QUOTA: (
        "a ResourceQuota of its namespace is used up",
        "Raise the quota, or make pools of this namespace smaller. The next Pod is created when there is room.",
    ),
}


def _place(ahead: int | None) -> str:
    if not ahead:
        return "The job is the next job of its account in its pool."
    return (
        "1 job of the same account in the same pool comes first."
        if ahead == 1
        else f"{ahead} jobs of the same account in the same pool come first."
    )


def _short_of_budget(job: JobFacts, pool: PoolFacts) -> str | None:
    size = JobHead(
        job_id=job.id,
        account_id=job.account_id,
        priority=0,
        queued_at=datetime.min,  # noqa: DTZ901
        pool_id=pool.id,
        vcpu_millicores=pool.vcpu_millicores,
        memory_mib=pool.memory_mib,
    )
    account = AccountView(account_id=job.account_id, weight=1, budget=job.budget, usage=job.usage)
    if refusal(size, account) not in {SkipReason.BUDGET_ZERO, SkipReason.OVER_BUDGET}:
        return None
    return _use(job, pool)[0].lower() + _use(job, pool)[1:]


def _use(job: JobFacts, pool: PoolFacts) -> str:
    """Return a sentence about the budget and the usage of the job's account, and about the size of the job's Pod."""
    budget, usage = job.budget, job.usage
    return (
        f"It uses {usage.count} of {budget.count} jobs, {_cores(usage.vcpu_millicores)} of "
        f"{_cores(budget.vcpu_millicores)} vCPU and {_gib(usage.memory_mib)} of {_gib(budget.memory_mib)} GiB, and "
        f"this job needs {_cores(pool.vcpu_millicores)} vCPU and {_gib(pool.memory_mib)} GiB"
    )


def _cores(millicores: int) -> str:
    return f"{millicores / 1000:g}"


def _gib(mib: int) -> str:
    return f"{mib / 1024:g}"


def closest_pool(
    pools: Sequence[tuple[str, PoolLabels]], *, labels: Iterable[str], account_id: int, repository: str
) -> str | None:
    """Return a sentence about the pool that comes closest to serving a job.

    Return None if there is no pool, or if the job has no labels. `pools` has the name and the routing fields of each
    pool.
    """
    wanted = frozenset(label.lower() for label in labels)
    if not pools or not wanted:
        return None
    name, pool = min(pools, key=lambda pair: (len(wanted - pair[1].labels), pair[0]))
    missing = sorted(wanted - pool.labels)
    if missing:
        return f"The closest pool is {name}, which lacks the labels {', '.join(missing)}."
    rule = refusing_rule(pool, account_id=account_id, full_name=repository.lower(), public=False, fork=False)
    if rule is not None:
        return f"Pool {name} has these labels, but {describe_rule(rule, account_id=account_id, repository=repository)}."
    return f"Pool {name} serves the job now."
