"""Explanation of a job's state: the step that the job waits at, a cure, and the checks of all its steps.

The API, the commands and the dashboard give the same explanation. Each check calls the functions that decide
(`rules.claims.fairness`) or reads the decision from a row, so it cannot name another rule than the one that left the
job. The first check that the job cannot pass is the explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from rules.claims.fairness import SkipReason
from rules.claims.machines import ClaimState, JobState, Stamp
from rules.claims.mint_questions import cure_of_cause
from rules.claims.pod_ends import describe
from rules.routing.holds import HoldReason
from rules.waiting.budgets import budget_cure, cores, gib, short_of_budget, use_of_budget
from rules.waiting.facts import ClaimFacts, JobFacts, RegisteredRunners, SupplyFacts
from rules.waiting.held import explain_hold
from rules.waiting.pods import cure_of_brake, enlarge, why_no_pod
from rules.waiting.steps import Check, Explanation, Result, Step, WaitsFor

_WELL = frozenset({"success", "skipped", "neutral"})
"""Conclusions of jobs without a failure. The explanation of such a job does not mention the end of its Pod."""

UNKNOWN_JOB = (
    "If GitHub shows the job, its webhook was lost: the sweeps redelivery and catch_up find the job within ten "
    "minutes, if the App is installed for its repository."
)
"""Cure for a job that Ostler does not know. It might also be deleted, or hidden from the reader."""

_STEP_OF_HOLD: Mapping[HoldReason, Step] = {
    HoldReason.NO_POOL: Step.POOL,
    HoldReason.UNKNOWN_ACCOUNT: Step.ACCOUNT,
    HoldReason.NOT_ALLOWED: Step.POOL,
    HoldReason.ORIGIN_UNKNOWN: Step.POOL,
    HoldReason.RUNNER_GROUP: Step.RUNNER_GROUP,
    HoldReason.TWO_POOLS: Step.POOL,
    HoldReason.BUDGET_ZERO: Step.BUDGET,
    HoldReason.BACKOFF: Step.BACKOFF,
    HoldReason.SET_ASIDE: Step.BACKOFF,
    HoldReason.ASK_GITHUB: Step.ANSWER,
}

_IN_LINE = frozenset({Step.RUNNERS, Step.BUDGET, Step.POD, Step.TURN})
"""Steps at which the explanation of a job begins with the job's place in the queue of its account."""

_OPTIONAL = frozenset({Step.ANSWER, Step.RELEASE})
"""Steps that only a job has that waits at them."""


@dataclass(frozen=True, slots=True)
class _Passed:
    """Outcome of a check that does not stop the job, with the time at which the job passed the step, if known."""

    evidence: str
    at: datetime | None = None


_Outcome = Explanation | _Passed | None
"""An explanation if the job cannot pass the step. None if nothing is known about the step."""


def explain(job: JobFacts) -> Explanation:
    """Return the explanation of a job's state.

    If a job that runs or has failed lost its Pod, the explanation also says how the Pod ended.
    """
    if job.state is JobState.COMPLETED:
        summary = f"The job is completed at GitHub: {job.conclusion or 'no conclusion'}."
        return _with_lost_pod(job, Explanation(WaitsFor.NOTHING, summary))
    if job.state is JobState.RUNNING:
        runs = Explanation(WaitsFor.END, f"The job runs on {job.runner or 'an unknown runner'}.")
        return _with_lost_pod(job, runs if job.hold_reason is None else explain_hold(job, job.hold_reason))
    found, checks = _check_steps(job)
    expected = job.expected if job.state is JobState.QUEUED else None
    return _with_lost_pod(job, replace(found, ahead=job.ahead, expected=expected, checks=checks))


def _check_steps(job: JobFacts) -> tuple[Explanation, tuple[Check, ...]]:
    """Return the explanation of the first step that the job cannot pass, and the results of all steps."""
    # After the first step that the job cannot pass, only the checks of a dispatched job with current rows say more.
    knows_more = _is_dispatched(job) and not job.database_older
    found: Explanation | None = None
    checks: list[Check] = []
    for step, check in _CHECKS.items():
        outcome = check(job) if found is None or knows_more else None
        if step is Step.TURN and found is not None and isinstance(outcome, Explanation):
            outcome = _Passed(_place(job.ahead))  # the turn is not what the job waits for
        if isinstance(outcome, Explanation):
            checks.append(_line(step, Result.WAITS, outcome.summary))
            if found is None:
                place = f"{_place(job.ahead)} " if _is_dispatched(job) and step in _IN_LINE else ""
                found = replace(outcome, summary=place + outcome.summary)
        elif isinstance(outcome, _Passed):
            result = Result.PASSED if found is None else Result.OPEN
            checks.append(_line(step, result, outcome.evidence, outcome.at))
        elif found is not None and step not in _OPTIONAL and not (step in _CHOSEN_HERE and _is_persistent(job)):
            checks.append(_line(step, Result.OPEN))
    if found is None:
        raise AssertionError(f"no check explains job {job.id} in state {job.state}")
    return found, tuple(checks)


def _line(step: Step, result: Result, evidence: str | None = None, at: datetime | None = None) -> Check:
    return Check(step, result, evidence, at, step.source)


def _with_lost_pod(job: JobFacts, found: Explanation) -> Explanation:
    if job.lost is None or job.conclusion in _WELL or job.state not in {JobState.COMPLETED, JobState.RUNNING}:
        return found
    told = describe(job.lost.end, pod=f"Pod {job.lost.name} of the job")
    return found if told is None else replace(found, summary=f"{found.summary} {told}.")


def _hold_at(job: JobFacts, step: Step) -> Explanation | None:
    """Return the explanation of the job's hold if the job is held at `step`."""
    if job.hold_reason is None or _STEP_OF_HOLD[job.hold_reason] is not step:
        return None
    tries_again = job.hold_reason in {HoldReason.RUNNER_GROUP, HoldReason.BACKOFF, HoldReason.SET_ASIDE}
    return replace(explain_hold(job, job.hold_reason), next_at=job.not_before if tries_again else None)


def _environment(job: JobFacts) -> _Outcome:
    if job.state is JobState.WAITING:
        return Explanation(
            WaitsFor.ENVIRONMENT,
            "GitHub holds the job for an environment; the job is not queued yet and uses no budget.",
            "Approve the deployment on GitHub, or check the environment's protection rules.",
        )
    return _Passed("GitHub has queued the job.", job.queued_at)


def _records(job: JobFacts) -> _Outcome:
    if not job.database_older:
        return _Passed("Postgres has the current rows.")
    return Explanation(
        WaitsFor.RESTORE,
        "Postgres was restored to an earlier state than the cluster, so the row of this job might be outdated, and no "
        "job is matched.",
        "Run `ostler restore` (docs/operations/recovery.md).",
    )


def _answer(job: JobFacts) -> _Outcome:
    if job.state is JobState.CLAIMED and job.claim is None and job.hold_reason is None:
        return Explanation(
            WaitsFor.GITHUB,
            "The job is claimed, but has no live claim. The sweep unresolved_jobs asks GitHub and repairs the state of "
            "the job.",
        )
    return _hold_at(job, Step.ANSWER)


def _account(job: JobFacts) -> _Outcome:
    if (held := _hold_at(job, Step.ACCOUNT)) is not None:
        return held
    if job.held is not None and _is_dispatched(job):  # `rematch` has not held its jobs yet
        return explain_hold(job, HoldReason.UNKNOWN_ACCOUNT)
    return None if _is_in_doubt(job) or job.held is not None else _Passed(f"Account {job.account} is allowed.")


def _is_in_doubt(job: JobFacts) -> bool:
    """Return True if GitHub is asked about the job. This hold can replace another hold, which is then not known."""
    return job.hold_reason is HoldReason.ASK_GITHUB


def _pool(job: JobFacts) -> _Outcome:
    if (held := _hold_at(job, Step.POOL)) is not None:
        return held
    pool = job.pool
    if job.state is not JobState.QUEUED or job.hold_reason is not None:
        serves = pool is not None and not (pool.spec.terminating or _is_in_doubt(job))
        return _Passed(f"Pool {pool.spec.name} serves the job.") if pool is not None and serves else None
    if pool is None or pool.spec.terminating:
        what = "The job has no pool" if pool is None else f"Pool {pool.spec.name} of the job takes no new jobs"
        return Explanation(WaitsFor.POOL, f"{what}; the job is matched again within a minute.")
    if pool.rerouting:
        return Explanation(
            WaitsFor.POOL,
            f"Pool {pool.spec.name} of the job has changed, and Ostler is routing the jobs of the pool again. This job "
            "is routed soon.",
        )
    return _Passed(f"Pool {pool.spec.name} serves the job.")


def _runner_group(job: JobFacts) -> _Outcome:
    if (held := _hold_at(job, Step.RUNNER_GROUP)) is not None:
        return held
    # The group is checked after a budget of 0.
    if job.pool is None or job.hold_reason is HoldReason.BUDGET_ZERO or _is_in_doubt(job):
        return None
    return _Passed(f"No known runner group of pool {job.pool.spec.name} refuses the repository.")


def _backoff(job: JobFacts) -> _Outcome:
    if (held := _hold_at(job, Step.BACKOFF)) is not None:
        return held
    return None if job.hold_reason is not None else _Passed("No refusal by GitHub makes the job wait.")


def _runners(job: JobFacts) -> _Outcome:
    if (pool := _pool_of_dispatched(job)) is None:
        return None
    if pool.runners is not None:
        return _queued_at_github(job, pool, pool.runners)
    brake = pool.brake
    if brake is None or brake.account_id not in {None, job.account_id}:
        return _Passed(f"No failures of runners limit pool {pool.spec.name} for this account.")
    whose = f"pool {pool.spec.name}" if brake.account_id is None else f"account {job.account} in pool {pool.spec.name}"
    return Explanation(
        WaitsFor.POOL,
        f"The runners of {whose} do not start: {brake.describe()}. Ostler tries one job at a time, the next job at "
        f"{brake.probe_at:%Y-%m-%d %H:%M:%S} UTC or when the previous try has ended.",
        cure_of_brake(brake),
        next_at=brake.probe_at,
    )


def _queued_at_github(job: JobFacts, pool: SupplyFacts, runners: RegisteredRunners) -> Explanation:
    """Return the explanation of a job that GitHub must give to a persistent runner."""
    many = f"{runners.online} of {pool.spec.replicas} runners are online, and {runners.busy} of them run a job"
    failure = "" if runners.failure is None else f" The last registration failed: {runners.failure}."
    failure += "" if pool.failing is None else f" The API server does not create Pods: {pool.failing}."
    most = pool.spec.max_replicas if pool.spec.autoscaled else pool.spec.replicas
    short = short_of_budget(job, pool) if pool.spec.autoscaled else None
    if short is not None:
        failure += f" The autoscaler adds no runner for account {job.account}, whose budget has no room: {short}."
    return Explanation(
        WaitsFor.GITHUB,
        f"The runners of pool {pool.spec.name} are persistent, so GitHub chooses a runner for the job: {many}."
        f"{failure}",
        f"{enlarge(pool, most + 1)} If runners are idle, check that {runners.scope} and the pool's runnerGroup admit "
        "the repository of the job.",
    )


def _budget(job: JobFacts) -> _Outcome:
    if (held := _hold_at(job, Step.BUDGET)) is not None:
        return held
    if (pool := _pool_of_dispatched(job)) is None or pool.runners is not None:
        return None if job.claim is None else _Passed(f"Claim {job.claim.id} counts in the budget of {job.account}.")
    short = short_of_budget(job, pool)
    if short is not None:
        return Explanation(
            WaitsFor.BUDGET,
            f"Account {job.account} has no room in its budget: {short}.",
            budget_cure(job, pool),
        )
    turn = job.turn
    if turn is None or turn.reservation is None or turn.refused is not SkipReason.RESERVED:
        return _Passed(f"{use_of_budget(job, pool, who=f'Account {job.account}')}.")
    kept, since = turn.reservation, turn.reservation.queued_at
    return Explanation(
        WaitsFor.BUDGET,
        f"The rest of the budget of account {job.account} is reserved for its older job "
        f"{job.reserved_for or kept.job_id}, which waits since {since:%Y-%m-%d %H:%M:%S} UTC: "
        f"{cores(kept.vcpu_millicores)} vCPU and {gib(kept.memory_mib)} GiB for {kept.count} job. "
        f"{use_of_budget(job, pool)}.",
        f"Wait until Pods of the account end: the older job then gets its Pod. Or raise the budget by the reserved "
        f"part: `ostler account set {job.account_id}` with --count, --vcpu or --memory.",
    )


def _pod(job: JobFacts) -> _Outcome:
    if job.claim is not None:
        return _Passed(f"Claim {job.claim.id} reserves Pod {job.claim.pod}.", job.claim.created_at)
    if (pool := _pool_of_dispatched(job)) is None or pool.runners is not None:
        return None
    if pool.warm:
        return _Passed(_warm(pool) + ".")
    why, cure = why_no_pod(pool)
    return Explanation(
        WaitsFor.POD, f"No Pod of pool {pool.spec.name} is warm: {why}.", cure, next_at=pool.create_after
    )


def _warm(pool: SupplyFacts) -> str:
    return f"Pool {pool.spec.name} has {pool.warm} {'warm Pod' if pool.warm == 1 else 'warm Pods'}"


def _turn(job: JobFacts) -> _Outcome:
    if job.claim is not None:
        return _Passed(f"The matcher has made claim {job.claim.id}.", job.claim.created_at)
    if (pool := _pool_of_dispatched(job)) is None or pool.runners is not None:
        return None
    if not pool.warm:
        return _Passed(_place(job.ahead))
    if job.turn is not None and job.turn.picked:
        return Explanation(
            WaitsFor.MATCH,
            f"{_warm(pool)}, and no rule holds the job back: the next run of the matcher gives it a Pod.",
            "Wait a few seconds. If the job still waits after a minute, check with `ostler doctor` that workers run.",
        )
    return Explanation(
        WaitsFor.MATCH,
        f"{_warm(pool)} for jobs that come first: those of accounts that use less of their share, then older jobs.",
    )


def _release(job: JobFacts) -> _Outcome:
    claim = job.claim
    if claim is None or claim.state is not ClaimState.RELEASING:
        return None
    return _step(
        claim,
        WaitsFor.RELEASE,
        f"The job had {_named(claim)}. The claim is being released, and the job is then queued again.",
    )


def _step(claim: ClaimFacts, waits_for: WaitsFor, summary: str) -> Explanation:
    """Return the explanation of a claim's present step, with the error or the rate limit that delays the step."""
    if claim.postponed is not None:
        return Explanation(
            waits_for, f"{summary} The step waits: {claim.postponed}.", cure_of_cause(claim.postponed), claim.due_at
        )
    failed = "" if claim.last_error is None else f" The last try failed: {claim.last_error}."
    return Explanation(waits_for, summary + failed, next_at=claim.due_at)


def _stamp(job: JobFacts) -> _Outcome:
    claim = job.claim
    if claim is None or claim.state is ClaimState.RELEASING:
        return None
    if claim.state is ClaimState.CLAIMED and claim.stamp is Stamp.NONE:
        return _step(claim, WaitsFor.STAMP, f"The job has {_named(claim)}. The Pod is about to be stamped.")
    match claim.stamp:
        case Stamp.ON:
            return _Passed(f"Pod {claim.pod} is stamped.")
        case Stamp.GAVE_UP:
            return _Passed(f"Pod {claim.pod} could not be stamped, and the claim continues without a stamp.")
        case Stamp.REMOVING | Stamp.OFF:
            return _Passed(f"The stamp was removed from Pod {claim.pod}, and the claim continues without a stamp.")
        case Stamp.NONE:
            return _Passed(f"Claim {claim.id} continues without a stamp.")


def _mint(job: JobFacts) -> _Outcome:
    claim = job.claim
    if claim is None or claim.state is ClaimState.RELEASING:
        return None
    if claim.state is ClaimState.CLAIMED:
        asks = "must ask" if claim.postponed is not None else "is asking"
        summary = f"The job has {_named(claim)}. Ostler {asks} GitHub for the configuration of the runner."
        return _step(claim, WaitsFor.MINT, summary)
    whose = "" if claim.runner is None else f" of runner {claim.runner}"
    return _Passed(f"GitHub made the configuration{whose}.", claim.minted_at)


def _delivery(job: JobFacts) -> _Outcome:
    claim = job.claim
    if claim is None or claim.state in {ClaimState.RELEASING, ClaimState.CLAIMED}:
        return None
    if claim.state is ClaimState.MINTED:
        return Explanation(
            WaitsFor.DELIVERY,
            f"The job has {_named(claim)}. The Pod has not fetched the configuration of its runner yet.",
        )
    return _Passed(f"Pod {claim.pod} fetched the configuration.", claim.delivered_at)


def _start(job: JobFacts) -> _Outcome:
    claim = job.claim
    if claim is None or claim.state in {ClaimState.RELEASING, ClaimState.CLAIMED, ClaimState.MINTED}:
        return None
    if claim.state is ClaimState.DELIVERED:
        return Explanation(
            WaitsFor.START,
            f"The job has {_named(claim)}. GitHub has not reported yet that runner {claim.runner} executes the job.",
        )
    return Explanation(WaitsFor.END, f"The job has {_named(claim)}, and the runner of the Pod executes a job.")


def _named(claim: ClaimFacts) -> str:
    return f"claim {claim.id} on Pod {claim.pod}"


def _is_dispatched(job: JobFacts) -> bool:
    """Return True if the job is queued without a hold, in a pool whose jobs the matcher dispatches."""
    return _pool_of_dispatched(job) is not None and not _is_persistent(job)


def _is_persistent(job: JobFacts) -> bool:
    return job.pool is not None and job.pool.runners is not None


def _pool_of_dispatched(job: JobFacts) -> SupplyFacts | None:
    """Return the pool of a job that is queued without a hold, or None if the job has none or is in another state."""
    return job.pool if job.state is JobState.QUEUED and job.hold_reason is None else None


def _place(ahead: int | None) -> str:
    if not ahead:
        return "The job is the next job of its account in its pool."
    return (
        "1 job of the same account in the same pool comes first."
        if ahead == 1
        else f"{ahead} jobs of the same account in the same pool come first."
    )


_CHECKS: Mapping[Step, Callable[[JobFacts], _Outcome]] = {
    Step.ENVIRONMENT: _environment,
    Step.RECORDS: _records,
    Step.ACCOUNT: _account,
    Step.POOL: _pool,
    Step.RUNNER_GROUP: _runner_group,
    Step.BACKOFF: _backoff,
    Step.RUNNERS: _runners,
    Step.BUDGET: _budget,
    Step.POD: _pod,
    Step.TURN: _turn,
    Step.ANSWER: _answer,
    Step.RELEASE: _release,
    Step.STAMP: _stamp,
    Step.MINT: _mint,
    Step.DELIVERY: _delivery,
    Step.START: _start,
}
"""The checks in the order in which the steps are decided."""

_CHOSEN_HERE = frozenset({Step.BUDGET, Step.POD, Step.TURN, Step.STAMP, Step.MINT, Step.DELIVERY})
"""Steps that a job of a persistent pool does not have, because GitHub gives the job to a runner."""
