"""Compare-and-swap of the claim annotation of a Pod, used by stamp, un-stamp and release."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.stamps import STAMP_POLICY, StampOutcome, StampResult
from k8s_adapters.runners.stamps import stamp as put_on
from k8s_adapters.runners.stamps import unstamp as take_off
from models.claims import steps
from ostler.clock import utcnow
from rules.claims.machines import allowed
from rules.claims.pod_view import PodView
from rules.claims.stamps import parse
from rules.upstream.retry import RetryPolicy
from tasks.worker.base import attempts
from tasks.worker.runtime import Runtime

CHECKS = 2


def write(rt: Runtime, work: steps.Annotated, *, owner: int | None) -> StampResult:
    """Write the claim annotation and the owner label of a Pod. If `owner` is None, remove the label.

    If the Pod has another annotation than the row of the claim expects, the annotation of the Pod is recorded, and the
    write is repeated once. Raises what the Kubernetes adapter raises.
    """
    expected = work.expected
    for look in range(1, CHECKS + 1):
        # A Pod with the stamp of a later claim already works for the later claim. The rows alone might not show this
        # claim, because a restore of Postgres to an earlier state might have lost it.
        if owner is not None and _is_later(expected, work.claim_id):
            return StampResult(outcome=StampOutcome.MOVED_ON, seen=expected, owner=None)
        if owner is None:
            result = take_off(
                rt.kube,
                namespace=work.namespace,
                name=work.pod_name,
                uid=work.pod_uid,
                expected=expected,
                value=work.value,
                policy=policy(work),
            )
        else:
            result = put_on(
                rt.kube,
                namespace=work.namespace,
                name=work.pod_name,
                uid=work.pod_uid,
                expected=expected,
                value=work.value,
                owner=owner,
                policy=policy(work),
            )
        seen = result.seen
        if result.outcome is not StampOutcome.MOVED_ON or seen is None or look == CHECKS:
            return result

        def record(db: Connection, seen: str = seen) -> bool:
            return steps.record_found(db, work, seen=seen, now=utcnow())

        if not rt.transaction(record):
            return result  # this process has lost the lease of the claim
        expected = seen
    raise AssertionError("unreachable")


def read_pod(rt: Runtime, work: steps.Annotated) -> PodView | None:
    """Return the Pod of a claim, or None if a GET by name and UID shows that the Pod is gone.

    Raises what the Kubernetes adapter raises.
    """
    pod = get_pod(rt.kube, namespace=work.namespace, name=work.pod_name, policy=policy(work))
    return pod if pod is not None and pod.uid == work.pod_uid else None


def _is_later(value: str, claim_id: int) -> bool:
    wrote = parse(value)
    return wrote is not None and wrote.claim_id > claim_id


def policy(work: steps.Annotated) -> RetryPolicy:
    """Return the retry policy of one call that reads the Pod or writes its annotation.

    No attempt starts after the lease of the claim has expired, or later in the call than the lease of a stamp step
    lasts.
    """
    left = (work.lease_until - utcnow()).total_seconds()
    deadline = max(0.05, min(left, allowed("lease_stamp").seconds))
    return replace(STAMP_POLICY, attempts=attempts(STAMP_POLICY.attempts), deadline=deadline)
