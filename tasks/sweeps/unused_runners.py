"""`ostler.unused_runners`: delivered claims of which no execution was seen, and spares that got no job.

GitHub's runner list says whether the runner is busy, idle, offline or absent; `rules.unused` says what follows.
A failed list changes nothing (L8), and every release obeys GitHub's refusal to delete a busy runner (L3).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError

from github_adapters.client import RunnerSeen
from models import releases, sweeps
from models.engine import transaction
from models.repairs import Case
from ostler.clock import utcnow
from ostler.errors import NotInstalled, RateLimited, Retryable, Suspended, UpstreamError
from rules.fates import NO_JOB, JobFate, from_github
from rules.reaping import Expect, Source, Witness
from rules.scopes import Scope
from rules.unused import ClaimedJob, RunnerNow, UnusedAction, UnusedClaim, UnusedVerdict, judge_unused
from tasks.base import SWEEP_LIST, SWEEP_ROW, calls
from tasks.release import send_release
from tasks.runtime import Runtime
from tasks.sweeps.frame import sweep
from tasks.sweeps.tick import Tick

log = structlog.get_logger(__name__)

LOOKS_APART = 60.0
"""Seconds between two looks that prove an absence; a call's distance, not a wait, so nothing scales it."""

SILENT = (Retryable, RateLimited, Suspended, NotInstalled)
"""Errors that the next question about the same installation would meet too."""


@sweep("unused_runners")
def unused_runners(tick: Tick) -> None:
    """Look at each scope once, in a random order; one that cannot be listed, or a claim that fails, stops no other.

    An installation for which GitHub does not answer is left alone for this tick (L14).
    """
    settings = tick.rt.settings
    rows = tick.read(
        lambda db: sweeps.unused(
            db, older_than=settings.unused_after, spares_older_than=settings.spare_after, now=utcnow()
        )
    )
    by_scope: dict[tuple[int, str], list[Row[Any]]] = defaultdict(list)
    for row in rows:
        if row.installation_id is not None:
            by_scope[row.installation_id, row.scope].append(row)
    scopes = list(by_scope.items())
    random.shuffle(scopes)
    silent: set[int] = set()
    for (installation_id, scope), claims in scopes:
        if not tick.goes_on():
            return
        if installation_id in silent:
            continue
        if not look_at_scope(tick, installation_id, scope, claims):
            silent.add(installation_id)


def look_at_scope(tick: Tick, installation_id: int, scope: str, claims: Sequence[Row[Any]]) -> bool:
    """Look at the claims of one scope; False when GitHub would not answer for its installation's others either."""
    try:
        runners = tick.rt.github.list_runners(
            installation_id=installation_id, scope=Scope.parse(scope), policy=calls(SWEEP_LIST)
        )
    except UpstreamError as error:
        tick.skipped(error, scope=scope)
        return not isinstance(error, SILENT)
    tick.listed(len(runners))
    by_name = {runner.name: runner for runner in runners}
    for claim in claims:
        if not tick.goes_on():
            break
        try:
            look(tick, claim, by_name.get(claim.runner_name), now=utcnow())
        except (UpstreamError, DBAPIError) as error:
            tick.skipped(error, row=claim.id)
            if isinstance(error, SILENT):
                return False
    return True


def look(tick: Tick, claim: Row[Any], runner: RunnerSeen | None, *, now: datetime) -> None:
    """Judge one claim and act."""
    if not tick.dry:
        transaction(tick.rt.engine, lambda db: sweeps.set_absent(db, claim.id, absent=runner is None, now=now))
    verdict, fate = judge(claim, runner, job=ClaimedJob.NOT_ASKED, now=now), NO_JOB
    if verdict.action is UnusedAction.ASK_JOB:
        job, fate = ask_job(tick.rt, claim)
        verdict = judge(claim, runner, job=job, now=now)
    if verdict.action is UnusedAction.WAIT:
        log.debug("unused_runners.wait", claim=claim.id, reason=verdict.reason)
        return
    act(tick, claim, verdict, fate)


def judge(claim: Row[Any], runner: RunnerSeen | None, *, job: ClaimedJob, now: datetime) -> UnusedVerdict:
    """Return the verdict; the age that counts was tested by the query."""
    if runner is None:
        state = RunnerNow.ABSENT
    elif runner.busy:
        state = RunnerNow.BUSY
    else:
        state = RunnerNow.ONLINE_IDLE if runner.online else RunnerNow.OFFLINE
    before = claim.runner_absent_at
    return judge_unused(
        UnusedClaim(
            runner=state,
            absent_before=before is not None and now - before >= timedelta(seconds=LOOKS_APART),
            job=job,
            is_spare=claim.job_id is None,
            age_seconds=0,
        ),
        grace_seconds=0,
    )


def ask_job(rt: Runtime, claim: Row[Any]) -> tuple[ClaimedJob, JobFate]:
    """Ask GitHub for the claimed job, and what becomes of it without this claim.

    To the claim a 404 is the end of its job; the job itself is asked about again (`adrift_jobs`).
    """
    if claim.job_id is None:
        return ClaimedJob.NOT_ASKED, NO_JOB
    job = rt.github.get_job(
        installation_id=claim.installation_id, repository=claim.repository, job_id=claim.job_id,
        policy=calls(SWEEP_ROW),
    )  # fmt: skip
    if job is None:
        return ClaimedJob.TERMINAL, from_github(status=None, conclusion=None)
    fate = from_github(status=job.status, conclusion=job.conclusion)
    if job.status == "completed":
        return ClaimedJob.TERMINAL, fate
    if job.status == "in_progress":
        ours = job.runner_name == claim.runner_name
        return ClaimedJob.IN_PROGRESS_HERE if ours else ClaimedJob.IN_PROGRESS_ELSEWHERE, fate
    return ClaimedJob.QUEUED, fate


def act(tick: Tick, claim: Row[Any], verdict: UnusedVerdict, fate: JobFate) -> None:
    """Carry a verdict out; each is one guarded transaction."""
    who = tick.rt.who
    executes = verdict.action in {UnusedAction.EXECUTE, UnusedAction.EXECUTE_UNBOUND}
    releases_it = not executes and verdict.action is not UnusedAction.SPARE

    def body(db: Connection) -> bool:
        now = utcnow()
        if executes:
            own = verdict.action is UnusedAction.EXECUTE
            return sweeps.set_executing(
                db, claim.id, job_id=claim.job_id, fate=None if own else fate, now=now, who=who, why=verdict.reason
            )
        if verdict.action is UnusedAction.SPARE:
            return sweeps.make_spare(db, claim.id, job_id=claim.job_id, fate=fate, now=now, who=who)
        # The release asks GitHub for the job, so that `finish` and `requeue` need no way of their own.
        return releases.request_release(
            db, claim.id, reason=verdict.reason, spare_since=claim.spare_since, now=now, who=who
        )

    case = Case(
        what=verdict.action, why=verdict.reason, claim_id=claim.id, job_id=claim.job_id, pod_uid=claim.pod_uid,
        runner_name=claim.runner_name, before="delivered", after="releasing" if releases_it else verdict.action,
        expects=Expect.CLAIM_MOVED if releases_it else Expect.NOTHING, kills=releases_it,
        witnesses=(Witness(Source.GITHUB, verdict.reason),),
        proof="the release deregisters the runner first and obeys a refusal" if releases_it else None,
    )  # fmt: skip
    if tick.repair(case, body) and releases_it:
        send_release(tick.rt, claim.id)
