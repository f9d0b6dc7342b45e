"""`ostler.retire(claim_id)` deletes a Pod under its retire claim, and ends the claim when the UID is gone.

An accepted DELETE, a Terminating Pod and a time-out leave the claim live: `resume` looks again (L7). A Pod
that was ever given a JIT has its runners deregistered first, and a refusal is obeyed (L3). Where the App may
not remove a runner (any more) that somebody could start, the Pod has to end by itself.
"""

from __future__ import annotations

import structlog
from sqlalchemy import Connection

from k8s_adapters.pods import get_pod
from k8s_adapters.runners import delete_runner
from models import releases, steps
from models.engine import transaction
from ostler.clock import utcnow
from ostler.errors import Busy, Forbidden, Gone, RateLimited
from ostler.wakes import KEEP
from ostler.wakes import RETIRE as NAME
from tasks.base import RETIRE, calls, task
from tasks.github import remove_runner, wait_for_token
from tasks.runtime import Runtime, runtime

log = structlog.get_logger(__name__)


@task("retire", queue="dispatch", policy=RETIRE)
def retire(*, claim_id: int) -> None:
    """Retire the Pod of a claim whose purpose that is."""
    rt = runtime()
    work = transaction(rt.engine, lambda db: releases.begin_retire(db, claim_id, now=utcnow()))
    if work is None:
        return
    if work.delivered:
        try:
            remove_runners(rt, work)
        except Busy:
            log.warning("retire.refused", pod=work.pod_name)
            look_again(rt, work, "GitHub says that its runner is busy")
            return
        except RateLimited as error:
            wait_for_token(rt, work, after=error.after)
            return
    delete_runner(rt.kube, namespace=work.namespace, name=work.pod_name, uid=work.pod_uid, policy=calls(RETIRE))
    seen = get_pod(rt.kube, namespace=work.namespace, name=work.pod_name, policy=calls(RETIRE))
    if seen is not None and seen.uid == work.pod_uid:
        look_again(rt, work, "Terminating")
        return
    ended = transaction(rt.engine, lambda db: releases.end_retired(db, work, now=utcnow(), who=rt.who))
    if ended:
        log.info("retire.done", pod=work.pod_name, reason=work.reason)
        rt.waker.send(KEEP, queue="pools", pool_id=work.pool_id)


def remove_runners(rt: Runtime, work: releases.ReleaseWork) -> None:
    """Remove every runner of the Pod; raises what GitHub's adapter raises.

    Not where the App may not remove a runner that nobody can start: its JIT never left us, or the Pod is over.
    """
    for registration in work.registrations:
        try:
            remove_runner(rt, registration, policy=RETIRE)
        except (Forbidden, Gone) as error:
            if registration.delivered and not is_over(rt, work):
                raise
            log.warning("retire.runner_left", runner=registration.runner_name, error=type(error).__name__)


def is_over(rt: Runtime, work: releases.ReleaseWork) -> bool:
    """Return whether a GET shows the Pod terminal or gone."""
    seen = get_pod(rt.kube, namespace=work.namespace, name=work.pod_name, policy=calls(RETIRE))
    return seen is None or seen.uid != work.pod_uid or seen.is_terminal


def look_again(rt: Runtime, work: releases.ReleaseWork, error: str) -> None:
    """Leave the claim live for `resume`."""
    now = utcnow()

    def body(db: Connection) -> None:
        steps.give_back(db, work, due_at=now, error=error)

    transaction(rt.engine, body)


def send_retire(rt: Runtime, claim_id: int) -> None:
    """Ask for the step of a retire claim that is committed."""
    rt.waker.send(NAME, queue="dispatch", claim_id=claim_id)
