"""`ostler.mint(claim_id, chain_no)` asks GitHub for a JIT and commits it, so that the web process can deliver it.

The runner's name is committed before the call (law L4). If the outcome of an attempt is unknown, the mint looks up the
runner by the name of the attempt and deregisters the runner before it tries another name. If the claim no longer waits
for this mint when GitHub answers, the mint deregisters the new runner, unless the runner already executes a job.
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
from models.state import claim_leases, claim_transitions, job_holds, mint_attempts
from models.upstream import backoffs
from ostler import task_names
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
from ostler.task_names import REMATCH
from rules.claims.mint_questions import (
    BUSY_RUNNER,
    INVALID_RUNNER,
    NO_INSTALLATION,
    NO_RUNNER,
    NO_RUNNERS,
    PACE_REACHED,
    QUOTA_REACHED,
    describe,
    is_full,
)
from rules.claims.runner_names import make_runner_name, random_suffix
from rules.routing.holds import HoldReason
from rules.routing.runner_groups import DEFAULT
from rules.routing.scopes import Scope
from tasks.claims import registration
from tasks.claims.mint_lease import LeaseOver, left
from tasks.claims.postpone import release_on_failure
from tasks.claims.release import send_release
from tasks.routing.runner_groups import Refused, group_of
from tasks.worker.app import VISIBILITY_TIMEOUT
from tasks.worker.base import LATE, LONGEST_MESSAGE, MINT, Again, remaining, task, wait_for_retry
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

LONGEST_RETRY = VISIBILITY_TIMEOUT / 2
"""Longest wait in seconds before a retry of a mint.

If the wait is longer, the claim is released and the job is held until its `not_before`.
"""

SET_ASIDE = timedelta(hours=1)


class Unknown(Retryable):
    """The outcome of a mint is unknown. The next mint first looks up the runner of this attempt by name."""


@task(task_names.MINT, policy=MINT, bind=True)
def mint(self: Task, *, claim_id: int, chain_no: int | None = None) -> None:
    """Mint the JIT of a claim, after its stamp was written or the attempts to write it failed.

    `chain_no`: number of the chain that this message belongs to. A message of an older chain changes nothing.
    """
    rt = runtime()
    work = rt.transaction(steps.begin_mint, claim_id, chain_no=chain_no, suffix=new_suffix(), now=NOW)
    if work is None:
        return
    also_about(job=work.job_id, pod=work.pod_name, pod_uid=work.pod_uid, runner=work.runner_name)
    with release_on_failure(rt, work):
        request_jit(self, rt, work)


def request_jit(self: Task, rt: Runtime, work: steps.MintWork) -> None:
    """Request the JIT or the registration token of a claim, and commit it. Handle the errors of GitHub."""
    installation_id = work.installation_id
    if work.registers:
        registration.request_token(rt, work)
        return
    if installation_id is None:
        refuse(rt, work, work.attempt_id, reason=NO_INSTALLATION)
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
        log.warning("mint.stopped_because_lease_expired")
    except Refused as refused:
        refuse_group(rt, work, refused)
    except UpstreamError as error:
        failed(self, rt, work, error)
    else:
        commit(rt, work, jit)


def find_group(rt: Runtime, work: steps.MintWork) -> int:
    """Return the id of the pool's runner group in the job's organisation.

    The group is requested before the mint. If GitHub does not answer, no runner was registered. The row of this mint
    attempt is then deleted, so that no later mint looks up a runner of this attempt. Raises the errors that `group_of`
    raises.
    """
    try:
        return group_of(rt, work, left=lambda: left(work) / 3)
    except Retryable:
        rt.transaction(mint_attempts.delete_open, work.attempt_id)
        raise


def refuse_group(rt: Runtime, work: steps.MintWork, refused: Refused) -> None:
    """Hold the job, because GitHub would not give it to any runner of this pool in this runner group.

    All other queued jobs of the pool that GitHub would refuse for the same reason are also held until `refused.until`.
    """
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
    """Retry, hold or release, depending on GitHub's error.

    If the error came from the look-up of an earlier attempt, both attempts stay open, because the outcome of the
    earlier attempt is still unknown.
    """
    attempt_id = work.attempt_id if work.previous is None else None
    if isinstance(error, Gone | Forbidden | Invalid) and work.runner_group != DEFAULT:
        # The group might have been deleted or replaced. Without stored groups, the next mint asks GitHub for them.
        rt.transaction(runner_groups.delete, int(work.installation_id or 0))
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
            refuse(rt, work, None, reason=BUSY_RUNNER)
        case Retryable() | Conflict():
            try_later(rt, work, error)
        case _:
            raise error


def rename(rt: Runtime, work: steps.MintWork) -> steps.MintWork | None:
    """Close the attempt whose runner was looked up, and open an attempt with a new name.

    Return None if the claim no longer waits for this mint.
    """
    name = make_runner_name(work.pod_name, new_suffix())
    attempt_id = rt.transaction(steps.replace_attempt, work, runner_name=name, now=NOW)
    return None if attempt_id is None else replace(work, attempt_id=attempt_id, runner_name=name, previous=None)


def new_suffix() -> str:
    """Return 8 random hexadecimal digits."""
    return random_suffix(secrets.token_bytes(4))


def remove_unknown(rt: Runtime, work: steps.MintWork, installation_id: int, *, name: str) -> None:
    """Look up the runner of an attempt with an unknown outcome, and deregister the runner if it exists.

    Each of the two calls may take a third of the time until the lease expires. If GitHub takes longer, the mint is
    retried later. Without this limit, the request with the new name might be sent too late for an answer before the
    lease expires.
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
    """Commit the encrypted JIT. If the claim no longer waits for this mint, deregister the new runner."""
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
    """Deregister the new runner of a claim that no longer waits for this mint.

    If GitHub refuses because the runner executes a job, the runner stays registered. Raises every other error of
    GitHub's adapter.
    """
    log.info("mint.discarded_because_claim_changed")
    if work.installation_id is not None:
        try:
            rt.github.delete_runner(
                installation_id=work.installation_id,
                scope=Scope.parse(work.scope),
                runner_id=jit.runner_id,
                deadline_seconds=remaining(),
            )
        except Busy:
            log.warning(
                "mint.runner_not_deregistered",
                runner=jit.runner_name,
                error="GitHub says that the runner executes a job",
            )
            return

    def removed(db: Connection) -> None:
        mint_attempts.close(db, work.attempt_id, outcome="removed", now=utcnow())
        claim_leases.give_back(db, work, due_at=utcnow(), error="the claim changed while GitHub registered its runner")

    rt.transaction(removed)


def go_on(rt: Runtime, work: steps.MintWork) -> None:
    """End the backoff of the account's waiting jobs and send `rematch`, because GitHub answers mints again.

    A job whose row another session has locked is skipped. Such a job is checked when its own wait ends.
    """
    ended = rt.transaction(backoffs.end_waits, account_id=work.account_id, now=NOW)
    if ended:
        log.info("mint.backoff_ended", jobs_tried_again=ended)
        rt.waker.send(REMATCH)


def postpone_until_token(
    self: Task, rt: Runtime, work: steps.MintWork, attempt_id: int | None, *, after: float
) -> None:
    """Repeat the mint after `after` seconds, when the rate limiter has a token for it.

    Such a wait is no failure and uses up no retry. If the wait exceeds `LONGEST_MESSAGE` seconds, `resume` repeats the
    mint. If the wait exceeds `LONGEST_RETRY` seconds, the claim is released and only this job is held, because other
    jobs of the installation are not affected.
    """
    now = utcnow()
    if after > LONGEST_RETRY:
        until = now + timedelta(seconds=after)
        refuse(
            rt,
            work,
            attempt_id,
            reason=PACE_REACHED,
            hold=HoldReason.BACKOFF,
            not_before=until,
        )
        return

    def wait(db: Connection) -> None:
        if attempt_id is not None:
            mint_attempts.delete_open(db, attempt_id)
        late = 0 if by_row else 1  # `resume` sends the mint if the message is one second late
        claim_leases.give_back(db, work, due_at=now + timedelta(seconds=after + late), error=claim_leases.WAITS)

    by_row = after > LONGEST_MESSAGE
    rt.transaction(wait)
    if by_row:
        return
    self.signature_from_request(countdown=after, retries=self.request.retries).apply_async()


def wait_for_quota(self: Task, rt: Runtime, work: steps.MintWork, attempt_id: int | None, *, after: float) -> None:
    """Retry the mint after `after` seconds, because GitHub's rate limit refused it.

    A refused request registers no runner, so its attempt is closed. If the wait exceeds `LONGEST_RETRY` seconds or the
    retries are used up, the installation backs off instead, the job is held, and the claim is released. If the wait
    exceeds `LONGEST_MESSAGE` seconds, `resume` repeats the mint. Celery's retry count then starts at 0 again. Therefore
    the number of attempts that GitHub refused is compared with the limit of retries too.
    """
    now = utcnow()
    refused = rt.transaction(mint_attempts.refused, work.claim_id)
    if after > LONGEST_RETRY or max(self.request.retries, refused) >= MINT.task_retries:
        until = now + timedelta(seconds=after)
        rt.transaction(
            backoffs.wait_until,
            kind="installation",
            key=str(work.installation_id),
            reason=QUOTA_REACHED,
            not_before=until,
            now=now,
        )
        cause = ("installation", str(work.installation_id))
        refuse(
            rt,
            work,
            attempt_id,
            reason=QUOTA_REACHED,
            hold=HoldReason.BACKOFF,
            not_before=until,
            cause=cause,
        )
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
    """Hold the jobs of an installation that the App cannot act for.

    The jobs are checked again when a webhook reports a change, and after an hour at the latest. If GitHub no longer
    knows the installation and the account has another working installation, no job is held. The account's jobs then use
    the other installation, and Celery's `Retry` is raised.
    """
    reason, key, gone = str(error), int(work.installation_id or 0), isinstance(error, NotInstalled)

    def go_over(db: Connection) -> int | None:
        if not installations.has_successor(db, key):
            return None
        # Lock order: the claim before its installation, as in `steps.commit_mint`. Another order could cause a
        # deadlock.
        claim_leases.give_back(
            db,
            work,
            due_at=utcnow() + timedelta(seconds=2),
            error="the App was uninstalled; the next try uses the newer installation",
        )
        if attempt_id is not None:
            mint_attempts.close(db, attempt_id, outcome="refused", now=utcnow())
        installations.mark_left(db, key, now=utcnow())
        return installations.succeed(db, key)

    if gone and (successor := rt.transaction(go_over)) is not None:
        log.info("mint.installation_replaced", installation=key, successor=successor)
        raise self.retry(countdown=0)
    until = rt.transaction(installations.leave, installation_id=key, reason=reason, gone=gone, now=NOW)
    cause = ("installation", str(key))
    refuse(rt, work, attempt_id, reason=reason, hold=HoldReason.BACKOFF, not_before=until, cause=cause)


def ask_installation(self: Task, rt: Runtime, work: steps.MintWork, attempt_id: int | None, error: Gone) -> None:
    """Ask GitHub for the installation after a mint got a 404, because the owner might have been renamed.

    If the installation shows a new name of the owner, the new name is stored and Celery's `Retry` is raised. If the App
    cannot act for the installation, the jobs of the installation are held. Otherwise the mint backs off.
    """
    try:
        seen = rt.github.get_installation(installation_id=int(work.installation_id or 0), deadline_seconds=left(work))
    except (Suspended, NotInstalled) as gone:
        leave(self, rt, work, attempt_id, gone)
        return
    except (UpstreamError, LeaseOver) as unknown:
        why = meaning_of(unknown) if isinstance(unknown, UpstreamError) else "no time was left for a request to GitHub"
        log.warning("mint.installation_not_read", error=why)
        back_off(rt, work, attempt_id, error)
        return
    if seen.suspended:
        leave(self, rt, work, attempt_id, Suspended("the App's installation is suspended"))
        return
    if seen.account_id != work.account_id or seen.login == Scope.parse(work.scope).login:
        back_off(rt, work, attempt_id, error)
        return
    log.info("account.renamed", account=work.account_id, new_login=seen.login)

    def rename(db: Connection) -> None:
        accounts.rename_owner(db, account_id=work.account_id, login=seen.login)
        if attempt_id is not None:
            mint_attempts.close(db, attempt_id, outcome="refused", now=utcnow())
        claim_leases.give_back(
            db,
            work,
            due_at=utcnow() + timedelta(seconds=2),
            error="the owner was renamed; the next try uses the new name",
        )

    rt.transaction(rename)
    raise self.retry(countdown=0)


def back_off(
    rt: Runtime, work: steps.MintWork, attempt_id: int | None, error: Forbidden | Gone | Invalid, *, full: bool = False
) -> None:
    """Back off after a refused mint, and hold all jobs whose mints would send the same request.

    `rules.claims.mint_questions` defines which requests are the same.

    `full`: True if the runner group is full. Only the runner group backs off then.
    """
    kind, key = work.asked_for(full=full)
    status = error.status or (404 if isinstance(error, Gone) else 403)
    reason = with_words(f"GitHub answers {status} to a mint", error)
    not_before = rt.transaction(backoffs.record_failure, kind=kind, key=key, reason=reason, job_id=work.job_id, now=NOW)
    detail = f"{describe(kind, key)}: {reason}"
    refuse(rt, work, attempt_id, reason=detail, hold=HoldReason.BACKOFF, not_before=not_before, cause=(kind, key))


def refuse_invalid(rt: Runtime, work: steps.MintWork, attempt_id: int | None, error: Invalid) -> None:
    """Set the job aside, because GitHub refuses its runner as invalid.

    If GitHub refuses because the runner group is full, the runner group backs off instead.
    """
    if is_full(error.words):
        back_off(rt, work, attempt_id, error, full=True)
    else:
        refuse(rt, work, attempt_id, reason=with_words(INVALID_RUNNER, error))


def with_words(reason: str, error: UpstreamError) -> str:
    """Return the reason, followed by GitHub's own message if the error has one."""
    return reason if error.words is None else f"{reason}: {error.words}"


def try_later(rt: Runtime, work: steps.MintWork, error: Retryable | Conflict) -> None:
    """Retry a mint with an unknown outcome, or give up: back off the installation, hold the job, release the claim.

    A mint that tests whether GitHub answers again is not retried. For any other mint, raises `Again` if a retry is
    left.
    """
    now = utcnow()
    soon = wait_for_retry(error)
    name = meaning_of(error)
    if soon is None or work.probing:
        not_before = rt.transaction(
            backoffs.record_failure,
            kind="installation",
            key=str(work.installation_id),
            reason=f"{NO_RUNNERS} ({name})",
            probing=work.probing,
            now=now,
        )
        reason, cause = f"{NO_RUNNER}: {name}", ("installation", str(work.installation_id))
        refuse(rt, work, None, reason=reason, hold=HoldReason.BACKOFF, not_before=not_before, cause=cause)
        return
    rt.transaction(claim_leases.give_back, work, due_at=now + timedelta(seconds=soon + LATE), error=name)
    unknown = Unknown(f"the result of the mint is unknown: {name}")
    raise Again(unknown, after=soon, chain_no=work.chain_no) from error


def refuse(
    rt: Runtime,
    work: steps.MintWork,
    attempt_id: int | None,
    *,
    reason: str,
    hold: HoldReason = HoldReason.SET_ASIDE,
    not_before: datetime | None = None,
    cause: tuple[str, str] | None = None,
) -> None:
    """Hold the job with the reason `hold` and release the claim.

    `reason`: explanation for people. `attempt_id`: the attempt to close as refused, or None if GitHub might have
    registered a runner. `not_before`: time at which the hold is checked again, by default in an hour. `cause`: kind and
    key of the backoff that causes the hold. If this mint belongs to an older chain, only its attempt is closed.
    """
    now = utcnow()

    def body(db: Connection) -> bool:
        if work.job_id is not None:
            releases.lock_job(db, work.job_id)
        begun = claim_transitions.request_release(
            db, work.claim_id, reason=reason, chain_no=work.chain_no, now=now, who=rt.who
        )
        # A late `commit_mint` locks its attempt before it deletes backoffs, so this order must be the same.
        if attempt_id is not None:
            mint_attempts.close(db, attempt_id, outcome="refused", now=now)
        if begun and work.job_id is not None:  # not in an older chain: a late step changes no row (law L6)
            until = not_before or now + SET_ASIDE
            if cause is not None and not backoffs.keep(db, *cause):
                until = now  # the backoff has ended in the meantime, so the hold is checked at once
            job_holds.hold_job(db, work.job_id, reason=hold, detail=reason, not_before=until, now=now)
        claim_leases.give_back(db, work, due_at=now, error=reason)
        return begun

    if rt.transaction(body):
        log.warning("mint.failed_and_job_held", reason=reason)
        send_release(rt, work.claim_id)
