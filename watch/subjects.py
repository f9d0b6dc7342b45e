"""Subjects of the watch: runner Pods, hook Pods and pools.

A subject remembers the last observation of each object. The subject compares each event with the last observation and
records the hints that follow from the difference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TypeVar

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.cluster.watching import HookPodWatch, PodWatch, PoolWatch, Watch
from k8s_adapters.pools.pools import list_pools_at
from k8s_adapters.runners.hook_pods import HookPodView, list_hook_pods_at
from k8s_adapters.runners.pods import list_pods_at
from ostler.clock import utcnow
from rules.claims.hook_pods import HookPod
from rules.claims.pod_view import PodView
from rules.pools.pool_spec import PoolSpec, pool_changed
from rules.upstream.retry import RetryPolicy
from rules.upstream.watching import Sight, hints_of
from watch.hints import Ending, Hints

_ONE_LIST = RetryPolicy(attempts=1, deadline=20.0)

T = TypeVar("T")


class Subject(Protocol[T]):
    """A kind of object that a follower watches.

    `name` and `namespace` name the subject in log lines. `counted` is true if the metrics of the watch cover this
    subject.
    """

    name: str
    namespace: str
    counted: bool

    def list(self) -> tuple[int, str]:
        """List all objects and compare them with the remembered objects.

        If a remembered object is not in the list, it is recorded as gone. Return the length of the list and the
        resource version at which the watch must start.
        """

    def connect(self, version: str, *, seconds: int) -> Watch[T]:
        """Return a watch that starts at resource version `version` and ends after `seconds`."""

    def observe(self, item: T, *, deleted: bool) -> None:
        """Compare `item`, from a list or an event, with the remembered state of the object.

        `deleted` is true if the object was deleted.
        """


class Pods:
    """The runner Pods of a namespace."""

    name = "pods"
    counted = True

    def __init__(self, client: KubeClient, hints: Hints, *, namespace: str) -> None:
        self._client = client
        self._hints = hints
        self.namespace = namespace
        self._sights: dict[str, Sight] = {}
        self._endings: dict[str, Ending] = {}

    def list(self) -> tuple[int, str]:
        """List all Pods and compare them with the remembered Pods."""
        pods, version = list_pods_at(self._client, namespace=self.namespace, policy=_ONE_LIST)
        for uid in set(self._sights).difference(pod.uid for pod in pods):
            self._note(uid, None)
        for pod in pods:
            self.observe(pod, deleted=False)
        self._hints.resync()  # the sweeps find a Pod that was gone before the first list of this process
        return len(pods), version

    def connect(self, version: str, *, seconds: int) -> PodWatch:
        """Return a watch of Pods that starts at resource version `version` and ends after `seconds`."""
        return PodWatch(self._client, namespace=self.namespace, since=version, seconds=seconds)

    def observe(self, item: PodView, *, deleted: bool) -> None:
        """Compare one Pod with its remembered state. `deleted` is true if the Pod was deleted."""
        # A Pod that is over and has no other container becomes terminal within a moment. Only the terminal state
        # causes a hint then, so that the Pod causes one hint and not two.
        ended = item.is_terminal or item.is_outlived
        unstamped = item.owner is None and item.poller_exit_code is not None and not item.is_over
        if item.terminating or deleted or item.is_over:
            self._endings[item.uid] = _ending(item, before=self._endings.get(item.uid))
        sight = Sight(item.pool or "", terminal=ended, ready=item.runner_ready, unstamped=unstamped)
        self._note(item.uid, None if deleted else sight, in_terminal_phase=item.phase in {"Succeeded", "Failed"})

    def _note(self, uid: str, after: Sight | None, *, in_terminal_phase: bool = False) -> None:
        ending = self._endings.pop(uid, None) if after is None else None
        for hint in hints_of(self._sights.get(uid), after):
            pool = after.pool if after is not None else ""
            self._hints.note(hint, uid=uid, pool=pool, ending=ending, in_terminal_phase=in_terminal_phase)
        if after is None:
            self._sights.pop(uid, None)
        else:
            self._sights[uid] = after


def _ending(pod: PodView, *, before: Ending | None) -> Ending:
    """Return how a Pod ended. `before` is the result for an earlier state of the Pod, or None.

    The first state in which the Pod had ended or was being deleted shows what came first.
    """
    return Ending(
        deletion_at=None if pod.deletion_at is None else pod.deletion_at.isoformat(),
        deleted_first=pod.deleted_first if before is None else before["deleted_first"],
        reason=pod.exit_reason,
        runner_exit_code=pod.runner_exit_code,
        node=pod.node,
    )


class HookPods:
    """The hook Pods of a namespace. They are recorded with their runner Pod, and only shown to people."""

    name = "hook pods"
    counted = False

    def __init__(self, client: KubeClient, hints: Hints, *, namespace: str) -> None:
        self._client = client
        self._hints = hints
        self.namespace = namespace
        self._sights: dict[str, HookPodView] = {}

    def list(self) -> tuple[int, str]:
        """List all hook Pods and compare them with the remembered hook Pods."""
        pods, version = list_hook_pods_at(self._client, namespace=self.namespace, policy=_ONE_LIST)
        for uid in set(self._sights).difference(each.uid for each in pods):
            before = self._sights[uid]
            self.observe(replace(before, pod=replace(before.pod, seen_at=utcnow())), deleted=True)
        for each in pods:
            self.observe(each, deleted=False)
        return len(pods), version

    def connect(self, version: str, *, seconds: int) -> HookPodWatch:
        """Return a watch of hook Pods that starts at resource version `version` and ends after `seconds`."""
        return HookPodWatch(self._client, namespace=self.namespace, since=version, seconds=seconds)

    def observe(self, item: HookPodView, *, deleted: bool) -> None:
        """Compare one hook Pod with its remembered state. `deleted` is true if the Pod was deleted."""
        if item.runner is None:
            return
        before = self._sights.pop(item.uid, None)
        pod = replace(item.pod, gone=deleted)
        if before is not None and (deleted or item.terminating):  # its containers are killed, which says nothing
            pod = replace(pod, problem=pod.problem or before.pod.problem)
        if before is None or _without_time(before.pod) != _without_time(pod):
            self._hints.record_hook_pod(item.runner, pod)
        if not deleted:
            self._sights[item.uid] = replace(item, pod=pod)


def _without_time(pod: HookPod) -> HookPod:
    return replace(pod, seen_at=pod.created_at)


class Pools:
    """The pools of a namespace. A change of a pool's status causes no hint, because Ostler itself writes the status."""

    name = "pools"
    counted = False

    def __init__(self, client: KubeClient, hints: Hints, *, namespace: str) -> None:
        self._client = client
        self._hints = hints
        self.namespace = namespace
        self._sights: dict[str, PoolSpec] = {}

    def list(self) -> tuple[int, str]:
        """List all pools and compare them with the remembered pools."""
        pools, version = list_pools_at(self._client, namespace=self.namespace, policy=_ONE_LIST)
        for uid in set(self._sights).difference(pool.uid for pool in pools):
            self._note(uid, None)
        for pool in pools:
            self.observe(pool, deleted=False)
        return len(pools), version

    def connect(self, version: str, *, seconds: int) -> PoolWatch:
        """Return a watch of pools that starts at resource version `version` and ends after `seconds`."""
        return PoolWatch(self._client, namespace=self.namespace, since=version, seconds=seconds)

    def observe(self, item: PoolSpec, *, deleted: bool) -> None:
        """Compare one pool with its remembered state. `deleted` is true if the pool was deleted."""
        self._note(item.uid, None if deleted else item)

    def _note(self, uid: str, after: PoolSpec | None) -> None:
        before = self._sights.get(uid)
        seen = after or before
        if seen is not None and pool_changed(before, after):
            self._hints.record_pool(seen.name)
        if after is None:
            self._sights.pop(uid, None)
        else:
            self._sights[uid] = after
