"""`ostler.retire(claim_id)` deletes a Pod under its retire claim, and ends the claim when the Pod's UID is gone.

The claim stays live after an accepted DELETE, after a timeout, and while the Pod terminates (law L7). `resume` then
sends this task again, after waits that grow from 5 to 60 seconds. For a Pod that already terminates, the task sends no
second DELETE, except a forced one, and except for a Pod that only waits for Ostler's finalizer to be removed.

If a claim of the Pod left a registered runner, the runner is deregistered before the DELETE, even if the JIT of the
runner was never delivered. If GitHub refuses because the runner is busy, a Pod that is not over is not deleted (law
L3). The calls to GitHub use the current names and the current installation, not the names in the claim, because that
claim might have ended long ago. If the owner was renamed, a 404 is retried under the new name. If the App lacks the
permission to remove a runner that the Pod could start, the Pod has to end by itself. GitHub is then asked again every
minute, because the App might be installed again.

A persistent runner that was never online might still register itself while the container `register` runs. The Pod is
then not deleted. After this container has ended, GitHub is asked for the runner by name, even if GitHub did not know
the runner when the claim was released.

This task is the only way to delete a Pod that is not terminal. The task decides by the current state of the Pod and its
rows, not by the state that the sender of the message saw.

A Pod on a gone node stays in Terminating, because its kubelet does not report the end of the Pod. If the sweep
`gone_nodes` allowed a forced deletion, the task reads the Pod and the node again, and deletes the Pod without waiting
for the kubelet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import structlog

from k8s_adapters.calls.writes import recorded
from k8s_adapters.runners.events import pod_of
from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.runners import delete_runner
from models.claims import pod_ends, releases
from models.claims.releases import Registration, ReleaseWork
from models.pools import pod_rows, pool_mirror
from ostler import task_names
from ostler.clock import utcnow
from ostler.errors import Busy, Forbidden, Gone, NotInstalled, RateLimited
from ostler.logging import also_about
from ostler.reasons import meaning_of
from ostler.task_names import RETIRE as NAME
from rules.claims.pod_view import PodView
from rules.claims.registrations import might_be_shown_later
from rules.sweeps.nodes import OVERDUE, OVERDUE_AFTER, may_force
from tasks.claims.budget_wakes import wake_after_pods
from tasks.claims.evidence import ask
from tasks.claims.github import follow_owner, remove_runner
from tasks.claims.postpone import OUT_OF_REACH, NotYet, longer, postpone_on_failure, until_token
from tasks.worker.base import RETIRE, calls, task
from tasks.worker.failing_calls import record_writes
from tasks.worker.nodes import NodeNow, gone_now
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


@task(task_names.RETIRE, policy=RETIRE)
def retire(*, claim_id: int, chain_no: int | None = None) -> None:
    """Retire the Pod of a retire claim.

    `chain_no`: chain number of the claim if this message repeats a failed attempt, otherwise None. If `resume` has sent
    the step again meanwhile, the claim has another number, and the message changes nothing.
    """
    rt = runtime()
    work = rt.transaction(releases.begin_retire, claim_id, chain_no=chain_no, now=NOW)
    if work is not None:
        also_about(job=work.job_id, pod=work.pod_name, pod_uid=work.pod_uid)
        with postpone_on_failure(rt, work), reported_to_pool(rt, work):
            carry_out(rt, work)


@contextmanager
def reported_to_pool(rt: Runtime, work: ReleaseWork) -> Iterator[None]:
    """Record the writes to the API server that fail in this block, so that the status of the pool shows lasting ones.

    A success is not recorded. Two minutes after its last failure, the call is forgotten.
    """
    began = utcnow()
    with recorded() as writes:
        try:
            yield
        finally:
            pool = rt.transaction(pool_mirror.pool_ref, work.pool_id) if writes.has_failures else None
            if pool is not None and pool.exists:
                record_writes(
                    rt, namespace=pool.namespace, pool=pool.name, uid=pool.uid, outcomes=writes.outcomes, began=began
                )


def carry_out(rt: Runtime, work: ReleaseWork) -> None:
    """Deregister the Pod's runners if necessary, delete the Pod, and end the claim if the Pod is gone."""
    living = read_pod(rt, work)
    verdict = ask(rt, work.pod_uid, living, gone=living is None)
    if work.delivered or work.registrations or verdict.busy:
        remove_runners(rt, work, living)
        verdict = ask(rt, work.pod_uid, living, gone=living is None)
    if verdict.busy:
        log.error("retire.postponed_for_busy_pod", reasons=verdict.reasons)
        raise NotYet("the Pod might hold a JIT: " + ", ".join(verdict.reasons), after=OUT_OF_REACH)
    request_deletion(rt, work, living)
    left = read_pod(rt, work)
    if work.forced and left is not None and force(rt, work, left):
        left = read_pod(rt, work)
    if left is not None:
        raise NotYet("Terminating", after=longer(work))
    ended = rt.transaction(releases.end_retired, work, now=NOW, who=rt.who)
    if ended:
        log.info("pod.retired", reason=work.reason)
        rt.waker.reconcile(work.pool_id)
        wake_after_pods(rt, [work.pod_uid])


def request_deletion(rt: Runtime, work: ReleaseWork, living: PodView | None) -> None:
    """Request the deletion of the Pod, unless it terminates already and waits for nothing that Ostler must do."""
    if living is not None and living.terminating and not living.awaits_release:
        return
    record_deletion(rt, work, living)
    delete_runner(
        rt.kube,
        namespace=work.namespace,
        name=work.pod_name,
        uid=work.pod_uid,
        attempt=work.attempt if living is None else living.attempt,
        policy=calls(RETIRE),
    )


def read_pod(rt: Runtime, work: ReleaseWork) -> PodView | None:
    """Return the Pod, or None if a GET by name and UID shows that it is gone."""
    seen = get_pod(rt.kube, namespace=work.namespace, name=work.pod_name, policy=calls(RETIRE))
    return None if seen is None or seen.uid != work.pod_uid else seen


def record_deletion(rt: Runtime, work: ReleaseWork, living: PodView | None) -> None:
    """Record how a Pod that is over has ended, because the reconciler might not have listed it since.

    Record also Ostler's request, and an Event with the reason of the deletion, unless the deletion was requested
    before. By default, Kubernetes shows an Event for an hour.
    """
    if living is not None and living.is_over:
        over = rt.transaction(pod_rows.record_end, pool_id=work.pool_id, pod=living, now=NOW)
        wake_after_pods(rt, over)
    if living is not None and living.terminating:
        return
    if living is not None:
        rt.transaction(pod_ends.record_request, work.pod_uid, now=NOW)
    pod = pod_of(namespace=work.namespace, name=work.pod_name, uid=work.pod_uid)
    rt.events.record(pod, "Normal", "Retired", work.reason or "The Pod is retired")


def force(rt: Runtime, work: ReleaseWork, pod: PodView) -> bool:
    """Delete a Terminating Pod without waiting for its kubelet.

    Return True if the deletion was requested; False if the kubelet might still end the Pod, if a volume of the Pod
    might still be attached to the node, or if the Pod might hold a JIT.
    """
    node = NodeNow() if pod.node is None else gone_now(rt, pod.node)
    gone, overdue = node.gone, node.reports and pod.is_overdue(now=utcnow(), after=OVERDUE_AFTER)
    allowed = may_force(gone, attachable_volumes=pod.attachable_volumes, overdue=overdue)
    if not allowed or ask(rt, work.pod_uid, pod).busy:
        log.warning(
            "pod.not_deleted_by_force",
            node=pod.node,
            node_gone_because=None if gone is None else str(gone),
            has_attachable_volumes=pod.attachable_volumes,
        )
        return False
    delete_runner(
        rt.kube,
        namespace=work.namespace,
        name=work.pod_name,
        uid=work.pod_uid,
        attempt=pod.attempt,
        force=True,
        policy=calls(RETIRE),
    )
    log.warning("pod.deleted_by_force", node=pod.node, why=OVERDUE if gone is None else str(gone))
    return True


def might_register(rt: Runtime, work: ReleaseWork, pod: PodView) -> bool:
    """Return True if a runner of the Pod might appear on GitHub although GitHub does not know it yet (law L8).

    Only the end of container `register` proves that no runner can appear. On a gone node, nothing reports this end.
    """
    if pod.terminating or pod.is_over or not any(each.unseen for each in work.registrations):
        return False
    later = might_be_shown_later(pod.register_exit_code, ended_at=pod.register_ended_at, now=utcnow())
    return later and (pod.node is None or gone_now(rt, pod.node).gone is None)


def remove_runners(rt: Runtime, work: ReleaseWork, living: PodView | None) -> None:
    """Remove every runner of the Pod from GitHub.

    `living`: the Pod as it was just read, or None if the Pod is gone. Raises `NotYet` if a runner is busy or might
    still appear, if the owner of a runner has a new name, or if GitHub cannot be asked yet. Raises also what GitHub's
    adapter raises.
    """
    try:
        remove_each(rt, work, living)
    except Busy:
        log.warning("retire.postponed_for_busy_runner")
        raise NotYet("GitHub says that a runner of the Pod is busy", after=longer(work)) from None
    except RateLimited as error:
        raise until_token(error) from error
    except NotYet as why:
        if why.failure is None:
            log.info("retire.postponed", why=str(why))
        raise


def remove_each(rt: Runtime, work: ReleaseWork, living: PodView | None) -> None:
    """Remove the runners of the Pod one after the other. Raises `Busy` if a Pod that is not over has a busy runner."""
    over = living is None or living.is_over
    awaited = living is not None and might_register(rt, work, living)
    if awaited and living is not None and living.register_exit_code is None:
        raise NotYet("container `register` runs, so a runner of the Pod might still appear", after=longer(work))
    for registration in work.registrations:
        try:
            found = remove_runner(rt, registration, policy=RETIRE)
        except Busy as busy:
            if not over:
                raise
            # GitHub has not noticed the end of the runner yet. The sweep `orphaned_runners` removes the runner later.
            log.warning("retire.runner_not_deregistered", runner=registration.runner_name, error=meaning_of(busy))
        except (Forbidden, Gone) as error:
            # Without the permission to remove the runner, the retirement continues only if no Pod can start the runner:
            # its JIT was never delivered, or the Pod is over.
            if registration.delivered and not over:
                raise_or_follow(rt, registration, error)
            log.warning("retire.runner_not_deregistered", runner=registration.runner_name, error=meaning_of(error))
        else:
            if awaited and registration.unseen and not found:
                raise NotYet("a runner was registered, but GitHub does not show it yet", after=longer(work))


def raise_or_follow(rt: Runtime, registration: Registration, error: Forbidden | Gone) -> NoReturn:
    """Postpone the retirement, because GitHub does not permit the removal of a runner that the Pod could start.

    Raises `NotYet`, without the failure if the owner of the runner has a new name.
    """
    scope_unknown = isinstance(error, Gone) and not isinstance(error, NotInstalled)
    if scope_unknown and follow_owner(rt, registration.installation_id):
        raise NotYet("the owner was renamed; the next try uses the new name") from None
    raise NotYet(meaning_of(error), after=OUT_OF_REACH, failure=error) from error


def send_retire(rt: Runtime, claim_id: int) -> None:
    """Send the retire step of a committed retire claim."""
    rt.waker.send(NAME, claim_id=claim_id)
