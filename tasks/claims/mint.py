"""`ostler.mint(claim_id, chain_no)` asks GitHub for a JIT and commits it for the web process to deliver.

The runner's name is written down before the call (L4), an attempt of unknown outcome is looked up and
deregistered before another name is tried, and a mint whose claim moved on deregisters what it made.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from celery import Task
from sqlalchemy import Connection

from github_adapters.endpoints.runners import Jit
from models.claims import releases, steps
from models.routing import accounts, installations, runner_groups
from models.tables import claim_leases, job_holds, mint_attempts
from models.upstream import backoffs
from ostler.clock import utcnow
from ostler.errors import (
    Busy,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotInstalled,
    RateLimited,
    Retryable,
    Suspended,
    UpstreamError,
)
from ostler.logging import also_about
from ostler.reasons import meaning_of
from ostler.wakes import REMATCH
from rules.claims.mint_questions import describe, is_full
from rules.claims.runner_names import make_runner_name, random_suffix
from rules.routing.holds import HoldReason
from rules.routing.runner_groups import DEFAULT
from rules.routing.scopes import Scope
from tasks.claims.release import send_release
from tasks.routing.runner_groups import Refused, group_of
from tasks.worker.app import VISIBILITY_TIMEOUT
from tasks.worker.base import MINT, remaining, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

COMMIT = 1.0
"""Seconds of the lease that are kept for the commit."""

LONGEST_MESSAGE = 5.0
"""Seconds. A worker holds each message that waits, up to `worker_eta_task_limit` of them, and then takes no other from
any queue. A mint that waits longer than this has its time in the claim's `due_at`, and `resume` sends it again. At
2 mints per second that leaves 10 messages per installation."""

LONGEST_RETRY = VISIBILITY_TIMEOUT / 2
"""Seconds. A wait longer than this is a `not_before` on the job."""

SET_ASIDE = timedelta(hours=1)


class LeaseOver(Exception):
    """The lease ran out before the next call (the process was stopped for a while, say): `resume` comes again."""


class Unknown(Retryable):
    """A mint whose outcome is not known; the next try looks its name up first."""


@task("mint", queue="github", policy=MINT, bind=True)
def mint(self: Task, *, claim_id: int, chain_no: int | None = None) -> None:
    """Mint the JIT of a claim whose stamp is on or was given up."""
    rt = runtime()
    work = rt.transaction(steps.begin_mint, claim_id, chain_no=chain_no, suffix=new_suffix(), now=NOW)
    if work is None:
        return
    also_about(job=work.job_id, pod=work.pod_name, pod_uid=work.pod_uid, runner=work.runner_name)
    installation_id = work.installation_id
    if installation_id is None:
        refuse(rt, work, work.attempt_id, reason="no installation of the App is known for its account")
        return
    try:
        if work.previous is not None:
            remove_unknown(rt, work, installation_id, name=work.previous)
            renamed = rename(rt, work)
            if renamed is None:
                return
            work = renamed
        group_id = find_group(rt, work)
        jit = rt.github.mint(
            installation_id=installation_id,
            scope=Scope.parse(work.scope),
            name=work.runner_name,
            labels=work.labels,
            runner_group_id=group_id,
            deadline_seconds=left(work),
        )
    except LeaseOver:
        log.warning("mint.lease_expired")
    except Refused as refused:
        refuse_group(rt, work, refused)
    except UpstreamError as error:
        failed(self, rt, work, error)
    else:
        commit(rt, work, jit)


def find_group(rt: Runtime, work: steps.MintWork) -> int:
    """Return the number of the pool's runner group in the job's organisation; raises as `group_of` does.

    What fails here made nothing, so that no later try needs to look its name up.
    """
    try:
        return group_of(rt, work, left=lambda: left(work) / 3)
    except Retryable:
        rt.transaction(mint_attempts.delete_open, work.attempt_id)
        raise


def refuse_group(rt: Runtime, work: steps.MintWork, refused: Refused) -> None:
    """The job would never be given to a runner of this pool: hold it, and those that the same concerns, for a while."""
    reason = str(refused.verdict.refusal)
    rt.transaction(
        runner_groups.hold_alike,
        pool_id=work.pool_id,
        wanted=refused.wanted,
        verdict=refused.verdict,
        until=refused.until,
        now=NOW,
    )
    refuse(rt, work, work.attempt_id, reason=reason, hold=HoldReason.RUNNER_GROUP, not_before=refused.until)


def failed(self: Task, rt: Runtime, work: steps.MintWork, error: UpstreamError) -> None:
    """Do what GitHub's answer asks for. While an older attempt is looked up, nothing that goes wrong closes it."""
    attempt_id = work.attempt_id if work.previous is None else None
    if isinstance(error, Gone | Forbidden | Invalid) and work.runner_group != DEFAULT:
        # Its group may be gone, or another by now: the next mint looks anew.
        rt.transaction(runner_groups.forget, int(work.installation_id or 0))
    match error:
        case RateLimited():
            if error.paced:
                postpone_until_token(self, rt, work, attempt_id, after=error.after)
            else:
                wait_for_quota(self, rt, work, attempt_id, after=error.after)
        case Suspended() | NotInstalled():
            leave(self, rt, work, attempt_id, error)
        case Gone():
            ask_installation(self, rt, work, attempt_id, error)
        case Forbidden():
            back_off(rt, work, attempt_id, error)
        case Invalid():
            refuse_invalid(rt, work, attempt_id, error)
        case Busy():
            refuse(rt, work, None, reason="a runner that was never delivered is busy")
        case Retryable() | Conflict():
            try_later(self, rt, work, error)
        case _:
            raise error


def rename(rt: Runtime, work: steps.MintWork) -> steps.MintWork | None:
    """Close the attempt that was looked up and open one with a fresh name; None when the claim moved on."""
    name = make_runner_name(work.pod_name, new_suffix())
    attempt_id = rt.transaction(steps.replace_attempt, work, runner_name=name, now=NOW)
    return None if attempt_id is None else replace(work, attempt_id=attempt_id, runner_name=name, previous=None)


def left(work: steps.MintWork) -> float:
    """Return the seconds that a call may take, so that the commit still finds the lease. Raises LeaseOver."""
    seconds = (work.lease_until - utcnow()).total_seconds() - COMMIT
    if seconds <= 0:
        raise LeaseOver
    return remaining(seconds)


def new_suffix() -> str:
    """Return 8 random hex digits."""
    return random_suffix(secrets.token_bytes(4))


def remove_unknown(rt: Runtime, work: steps.MintWork, installation_id: int, *, name: str) -> None:
    """Look an attempt of unknown outcome up by its name and deregister what it made.

    Each of the two calls gets a third of what is left of the lease: a slow GitHub that takes longer is asked
    again, rather than given a name whose answer could only come too late.
    """
    scope = Scope.parse(work.scope)
    found = rt.github.find_runner(
        installation_id=installation_id, scope=scope, name=name, deadline_seconds=left(work) / 3
    )
    if found is not None:
        rt.github.delete_runner(
            installation_id=installation_id, scope=scope, runner_id=found.id, deadline_seconds=left(work) / 3
        )


def commit(rt: Runtime, work: steps.MintWork, jit: Jit) -> None:
    """Commit the JIT, encrypted; when the claim moved on, deregister the runner again."""
    sealed = rt.cipher.encrypt(jit.config)
    minted = rt.transaction(
        steps.commit_mint,
        work,
        runner_id=jit.runner_id,
        jit=sealed,
        due_after=rt.timings.due_after,
        now=NOW,
        who=rt.who,
    )
    if not minted.moved:
        take_back(rt, work, jit)
    if minted.recovered:
        go_on(rt, work)


def take_back(rt: Runtime, work: steps.MintWork, jit: Jit) -> None:
    """Deregister a runner whose claim moved on while it was made."""
    log.info("mint.claim_moved_on")
    if work.installation_id is not None:
        try:
            rt.github.delete_runner(
                installation_id=work.installation_id,
                scope=Scope.parse(work.scope),
                runner_id=jit.runner_id,
                deadline_seconds=remaining(),
            )
        except Busy:
            log.warning("mint.undelivered_runner_busy", runner=jit.runner_name)
            return

    def removed(db: Connection) -> None:
        mint_attempts.close(db, work.attempt_id, outcome="removed", now=utcnow())
        claim_leases.give_back(db, work, due_at=utcnow(), error="its mint came too late")

    rt.transaction(removed)


def go_on(rt: Runtime, work: steps.MintWork) -> None:
    """GitHub answers again: have the jobs that waited for it matched now. What this misses ends with its own wait."""
    ended = rt.transaction(backoffs.end_waits, account_id=work.account_id, now=NOW)
    if ended:
        log.info("mint.recovered", jobs=ended)
        rt.waker.send(REMATCH, queue="sweeps")


def postpone_until_token(
    self: Task, rt: Runtime, work: steps.MintWork, attempt_id: int | None, *, after: float
) -> None:
    """The governor has no token yet: come back for one. That is no failure and uses up no retry.

    A token that is more than `LONGEST_MESSAGE` away is left to `resume`. One that is far becomes a `not_before` of this
    job alone: others of its installation are no worse off.
    """
    now = utcnow()
    if after > LONGEST_RETRY:
        until = now + timedelta(seconds=after)
        refuse(rt, work, attempt_id, reason="too many mints at once", hold=HoldReason.BACKOFF, not_before=until)
        return

    def wait(db: Connection) -> None:
        if attempt_id is not None:
            mint_attempts.delete_open(db, attempt_id)
        late = 0 if by_row else 1  # a message has a second before it is taken for lost
        claim_leases.give_back(db, work, due_at=now + timedelta(seconds=after + late), error=claim_leases.WAITS)

    by_row = after > LONGEST_MESSAGE
    rt.transaction(wait)
    if by_row:
        return
    self.signature_from_request(countdown=after, retries=self.request.retries).apply_async()


def wait_for_quota(self: Task, rt: Runtime, work: steps.MintWork, attempt_id: int | None, *, after: float) -> None:
    """GitHub asks to wait and made nothing: retry then, or back the installation off when that is far or repeated.

    A retry that is more than `LONGEST_MESSAGE` away is left to `resume`, so the attempts that GitHub refused count too.
    """
    now = utcnow()
    refused = rt.transaction(mint_attempts.refused, work.claim_id)
    if after > LONGEST_RETRY or max(self.request.retries, refused) >= MINT.task_retries:
        until = now + timedelta(seconds=after)
        rt.transaction(
            backoffs.wait_until,
            kind="installation",
            key=str(work.installation_id),
            reason="GitHub's rate limit",
            not_before=until,
            now=now,
        )
        refuse(rt, work, attempt_id, reason="GitHub's rate limit", hold=HoldReason.BACKOFF, not_before=until)
        return

    def wait(db: Connection) -> None:
        if attempt_id is not None:
            mint_attempts.close(db, attempt_id, outcome="refused", now=now)
        late = 0 if by_row else 1
        claim_leases.give_back(db, work, due_at=now + timedelta(seconds=after + late), error=claim_leases.WAITS)

    by_row = after > LONGEST_MESSAGE
    rt.transaction(wait)
    if not by_row:
        raise self.retry(countdown=after)


def leave(
    self: Task, rt: Runtime, work: steps.MintWork, attempt_id: int | None, error: Suspended | NotInstalled
) -> None:
    """The App cannot act for this installation: hold its jobs, until a webhook or an hour says otherwise.

    Where its account has another installation that works, its jobs go on with that one. Raises what Celery retries.
    """
    reason, key, gone = str(error), int(work.installation_id or 0), isinstance(error, NotInstalled)

    def go_over(db: Connection) -> int | None:
        if not installations.has_successor(db, key):
            return None
        # The claim before its installation, as `steps.commit_mint` does: else the two could wait for each other.
        claim_leases.give_back(db, work, due_at=utcnow() + timedelta(seconds=2), error="its installation left")
        if attempt_id is not None:
            mint_attempts.close(db, attempt_id, outcome="refused", now=utcnow())
        installations.mark_left(db, key, now=utcnow())
        return installations.succeed(db, key)

    if gone and (successor := rt.transaction(go_over)) is not None:
        log.info("mint.installation_replaced", installation=key, successor=successor)
        raise self.retry(countdown=0)
    until = rt.transaction(installations.leave, installation_id=key, reason=reason, gone=gone, now=NOW)
    refuse(rt, work, attempt_id, reason=reason, hold=HoldReason.BACKOFF, not_before=until)


def ask_installation(self: Task, rt: Runtime, work: steps.MintWork, attempt_id: int | None, error: Gone) -> None:
    """GitHub knows no such scope: its owner may have another name now, which the installation tells (404 to a mint).

    Raises what Celery retries when the next try has a better name.
    """
    try:
        seen = rt.github.get_installation(installation_id=int(work.installation_id or 0), deadline_seconds=left(work))
    except (Suspended, NotInstalled) as gone:
        leave(self, rt, work, attempt_id, gone)
        return
    except (UpstreamError, LeaseOver) as unknown:
        why = meaning_of(unknown) if isinstance(unknown, UpstreamError) else "no time was left to ask"
        log.warning("mint.installation_unknown", error=why)
        back_off(rt, work, attempt_id, error)
        return
    if seen.suspended:
        leave(self, rt, work, attempt_id, Suspended("the App's installation is suspended"))
        return
    if seen.account_id != work.account_id or seen.login == Scope.parse(work.scope).login:
        back_off(rt, work, attempt_id, error)
        return
    log.info("mint.owner_renamed", account=work.account_id, login=seen.login)

    def rename(db: Connection) -> None:
        accounts.rename_owner(db, account_id=work.account_id, login=seen.login)
        if attempt_id is not None:
            mint_attempts.close(db, attempt_id, outcome="refused", now=utcnow())
        claim_leases.give_back(db, work, due_at=utcnow() + timedelta(seconds=2), error="its owner has another name")

    rt.transaction(rename)
    raise self.retry(countdown=0)


def back_off(
    rt: Runtime, work: steps.MintWork, attempt_id: int | None, error: Forbidden | Gone | Invalid, *, full: bool = False
) -> None:
    """GitHub registers no runner there: hold the jobs that would ask for the same (`rules.claims.mint_questions`)."""
    kind, key = work.asked_for(full=full)
    status = error.status or (404 if isinstance(error, Gone) else 403)
    reason = with_words(f"GitHub answers {status} to a mint", error)
    not_before = rt.transaction(backoffs.record_failure, kind=kind, key=key, reason=reason, job_id=work.job_id, now=NOW)
    detail = f"{describe(kind, key)}: {reason}"
    refuse(rt, work, attempt_id, reason=detail, hold=HoldReason.BACKOFF, not_before=not_before)


def refuse_invalid(rt: Runtime, work: steps.MintWork, attempt_id: int | None, error: Invalid) -> None:
    """GitHub refuses the runner itself: set its job aside. A group that is full concerns all of its jobs."""
    if is_full(error.words):
        back_off(rt, work, attempt_id, error, full=True)
    else:
        refuse(rt, work, attempt_id, reason=with_words("GitHub refuses its runner as invalid", error))


def with_words(reason: str, error: UpstreamError) -> str:
    """Return a reason with GitHub's own words behind it, if it said any."""
    return reason if error.words is None else f"{reason}: {error.words}"


def try_later(self: Task, rt: Runtime, work: steps.MintWork, error: Retryable | Conflict) -> None:
    """The outcome is unknown: retry with jitter; after the last try back the installation off and release.

    Raises `Unknown`, which Celery retries.
    """
    now = utcnow()
    retries = self.request.retries
    wait = timedelta(seconds=MINT.longest_wait(retries) + 1)
    last = retries >= MINT.task_retries or work.probing
    name = meaning_of(error)
    if last:
        not_before = rt.transaction(
            backoffs.record_failure,
            kind="installation",
            key=str(work.installation_id),
            reason=f"mints fail ({name})",
            probing=work.probing,
            now=now,
        )
        refuse(rt, work, None, reason="GitHub does not answer", hold=HoldReason.BACKOFF, not_before=not_before)
        return
    rt.transaction(claim_leases.give_back, work, due_at=now + wait, error=name)
    raise Unknown(f"mint: {name}")


def refuse(
    rt: Runtime,
    work: steps.MintWork,
    attempt_id: int | None,
    *,
    reason: str,
    hold: HoldReason = HoldReason.SET_ASIDE,
    not_before: datetime | None = None,
) -> None:
    """Hold the job with its reason and release the claim; `attempt_id` is closed where GitHub made nothing.

    A late answer to an older chain closes its own attempt and changes nothing else (L6).
    """
    now = utcnow()

    def body(db: Connection) -> bool:
        if work.job_id is not None:
            releases.lock_job(db, work.job_id)
        begun = releases.request_release(db, work.claim_id, reason=reason, chain_no=work.chain_no, now=now, who=rt.who)
        if begun and work.job_id is not None:
            job_holds.hold_job(
                db, work.job_id, reason=hold, detail=reason, not_before=not_before or now + SET_ASIDE, now=now
            )
        if attempt_id is not None:
            mint_attempts.close(db, attempt_id, outcome="refused", now=now)
        claim_leases.give_back(db, work, due_at=now, error=reason)
        return begun

    if rt.transaction(body):
        log.warning("mint.refused", reason=reason)
        send_release(rt, work.claim_id)
