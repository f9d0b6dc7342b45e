"""Diagnoses of a Pod, a pool and an account, as ordered checks with evidence, time and source.

The rules that decide are elsewhere. The functions of this module put their results in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rules.claims.fairness import Budget, Usage
from rules.claims.hook_pods import HookPod
from rules.claims.machines import ClaimState, Purpose
from rules.claims.mint_questions import cure_of_cause
from rules.claims.pod_ends import How, PodEnd, describe
from rules.routing.access import cure_of
from rules.waiting.budgets import cores, gib
from rules.waiting.facts import HeldAccount, SupplyFacts
from rules.waiting.held import held_by
from rules.waiting.pods import cure_of_brake, enlarge, why_no_pod
from rules.waiting.steps import Diagnosis, Explanation, Finding, Result, Source, sentence

_ENDS = {How.COMPLETED, How.UNKNOWN}
"""Ends of Pods that are no problem, as far as is known."""


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A Pod as the reconciler's last list of Pods shows it. `at` is the time at which the list began.

    `volumes` is True if the Pod has a volume that might be attached to another node. `obstacle` says why the Pod does
    not start, or is None.
    """

    at: datetime
    phase: str
    node: str | None
    terminating: bool
    volumes: bool
    obstacle: str | None


@dataclass(frozen=True, slots=True)
class LiveClaim:
    """The live claim of a Pod. The sweep `resume` continues the claim after `due_at`.

    `seen` is the status of the runner in GitHub's last list of runners, or None if the runner was in no list.
    `postponed` is the rate limit that makes the present step of the claim wait, or None: such a step has not failed.
    """

    id: int
    purpose: Purpose
    state: ClaimState
    job_id: int | None
    due_at: datetime | None
    runner: str | None = None
    seen: str | None = None
    seen_at: datetime | None = None
    last_error: str | None = None
    postponed: str | None = None


@dataclass(frozen=True, slots=True)
class Executed:
    """The last job that GitHub reported for a runner of the Pod."""

    job_id: int
    runner: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Facts about a runner Pod.

    - `listed`: None if the last list of its pool does not show the Pod, or there is no list.
    - `delivered`: a JIT was delivered to the Pod.
    - `quiet_until`: the Pod counts as unresponsive after this time. None if it polls, or if this rule does not apply.
    - `stuck`: the sweep `gone_nodes` checks whether the Pod must be deleted by force.
    - `started`: the last event of its claims that a job started, in words and with its time. None if there is none.
      A claim that ended before its job has the event, but the execution does not refer to it any more.
    - `hooks`: its hook Pods as the watch saw them last, oldest first. Hidden from the reader if the end is hidden.
    - `last_node`: the node that a Pod had which is gone, or None if it is not known.
    - `end`: None if the end is hidden from the reader.
    - `volume_reclaim`: None if the runners of the pool have no volumes.
    """

    pool: str
    workload: str
    start_timeout: float
    volume_reclaim: str | None
    created_at: datetime
    first_polled_at: datetime | None
    polled_at: datetime | None
    over_at: datetime | None
    node_gone_at: datetime | None
    gone_at: datetime | None
    listed: ListedPod | None
    claim: LiveClaim | None
    delivered: bool
    quiet_until: datetime | None
    stuck: bool
    executed: Executed | None
    end: PodEnd | None
    started: tuple[str, datetime] | None = None
    hooks: Sequence[HookPod] = ()
    last_node: str | None = None


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds between two ticks of a sweep, two runs of `resume` and two reconciles of a pool."""

    sweep: float
    resume: float
    reconcile: float


def of_pod(pod: PodFacts, *, periods: Periods, now: datetime) -> Diagnosis:
    """Return the diagnosis of a Pod: its four sources, its end, and what Ostler does with it next."""
    checks = [
        Finding("created", Result.PASSED, f"by the reconciler of pool {pod.pool}", Source.POSTGRES, pod.created_at),
        _kubernetes(pod),
        _polls(pod),
        _claim(pod),
        _runner(pod),
        _end(pod),
        _containers(pod),
        _node(pod),
        _volumes(pod),
        _hook_pods(pod),
        _next(pod, periods=periods, now=now),
    ]
    return Diagnosis.of(checks, otherwise="No problem of this Pod is known.")


def _kubernetes(pod: PodFacts) -> Finding:
    listed = pod.listed
    if listed is None:
        why = "the Pod is gone" if pod.gone_at is not None else "the last list of Pods does not show it"
        return Finding("kubernetes", Result.OPEN, why, Source.KUBERNETES, pod.gone_at)
    words = [f"phase {listed.phase}", f"node {listed.node}" if listed.node else "no node yet"]
    words += ["a deletion was requested"] if listed.terminating else []
    words += [listed.obstacle] if listed.obstacle else []
    result = Result.WAITS if listed.obstacle else Result.PASSED
    return Finding("kubernetes", result, ", ".join(words), Source.KUBERNETES, listed.at)


def _polls(pod: PodFacts) -> Finding:
    if pod.first_polled_at is None or pod.polled_at is None:
        return Finding("polls", Result.OPEN, "the Pod has never polled", Source.POSTGRES)
    seconds = max(0.0, (pod.first_polled_at - pod.created_at).total_seconds())
    words = f"the first poll came {seconds:.0f} s after the creation"
    if pod.quiet_until is None:
        return Finding("polls", Result.PASSED, words, Source.POSTGRES, pod.polled_at)
    return Finding("polls", Result.WAITS, f"{words}, but the Pod polls no more", Source.POSTGRES, pod.polled_at)


def _claim(pod: PodFacts) -> Finding:
    claim = pod.claim
    if claim is None:
        return Finding("claim", Result.OPEN, "no live claim", Source.POSTGRES)
    words = f"{claim.purpose} claim {claim.id} is {claim.state}"
    words += "" if claim.job_id is None else f" for job {claim.job_id}"
    if claim.postponed is not None:
        cure = cure_of_cause(claim.postponed)
        return Finding("claim", Result.WAITS, f"{words}; its step waits: {claim.postponed}", Source.POSTGRES, cure=cure)
    if claim.last_error is None:
        return Finding("claim", Result.PASSED, words, Source.POSTGRES)
    return Finding("claim", Result.WAITS, f"{words}; its last step failed: {claim.last_error}", Source.POSTGRES)


def _runner(pod: PodFacts) -> Finding:
    if (claim := pod.claim) is not None and claim.seen is not None:
        return Finding("runner", Result.PASSED, f"{claim.runner} is {claim.seen}", Source.GITHUB, claim.seen_at)
    if (job := pod.executed) is not None:
        what = "executes" if job.ended_at is None else "executed"
        words = f"{job.runner} {what} job {job.job_id}"
        return Finding("runner", Result.PASSED, words, Source.GITHUB, job.ended_at or job.started_at)
    if pod.started is not None:
        words, at = pod.started
        return Finding("runner", Result.PASSED, words, Source.GITHUB, at)
    words = "GitHub has reported no job of its runner" if pod.delivered else "the Pod never got a runner's credential"
    return Finding("runner", Result.OPEN, words, Source.GITHUB)


def _containers(pod: PodFacts) -> Finding:
    end = pod.end
    if end is None:
        return Finding("containers", Result.OPEN, _HIDDEN, Source.POD)
    codes = [
        f"{name} ended with exit code {code}"
        for name, code in (("poller", end.poller_exit_code), ("runner", end.runner_exit_code))
        if code is not None
    ]
    if not codes:
        return Finding("containers", Result.OPEN, "no exit code is known", Source.POD)
    bad = bool(end.runner_exit_code) or bool(end.poller_exit_code)
    return Finding("containers", Result.WAITS if bad else Result.PASSED, " and ".join(codes), Source.POD, pod.over_at)


_HIDDEN = "your token does not show it, because the Pod also had a job of another account"


def _end(pod: PodFacts) -> Finding:
    end = pod.end
    if end is None:
        return Finding("end", Result.OPEN, _HIDDEN, Source.KUBERNETES)
    words = describe(end, pod="it")
    if words is None:
        return Finding("end", Result.OPEN, "no component has seen the Pod end", Source.KUBERNETES)
    result = Result.PASSED if end.how in _ENDS or end.ours else Result.WAITS
    return Finding("end", result, words, Source.KUBERNETES, end.deletion_at or pod.over_at or pod.gone_at)


def _node(pod: PodFacts) -> Finding:
    if pod.node_gone_at is not None:
        return Finding("node", Result.WAITS, "the node of the Pod is gone", Source.KUBERNETES, pod.node_gone_at)
    if pod.gone_at is not None and pod.last_node is not None:
        return Finding("node", Result.PASSED, f"it was on node {pod.last_node}", Source.KUBERNETES, pod.gone_at)
    if pod.listed is None or pod.listed.node is None:
        return Finding("node", Result.OPEN, "no node is known", Source.KUBERNETES)
    return Finding("node", Result.PASSED, f"node {pod.listed.node} is not gone", Source.KUBERNETES, pod.listed.at)


def _volumes(pod: PodFacts) -> Finding:
    if pod.volume_reclaim is None:
        return Finding("volumes", Result.PASSED, f"the pool has no volumes (workload {pod.workload})", Source.POSTGRES)
    attached = pod.listed is not None and pod.listed.volumes
    words = f"volumes of a {pod.workload}, reclaim {pod.volume_reclaim}"
    words += "; one might be attached, so only a fenced node lets Ostler delete the Pod by force" if attached else ""
    return Finding("volumes", Result.PASSED, words, Source.KUBERNETES)


def _hook_pods(pod: PodFacts) -> Finding:
    if pod.end is None:
        return Finding("hook pods", Result.OPEN, _HIDDEN, Source.KUBERNETES)
    if not pod.hooks:
        return Finding("hook pods", Result.OPEN, "the watch has seen none", Source.KUBERNETES)
    failed = [each for each in pod.hooks if each.problem is not None]
    shown = (failed or pod.hooks)[-_MOST_HOOKS:]
    words = ", ".join(each.describe() for each in shown)
    words += f" and {len(pod.hooks) - len(shown)} more" if len(pod.hooks) > len(shown) else ""
    result = Result.WAITS if failed else Result.PASSED
    return Finding("hook pods", result, words, Source.KUBERNETES, shown[-1].seen_at)


_MOST_HOOKS = 3
"""Maximum number of hook Pods in one check."""


def _next(pod: PodFacts, *, periods: Periods, now: datetime) -> Finding:
    """Return which part of Ostler acts on the Pod next. `at` is the earliest time at which it can act."""

    def acts(who: str, what: str, every: float, at: datetime | None = None) -> Finding:
        return Finding("next", Result.OPEN, f"{who} {what} (every {every:g} s)", Source.POSTGRES, at)

    if pod.gone_at is not None:
        return Finding("next", Result.PASSED, "nothing: the Pod is gone", Source.POSTGRES)
    claim = pod.claim
    if pod.stuck:
        return acts("the sweep gone_nodes", "checks whether it must delete the Pod by force", periods.sweep)
    if pod.node_gone_at is not None and pod.delivered:
        return acts("the sweep finished_jobs", "asks GitHub whether the job of the Pod is over", periods.sweep)
    if pod.over_at is not None:
        return acts("the reconciler of the pool", "ends the claim of the Pod and deletes the Pod", periods.reconcile)
    if claim is not None and claim.state is ClaimState.EXECUTING:
        return acts("the sweep missing_pods", "checks that the Pod still exists", periods.sweep)
    if claim is not None:
        return acts("the sweep resume", "continues the claim if no message does", periods.resume, claim.due_at)
    if pod.first_polled_at is None:
        due = pod.created_at + timedelta(seconds=pod.start_timeout)
        return acts("the reconciler of the pool", "replaces the Pod if it has not polled", periods.reconcile, due)
    if pod.quiet_until is not None:
        due = max(pod.quiet_until, now)
        return acts("the sweep unresponsive_pods", "retires the Pod if it does not poll", periods.sweep, due)
    return Finding("next", Result.PASSED, "nothing: the Pod waits for a job", Source.POSTGRES)


@dataclass(frozen=True, slots=True)
class Counted:
    """The Pods of a pool by state, in words, as the reconciler counted them at `at`."""

    words: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PoolQueue:
    """The queue of a pool, and what the commands already say about the pool's problem (`trouble`, or empty)."""

    queued: int
    held: int
    oldest_queued_at: datetime | None
    trouble: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The last decision of the autoscaler."""

    verdict: str
    why: str
    at: datetime | None


def of_pool(
    pool: SupplyFacts, queue: PoolQueue, counted: Counted | None, decision: Decision | None, *, fleet: str | None
) -> Diagnosis:
    """Return the diagnosis of a pool. `fleet` is what stops the whole fleet, or None."""
    found = [
        Finding("fleet", Result.WAITS if fleet else Result.PASSED, fleet or "nothing stops it", Source.POSTGRES),
        Finding(
            "queue",
            Result.OPEN if queue.held else Result.PASSED,
            f"{queue.queued} queued and {queue.held} held jobs",
            Source.POSTGRES,
            queue.oldest_queued_at,
        ),
        Finding("pods", Result.OPEN, "no reconcile has counted them", Source.KUBERNETES)
        if counted is None
        else Finding("pods", Result.PASSED, counted.words or "none", Source.KUBERNETES, counted.at),
    ]
    if pool.spec.terminating:
        why = "the RunnerPool was deleted" if pool.deleted else f"the pool drains: {queue.trouble or 'it has begun'}"
        found.append(Finding("spec", Result.WAITS, why, Source.KUBERNETES))
    elif pool.rerouting:
        why = "the routing of the pool has changed, and its queued jobs are routed again"
        found.append(Finding("spec", Result.WAITS, why, Source.POSTGRES))
    else:
        found += [_status(pool, queue.trouble), _free(pool, waits=queue.queued > 0)]
    if pool.brake is not None:
        why = f"the runners of its Pods end before a job begins ({pool.brake.describe()})"
        found.append(Finding("runners", Result.WAITS, why, Source.POSTGRES, cure=cure_of_brake(pool.brake)))
    elif pool.runners is not None:
        why = f"{pool.runners.online} persistent runners are online in {pool.runners.scope}, {pool.runners.busy} busy"
        failed = f"; the last registration failed: {pool.runners.failure}" if pool.runners.failure else ""
        found.append(Finding("runners", Result.WAITS if failed else Result.PASSED, why + failed, Source.GITHUB))
    else:
        found.append(Finding("runners", Result.PASSED, "its runners execute jobs", Source.POSTGRES))
    found.append(_autoscaler(pool, decision))
    return Diagnosis.of(found, otherwise="Nothing is in the way of this pool.")


def _status(pool: SupplyFacts, trouble: str) -> Finding:
    """Return what the status of the RunnerPool and its held jobs say."""
    if not trouble:
        return Finding("status", Result.PASSED, "no problem detected", Source.KUBERNETES)
    cure = why_no_pod(pool)[1] if pool.spec.problem or pool.failing or pool.trouble else None
    return Finding("status", Result.WAITS, trouble, Source.KUBERNETES, cure=cure)


def _free(pool: SupplyFacts, *, waits: bool) -> Finding:
    """Return whether the pool has a warm Pod, and why not. It is a problem only while a job waits for a Pod."""
    if pool.warm:
        words = "1 Pod is warm" if pool.warm == 1 else f"{pool.warm} Pods are warm"
        return Finding("warm", Result.PASSED, words, Source.KUBERNETES)
    why, cure = why_no_pod(pool)
    result = Result.WAITS if waits else Result.OPEN
    return Finding("warm", result, f"no Pod is warm: {why}", Source.KUBERNETES, cure=cure)


def _autoscaler(pool: SupplyFacts, decision: Decision | None) -> Finding:
    if not pool.spec.autoscaled:
        words = f"off; `ostler pool scale` sets the replicas, which are {pool.spec.replicas}"
        return Finding("autoscaler", Result.PASSED, words, Source.POSTGRES)
    if decision is None:
        return Finding("autoscaler", Result.OPEN, "it has not checked the pool yet", Source.POSTGRES)
    full = pool.spec.replicas >= pool.spec.max_replicas
    words = f"{decision.verdict}: {decision.why}"
    cure = enlarge(pool, pool.spec.max_replicas + 1) if full else None
    return Finding("autoscaler", Result.PASSED, words, Source.POSTGRES, decision.at, cure)


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """Facts about an account.

    `share` is its part of the weights of all accounts with queued jobs, or None if it has none or the share is hidden
    from the reader. `held_account` is None for an allowed account. `oldest` is the explanation of its oldest queued job
    without a hold, with the id and the time of the job.
    """

    id: int
    login: str
    held_account: HeldAccount | None
    weight: float
    budget: Budget
    usage: Usage
    ending: int
    queued: int
    held: int
    share: float | None
    oldest: tuple[int, datetime, Explanation] | None


def of_account(account: AccountFacts) -> Diagnosis:
    """Return the diagnosis of an account: access, budget, share, queue, and what its oldest job waits for."""
    budget, usage = account.budget, account.usage
    full = (
        usage.count >= budget.count
        or usage.vcpu_millicores >= budget.vcpu_millicores
        or usage.memory_mib >= budget.memory_mib
    )
    words = (
        f"{usage.count} of {budget.count} Pods, {cores(usage.vcpu_millicores)} of {cores(budget.vcpu_millicores)} "
        f"vCPU, {gib(usage.memory_mib)} of {gib(budget.memory_mib)} GiB"
    )
    words += f"; {account.ending} of these Pods are ending" if account.ending else ""
    checks = [
        Finding("access", Result.PASSED, "the account is allowed", Source.POSTGRES)
        if account.held_account is None
        else Finding(
            "access",
            Result.WAITS,
            f"the account is {held_by(account.held_account)}, so its queued jobs wait",
            Source.POSTGRES,
            cure=sentence(cure_of(account_id=account.id, login=account.login)),
        ),
        Finding(
            "budget",
            Result.WAITS if full and account.queued else Result.PASSED,
            f"the budget is used up: {words}" if full else words,
            Source.POSTGRES,
            cure=f"Wait until a Pod of the account ends, or raise the budget: `ostler account set {account.id}` with "
            "--count, --vcpu or --memory."
            if full
            else None,
        ),
        _share(account),
    ]
    if account.oldest is not None:
        job_id, queued_at, why = account.oldest
        ahead = f", behind {why.ahead} jobs of the account in its pool" if why.ahead else ""
        checks.append(
            Finding(
                "oldest",
                Result.WAITS,
                f"job {job_id} waits longest{ahead}: {why.summary}",
                Source.POSTGRES,
                queued_at,
                why.cure,
            )
        )
    checks.append(
        Finding(
            "queue",
            Result.WAITS if account.held else Result.PASSED,
            f"{account.queued} queued and {account.held} held jobs",
            Source.POSTGRES,
            cure=f"`ostler jobs --held --account {account.id}` shows the reason of each hold."
            if account.held
            else None,
        )
    )
    return Diagnosis.of(checks, otherwise="No job of this account waits.")


def _share(account: AccountFacts) -> Finding:
    if account.share is None:
        words = f"weight {account.weight:g}; the account competes only while it has queued jobs"
        return Finding("share", Result.OPEN, words, Source.POSTGRES)
    words = f"weight {account.weight:g}, {account.share:.0%} of the weights of all accounts with queued jobs"
    return Finding("share", Result.PASSED, words, Source.POSTGRES)
