"""The mint of a registration claim: request a registration token, and commit what the Pod needs to register its runner.

The token is requested when the Pod polls, so it is never older than the delivery takes. It is delivered in the same way
as a JIT, encrypted in the row of the claim, and only to the Pod of the claim (laws L11 and L13). GitHub knows no runner
before the Pod has used the token. A request with an unknown result therefore leaves nothing behind at GitHub.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from sqlalchemy import Connection

from models.claims import steps
from models.state import claim_leases, claim_transitions, mint_attempts
from ostler.clock import utcnow
from ostler.errors import RateLimited, UpstreamError
from ostler.reasons import meaning_of
from ostler.secrets import Secret
from rules.claims.registrations import describe_registration
from rules.routing.scopes import Scope
from tasks.claims.mint_lease import LeaseOver, left
from tasks.claims.release import send_release
from tasks.routing.runner_groups import Refused, check_registration
from tasks.worker.app import VISIBILITY_TIMEOUT
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)

LONGEST_WAIT = VISIBILITY_TIMEOUT / 2
"""Longest wait in seconds before a retry. For a longer wait, the claim is released and a later claim tries again."""


def request_token(rt: Runtime, work: steps.MintWork) -> None:
    """Request the registration token of a claim, and commit it for the delivery.

    If GitHub refuses or does not answer, the claim is released. The pool then waits before it begins the next
    registration (`rules.claims.registrations`). After a rate limit, `resume` repeats the step.
    """
    if work.installation_id is None:
        give_up(rt, work, reason="no installation of the App is known for its account")
        return
    try:
        check_registration(rt, work, left=lambda: left(work) / 2)
        token = rt.github.registration_token(
            installation_id=work.installation_id,
            scope=Scope.parse(work.scope),
            deadline_seconds=left(work),
        )
    except LeaseOver:
        log.warning("registration.stopped_because_lease_expired")
        return
    except RateLimited as error:
        wait(rt, work, error)
        return
    except Refused as refused:
        give_up(rt, work, reason=str(refused.verdict.refusal))
        return
    except UpstreamError as error:
        give_up(rt, work, reason=f"GitHub did not give a registration token: {meaning_of(error)}")
        return
    commit(rt, work, token)


def commit(rt: Runtime, work: steps.MintWork, token: Secret) -> None:
    """Commit the encrypted registration, so that the web process can deliver it."""
    text = describe_registration(
        url=f"{rt.settings.github_url}/{Scope.parse(work.scope).web_path}",
        token=token.reveal(),
        name=work.runner_name,
        labels=work.labels,
        group=None if isinstance(work.runner_group, int) else work.runner_group,
    )
    minted = rt.transaction(
        steps.commit_mint,
        work,
        runner_id=None,
        jit=rt.cipher.encrypt(Secret(text)),
        due_after=rt.timings.due_after,
        now=utcnow(),
        who=rt.who,
    )
    if not minted.moved:
        log.info("registration.discarded_because_claim_changed")


def wait(rt: Runtime, work: steps.MintWork, error: RateLimited) -> None:
    """Let `resume` repeat the step when the rate limit allows it, or give up if the wait is too long."""
    if error.after > LONGEST_WAIT:
        give_up(rt, work, reason="GitHub's rate limit is reached")
        return

    def body(db: Connection) -> None:
        mint_attempts.delete_open(db, work.attempt_id)
        due_at = utcnow() + timedelta(seconds=error.after)
        claim_leases.give_back(db, work, due_at=due_at, error=claim_leases.WAITS)

    rt.transaction(body)


def give_up(rt: Runtime, work: steps.MintWork, *, reason: str) -> None:
    """Release the claim. Its Pod becomes warm again, and a later claim tries again."""
    now = utcnow()

    def body(db: Connection) -> bool:
        begun = claim_transitions.request_release(
            db, work.claim_id, reason=reason, chain_no=work.chain_no, now=now, who=rt.who
        )
        mint_attempts.close(db, work.attempt_id, outcome="refused", now=now)
        claim_leases.give_back(db, work, due_at=now, error=reason)
        return begun

    if rt.transaction(body):
        log.warning("registration.failed", reason=reason)
        send_release(rt, work.claim_id)
