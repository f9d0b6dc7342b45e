"""`ostler.unused_runners`: handles delivered claims without an observed execution, and spares that got no job.

GitHub's runner list shows whether the runner is busy, idle, offline or absent. `rules.sweeps.unused` decides by this
state. If the list fails, nothing changes (law L8). If GitHub refuses to delete a runner because it is busy, the claim
of the runner is not released (law L3).
"""

from __future__ import annotations

import structlog
from sqlalchemy import Connection

from models.claims.watch_reports import UnidentifiedClaim
from models.state import claim_checks, claim_transitions, stalls
from models.sweeps import sweeps
from models.sweeps.repairs import Case
from ostler import telemetry
from ostler.clock import utcnow
from ostler.task_names import UNUSED_RUNNERS
from rules.claims.job_outcomes import NO_JOB, JobOutcome, NextStep
from rules.claims.stalls import Cause, FoundBy
from rules.routing.scopes import Scope
from rules.sweeps.limits import Expect, Source, Witness
from rules.sweeps.runner_checks import RunnerList
from rules.sweeps.unused import (
    UPDATE_SECONDS,
    UPDATES,
    ClaimedJob,
    RunnerNow,
    UnusedAction,
    UnusedClaim,
    UnusedVerdict,
    judge_unused,
)
from tasks.claims import github
from tasks.claims.release import send_release
from tasks.sweeps.claims_by_scope import check_by_scope
from tasks.sweeps.frame.pace import LONGEST
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

for _verdict in set(UnusedAction) - {UnusedAction.ASK_JOB}:
    telemetry.UNUSED_RUNNER_CHECKS.labels(_verdict)


@sweep(UNUSED_RUNNERS, longest=LONGEST)
def unused_runners(tick: Tick) -> None:
    """Check the claims of each scope against the list of its runners."""
    settings = tick.rt.settings
    rows = tick.read(
        sweeps.unused,
        older_than=settings.timings.unused_after,
        polling_older_than=settings.timings.unused_polling_after,
        spares_older_than=settings.timings.spare_after,
        now=NOW,
    )
    check_by_scope(tick, rows, check)


def check(tick: Tick, claim: sweeps.DeliveredClaim, seen: RunnerList) -> None:
    """Judge one claim and act on the verdict."""
    verdict, job_outcome = judge(tick, claim, seen, job=ClaimedJob.NOT_ASKED), NO_JOB
    if verdict.counts and not tick.dry:
        absent = claim.runner_name not in seen.runners
        tick.rt.transaction(claim_checks.set_absent, claim.id, absent=absent, now=seen.taken_at)
    if verdict.action is UnusedAction.ASK_JOB:
        job, job_outcome = ask_job(tick, claim)
        verdict = judge(tick, claim, seen, job=job)
    if not tick.dry:
        telemetry.UNUSED_RUNNER_CHECKS.labels(verdict.action).inc()
    if verdict is UPDATES and not tick.dry:
        telemetry.RUNNER_UPDATES.inc()
    if verdict.action is UnusedAction.WAIT:
        log.debug("unused_runners.claim_not_released", claim=claim.id, reason=verdict.reason)
        return
    listed = seen.runners.get(claim.runner_name)
    if verdict.action is UnusedAction.RELEASE_NEVER_STARTED and listed is not None and not still_offline(tick, claim):
        log.info("unused_runners.claim_not_released", claim=claim.id, reason="the runner is not offline any more")
        return
    act(tick, claim, verdict, job_outcome)


def still_offline(tick: Tick, claim: sweeps.DeliveredClaim) -> bool:
    """Return True if GitHub still shows the runner as offline; False otherwise.

    The list might be a minute old. A runner that came online since then could begin a job at any moment. The result is
    also False for a runner that might be updating itself.
    """
    found = tick.rt.github.find_runner(
        installation_id=claim.installation_id,
        scope=Scope.parse(claim.scope),
        name=claim.runner_name,
        policy=calls(SWEEP_ROW),
    )
    if found is None or found.online or found.busy:
        return False
    age = (utcnow() - claim.since).total_seconds()
    return not (claim.job_id is not None and claim.runs and found.has_connected and age < UPDATE_SECONDS)


def judge(tick: Tick, claim: sweeps.DeliveredClaim, seen: RunnerList, *, job: ClaimedJob) -> UnusedVerdict:
    """Return the verdict on a claim.

    The age of the claim is measured at the time of the list, because the list shows nothing that happened later.
    """
    settings = tick.rt.settings
    is_spare = claim.spare_since is not None
    runner = seen.runners.get(claim.runner_name)
    if runner is None:
        state = RunnerNow.ABSENT
    elif runner.busy:
        state = RunnerNow.BUSY
    else:
        state = RunnerNow.ONLINE_IDLE if runner.online else RunnerNow.OFFLINE
    return judge_unused(
        UnusedClaim(
            runner=state,
            absent_before=seen.is_second_check(claim.runner_absent_at),
            job=job,
            is_spare=claim.job_id is None,
            age_seconds=seen.age_of(claim.spare_since or claim.since),
            restarts=claim.runs and runner is not None and runner.has_connected,
            unlabelled=claim.unlabelled,
        ),
        grace_seconds=settings.timings.spare_after if is_spare else settings.timings.unused_after,
    )


def ask_job(tick: Tick, claim: sweeps.DeliveredClaim | UnidentifiedClaim) -> tuple[ClaimedJob, JobOutcome]:
    """Ask GitHub for the claimed job. Return the state of the job, and its outcome.

    The outcome is applied to the job if the job is separated from this claim.

    After a 404, the returned state is `ClaimedJob.TERMINAL`, and `unresolved_jobs` asks about the job again. The state
    of a queued job is also terminal if the run of the job is over.
    """
    if claim.job_id is None or claim.repository is None:
        return ClaimedJob.NOT_ASKED, NO_JOB
    told = github.ask_job(
        tick.rt,
        installation_id=claim.installation_id,
        repository=claim.repository,
        job_id=claim.job_id,
        policy=SWEEP_ROW,
        lookups=tick.lookups,
    )
    job, job_outcome = told.job, told.job_outcome
    if job is None or job_outcome.next_step is NextStep.FINISH:
        here = job is not None and job.runner_name is not None and job.runner_name == claim.runner_name
        return ClaimedJob.TERMINAL_HERE if here else ClaimedJob.TERMINAL, job_outcome
    if job.status == "in_progress":
        ours = job.runner_name == claim.runner_name
        return ClaimedJob.IN_PROGRESS_HERE if ours else ClaimedJob.IN_PROGRESS_ELSEWHERE, job_outcome
    return ClaimedJob.QUEUED, job_outcome


def act(tick: Tick, claim: sweeps.DeliveredClaim, verdict: UnusedVerdict, job_outcome: JobOutcome) -> None:
    """Apply a verdict as one repair of the sweep."""
    who = tick.rt.who
    executes = verdict.action in {UnusedAction.EXECUTE, UnusedAction.EXECUTE_UNBOUND}
    releases_it = not executes and verdict.action is not UnusedAction.SPARE

    def body(db: Connection) -> bool:
        now = utcnow()
        if executes:
            own = verdict.action is UnusedAction.EXECUTE
            return sweeps.set_executing(
                db,
                claim.id,
                job_id=claim.job_id,
                job_outcome=None if own else job_outcome,
                now=now,
                who=who,
                why=verdict.reason,
            )
        if verdict.action is UnusedAction.SPARE:
            return claim.job_id is not None and sweeps.make_spare(
                db, claim.id, job_id=claim.job_id, job_outcome=job_outcome, now=now, who=who
            )
        # The release asks GitHub for the job, so the verdicts `finish` and `requeue` need no code of their own here.
        begun = claim_transitions.request_release(
            db, claim.id, reason=verdict.reason, spare_since=claim.spare_since, now=now, who=who
        )
        if begun:
            stalls.mark(db, claim.id, Cause.RUNNER_UNUSED, FoundBy.UNUSED_RUNNERS, now=now)
        return begun

    case = Case(
        what=verdict.action,
        why=verdict.reason,
        claim_id=claim.id,
        job_id=claim.job_id,
        pod_uid=claim.pod_uid,
        runner_name=claim.runner_name,
        before="delivered",
        after="releasing" if releases_it else verdict.action,
        expects=Expect.CLAIM_MOVED if releases_it else Expect.NOTHING,
        kills=releases_it,
        witnesses=(Witness(Source.GITHUB, verdict.reason),),
        proof="the release deregisters the runner first and stops if GitHub refuses" if releases_it else None,
    )
    if tick.repair(case, body) and releases_it:
        send_release(tick.rt, claim.id)
