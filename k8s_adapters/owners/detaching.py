"""Detachment of runner Pods from Ostler, for the time after its removal.

While Ostler runs, it removes the finalizer of a finished Pod of a StatefulSet. Without Ostler such a Pod, its namespace
and its pool would stay Terminating. The StatefulSets are removed first, because their controller would replace a
finished Pod that has no finalizer. No Pod is deleted, so running jobs continue.
"""

from __future__ import annotations

from dataclasses import dataclass

from k8s_adapters import finalizers
from k8s_adapters.client import KubeClient, object_path
from k8s_adapters.metadata import OF_POOLS, metadata_pages
from k8s_adapters.names import EXIT_FINALIZER
from k8s_adapters.owners.kinds import owner_of
from k8s_adapters.owners.stateful_set import APPS, KIND
from k8s_adapters.pods import list_pods
from k8s_adapters.resources import becomes_true
from ostler.errors import Forbidden, Invalid, Retryable, UpstreamError
from rules.pools.workloads import pod_name_of
from rules.upstream.retry import RetryPolicy

OWNERS_WITHIN = 30.0
"""Seconds that a detachment waits until the garbage collector has taken the StatefulSets off their Pods."""


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


def _stateful_sets(client: KubeClient, namespace: str, policy: RetryPolicy | None) -> dict[str, str]:
    """Return the UIDs of the runners' StatefulSets by name."""
    pages = metadata_pages(client, KIND, namespace=namespace, selector=OF_POOLS, group=APPS, policy=policy)
    return {each.name: each.uid for page in pages for each in page}
