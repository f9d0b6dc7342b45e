"""Detachment of runner Pods from Ostler, before its removal: of one runner in a pool that drains, and of all runners.

While Ostler runs, it removes the finalizer of a finished Pod of a StatefulSet. Without Ostler such a Pod, its namespace
and its pool would stay Terminating. The StatefulSets are removed first, because their controller would replace a
finished Pod that has no finalizer. No Pod is deleted, so running jobs continue.
"""

from __future__ import annotations

from dataclasses import dataclass

from k8s_adapters.calls import finalizers
from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.calls.metadata import OF_POOLS, metadata_pages
from k8s_adapters.names import EXIT_FINALIZER
from k8s_adapters.runners.owners.kinds import owner_of
from k8s_adapters.runners.owners.owner import Owner
from k8s_adapters.runners.owners.stateful_set import APPS, KIND
from k8s_adapters.runners.pods import get_pod, list_pods
from k8s_adapters.runners.resources import becomes_true
from ostler.errors import Forbidden, Invalid, Retryable, UpstreamError
from rules.pools.workloads import pod_name_of
from rules.upstream.retry import RetryPolicy

OWNERS_WITHIN = 30.0
"""Seconds that a detachment waits until the garbage collector has taken the StatefulSets off their Pods."""
ORPHANED_EVERY = 0.03
"""Seconds between two reads of a StatefulSet that is ending."""


@dataclass(frozen=True, slots=True)
class Detached:
    """Number of StatefulSets and of finalizers that were removed."""

    stateful_sets: int = 0
    finalizers: int = 0

    def __bool__(self) -> bool:
        return bool(self.stateful_sets or self.finalizers)

    def __add__(self, other: Detached) -> Detached:
        return Detached(self.stateful_sets + other.stateful_sets, self.finalizers + other.finalizers)


def detach_runners(client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None) -> Detached:
    """Remove the StatefulSets of all runners in a namespace without their Pods, then the finalizers of the Pods.

    A repeated call continues after an error. If the API server refuses the change of one Pod, the other Pods are still
    changed, and then the error is raised. Raises `Retryable` if the StatefulSets do not disappear in time, and the
    errors of `KubeClient.request`.
    """
    sets = _stateful_sets(client, namespace, policy)
    for name, uid in sets.items():
        runner = pod_name_of(name)
        owner_of(runner).end(client, namespace=namespace, name=runner, uid=uid, policy=policy)
    if not becomes_true(client, lambda: not _stateful_sets(client, namespace, policy), OWNERS_WITHIN, every=0.5):
        raise Retryable(
            f"the garbage collector did not remove the StatefulSets of runners in {namespace} within "
            f"{OWNERS_WITHIN:.0f} s; check that kube-controller-manager runs, then run the command again"
        )
    removed = 0
    refused: UpstreamError | None = None
    for pod in list_pods(client, namespace=namespace, policy=policy):
        if not pod.exit_held:
            continue
        path = object_path("pods", namespace=namespace, name=pod.name)
        try:
            removed += finalizers.remove(client, path, uid=pod.uid, finalizer=EXIT_FINALIZER, policy=policy)
        except (Forbidden, Invalid) as error:
            refused = error
    if refused is not None:
        raise refused
    return Detached(len(sets), removed)


def detach_runner(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    attempt: str,
    within: float,
    policy: RetryPolicy | None = None,
) -> None:
    """Remove the owner of one runner without its Pod, then the finalizer of the Pod with this UID.

    `attempt` is the attempt in the annotation of the Pod, so that the owner of this Pod is found. The Pod keeps its
    finalizer if the garbage collector did not take the owner off the Pod within `within` seconds, or if the Pod is over
    or is being deleted: its exit must be recorded first. Raises the errors of `KubeClient.request`.
    """
    owner = owner_of(name)
    end_owner(client, namespace=namespace, name=name, attempt=attempt, policy=policy)
    if not is_orphaned(client, owner, namespace=namespace, name=name, attempt=attempt, within=within, policy=policy):
        return
    pod = get_pod(client, namespace=namespace, name=name, policy=policy)
    if pod is None or pod.uid != uid or pod.of_a_set or pod.terminating or pod.is_over:
        return
    owner.release(client, namespace=namespace, name=name, uid=uid, policy=policy)


def end_owner(
    client: KubeClient, *, namespace: str, name: str, attempt: str | None, policy: RetryPolicy | None = None
) -> None:
    """End the owner of a runner, unless it is ending already or another attempt created it. Its Pod stays."""
    owner = owner_of(name)
    found = owner.find(client, namespace=namespace, name=name, attempt=attempt, policy=policy)
    if found is not None and not found.ending:
        owner.end(client, namespace=namespace, name=name, uid=found.uid, policy=policy)


def is_orphaned(
    client: KubeClient,
    owner: Owner,
    *,
    namespace: str,
    name: str,
    attempt: str | None,
    within: float,
    policy: RetryPolicy | None,
) -> bool:
    """Wait until a Pod does not refer to its ended owner any more. Return False after `within` seconds."""

    def orphaned() -> bool:
        left = owner.find(client, namespace=namespace, name=name, attempt=attempt, policy=policy)
        return left is None or (left.ending and not left.orphaning)

    return becomes_true(client, orphaned, within, every=ORPHANED_EVERY)


def _stateful_sets(client: KubeClient, namespace: str, policy: RetryPolicy | None) -> dict[str, str]:
    """Return the UIDs of the runners' StatefulSets by name."""
    pages = metadata_pages(client, KIND, namespace=namespace, selector=OF_POOLS, group=APPS, policy=policy)
    return {each.name: each.uid for page in pages for each in page}
