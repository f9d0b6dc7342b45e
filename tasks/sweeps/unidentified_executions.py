"""`ostler.unidentified_executions`: handles claims whose runner executes a job that no webhook has named.

The watch saw that a job began, a runner list showed the runner as busy, or GitHub refused to delete the busy runner,
but no webhook arrived. GitHub is asked for the claimed job. If the claimed job runs on this runner, an execution of the
claimed job is recorded. Otherwise the runner executes another job. The claimed job is separated from the claim, so that
the claimed job does not wait for the end of the other job (law L4). GitHub's answer decides the new state of the
claimed job. If GitHub does not answer, the claim waits for the next tick (law L8). Nothing is killed.
"""

from __future__ import annotations

import random

from sqlalchemy import Connection

from models.claims import watch_reports
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import UNIDENTIFIED_EXECUTIONS
from rules.sweeps.limits import Source, Witness
from rules.sweeps.unused import ClaimedJob
from tasks.sweeps.frame.pace import UNAVAILABLE
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.sweeps.unused_runners import ask_job
from tasks.worker.transactions import NOW


@sweep(UNIDENTIFIED_EXECUTIONS)
def unidentified_executions(tick: Tick) -> None:
    """Ask GitHub for the claimed job of each claim.

    If the check of one claim fails, the other claims are still checked. If GitHub does not answer for an installation,
    the tick skips all further claims of the installation.
    """
    older_than = tick.rt.timings.unused_after
    claims = list(tick.read(watch_reports.unidentified, older_than=older_than, now=NOW))
    random.shuffle(claims)
    unavailable: set[int] = set()
    for claim in claims:
        if not tick.goes_on():
            return
        if claim.installation_id in unavailable:
            continue
        error = tick.attempt(lambda claim: check(tick, claim), claim, row=claim.id)
        if isinstance(error, UNAVAILABLE):
            unavailable.add(claim.installation_id)


def check(tick: Tick, claim: watch_reports.UnidentifiedClaim) -> None:
    """Record that the runner executes the claimed job, or separate the claimed job from the claim."""
    rt = tick.rt
    job, job_outcome = ask_job(tick, claim)
    here = job is ClaimedJob.IN_PROGRESS_HERE
    why = (
        "GitHub runs the claimed job on this runner" if here else f"its runner executes another job; {job_outcome.why}"
    )
    case = Case(
        what="bind" if here else "part",
        why=why,
        claim_id=claim.id,
        job_id=claim.job_id,
        runner_name=claim.runner_name,
        before="executing",
        witnesses=(Witness(Source.GITHUB, f"the job is {job}"),),
    )

    def body(db: Connection) -> bool:
        now = utcnow()
        if here:
            return watch_reports.bind(db, claim.id, job_id=claim.job_id, now=now, who=rt.who, why=why)
        return watch_reports.part(db, claim.id, job_id=claim.job_id, job_outcome=job_outcome, now=now, who=rt.who)

    if tick.repair(case, body) and not here:
        rt.waker.wake(claim.pool_id)
