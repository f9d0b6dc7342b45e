"""Writing the claim annotation of a Pod: the compare-and-swap that stamps, un-stamps and releases share."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from k8s_adapters.pods import PodSeen, get_pod
from k8s_adapters.stamps import STAMP_POLICY, StampOutcome, StampResult
from k8s_adapters.stamps import stamp as put_on
from k8s_adapters.stamps import unstamp as take_off
from models.claims import steps
from ostler.clock import utcnow
from rules.claims.machines import allowed
from rules.claims.stamps import parse
from rules.upstream.retry import RetryPolicy
from tasks.worker.runtime import Runtime

LOOKS = 2


def write(rt: Runtime, work: steps.Annotated, *, owner: int | None) -> StampResult:
    """Write the annotation, with the owner label or (`owner` None) without it.

    When another value than expected stands there it is believed and, as long as the lease is ours, replaced
    once. A stamp never replaces that of a later claim: these rows do not know it, so they are an earlier state than
    the cluster, where the Pod works for that claim (L12). Raises what the adapter raises.
    """
    expected = work.expected
    for look in range(1, LOOKS + 1):
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
        if result.outcome is not StampOutcome.MOVED_ON or seen is None or look == LOOKS:
            return result

        def believe(db: Connection, seen: str = seen) -> bool:
            return steps.believe(db, work, seen=seen, now=utcnow())

        if not rt.transaction(believe):
            return result
        expected = seen
    raise AssertionError("unreachable")


def read_pod(rt: Runtime, work: steps.Annotated) -> PodSeen | None:
    """Return the Pod of a claim, or None when a GET shows that its UID is gone. Raises what the adapter raises."""
    pod = get_pod(rt.kube, namespace=work.namespace, name=work.pod_name, policy=policy(work))
    return pod if pod is not None and pod.uid == work.pod_uid else None


def _is_later(value: str, claim_id: int) -> bool:
    wrote = parse(value)
    return wrote is not None and wrote.claim_id > claim_id


def policy(work: steps.Annotated) -> RetryPolicy:
    """Return the stamp's policy within what is left of the lease, the length of one at most."""
    left = (work.lease_until - utcnow()).total_seconds()
    return replace(STAMP_POLICY, deadline=max(0.05, min(left, allowed("lease_stamp").seconds)))
