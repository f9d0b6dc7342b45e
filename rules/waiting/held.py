"""Explanations of held jobs: each hold has a sentence about its cause, and a cure that follows the cause."""

from __future__ import annotations

from rules.claims.mint_questions import cure_of_cause, cure_of_refusal
from rules.claims.runner_brakes import ENDED_BEFORE_IT
from rules.routing.access import cure_of
from rules.routing.holds import HoldReason
from rules.routing.unlabelled import NOT_GIVEN, ONLY_A_GROUP
from rules.waiting.facts import HeldAccount, JobFacts
from rules.waiting.pods import RUNNERS_CURE
from rules.waiting.steps import Explanation, WaitsFor


def explain_hold(job: JobFacts, reason: HoldReason) -> Explanation:
    """Return the explanation of a held job."""
    detail = job.hold_detail or "no detail was recorded"
    until = "an unknown time" if job.not_before is None else f"{job.not_before:%Y-%m-%d %H:%M:%S} UTC"
    labels = ", ".join(job.labels)
    match reason:
        case HoldReason.NO_POOL if not job.labels:
            return _UNLABELLED
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
                f"Account {job.account} ({job.account_id}) is {held_by(job.held)}.",
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
            return _of_group(detail, until)
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
                RUNNERS_CURE,
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


_UNLABELLED = Explanation(
    WaitsFor.POOL,
    f"No pool serves the job: {ONLY_A_GROUP}.",
    "Set serveUnlabelled to true in one RunnerPool whose runnerGroup is the group that the workflow names. The job "
    "then continues within a minute. Or add the labels of a pool to `runs-on`, beside the group, cancel this run and "
    "start the workflow again.",
)


def _of_group(detail: str, until: str) -> Explanation:
    """Return the explanation of a job that the runner group of its pool does not fit."""
    if detail.startswith(NOT_GIVEN):
        return Explanation(
            WaitsFor.POOL,
            f"The runner group of the pool probably does not fit the job: {detail}. Ostler tries the job again at "
            f"{until}.",
            "Compare the group in `runs-on` of the workflow with runnerGroup of the RunnerPool, and write the same "
            "group into both. A change of the pool continues the job within a minute. Or add the labels of a pool to "
            "`runs-on`.",
        )
    return Explanation(
        WaitsFor.POOL,
        f"The runner group of the pool does not fit the job: {detail}. The group is checked again at {until}.",
        "In the organisation: Settings, Actions, Runner groups: create the group, or correct which repositories it "
        "admits, as the reason says. Or correct runnerGroup of the RunnerPool. The job then continues within a minute.",
    )


def held_by(account: HeldAccount | None) -> str:
    """Return a clause about who holds an account."""
    if account is None or account.since is None:
        return "not allowed"
    return f"held by {account.by} since {account.since:%Y-%m-%d %H:%M:%S} UTC"
