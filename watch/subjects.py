"""Subjects of the watch: runner Pods and pools, each with its remembered state and the hints of a change."""

from __future__ import annotations

from typing import Protocol, TypeVar

from k8s_adapters.client import KubeClient
from k8s_adapters.pods import PodSeen, list_pods_at
from k8s_adapters.pools import PoolSeen, list_pools_at
from k8s_adapters.watching import PodWatch, PoolWatch, Watch
from rules.upstream.retry import RetryPolicy
from rules.upstream.watching import PoolObservation, Sight, hints_of, pool_changed
from watch.hints import Ending, Hints

_ONE_LIST = RetryPolicy(attempts=1, deadline=20.0)

T = TypeVar("T")


class Subject(Protocol[T]):
    """A kind of object that a follower follows. `counted`: the metrics of the watch tell of it."""

    name: str
    counted: bool

    def list(self) -> tuple[int, str]:
        """Take the whole list: what is missing may be gone. Returns its length and the version to go on from."""

    def connect(self, version: str, *, seconds: int) -> Watch[T]:
        """Return a watch from a version on."""

    def see(self, item: T, *, deleted: bool) -> None:
        """Take one object as an event showed it."""


class Pods:
    """The runner Pods of a namespace."""

    name = "pods"
    counted = True

    def __init__(self, client: KubeClient, hints: Hints, *, namespace: str) -> None:
        self._client = client
        self._hints = hints
        self._namespace = namespace
        self._sights: dict[str, Sight] = {}
        self._endings: dict[str, Ending] = {}

    def list(self) -> tuple[int, str]:
        """Take the whole list."""
        pods, version = list_pods_at(self._client, namespace=self._namespace, policy=_ONE_LIST)
        for uid in set(self._sights).difference(pod.uid for pod in pods):
            self._note(uid, None)
        for pod in pods:
            self.see(pod, deleted=False)
        self._hints.resync()  # what was gone before we first looked is known to the rows alone
        return len(pods), version

    def connect(self, version: str, *, seconds: int) -> PodWatch:
        """Return a watch from a version on."""
        return PodWatch(self._client, namespace=self._namespace, since=version, seconds=seconds)

    def see(self, item: PodSeen, *, deleted: bool) -> None:
        """Take one Pod."""
        # One that is over and has no company becomes terminal within a moment: that is told, once.
        ended = item.is_terminal or item.is_outlived
        unstamped = item.owner is None and item.poller_exit_code is not None and not item.is_over
        if item.terminating or deleted or item.is_over:
            self._endings[item.uid] = _ending(item)
        sight = Sight(item.pool or "", terminal=ended, ready=item.runner_ready, unstamped=unstamped)
        self._note(item.uid, None if deleted else sight)

    def _note(self, uid: str, after: Sight | None) -> None:
        ending = self._endings.pop(uid, None) if after is None else None
        for hint in hints_of(self._sights.get(uid), after):
            self._hints.note(hint, uid=uid, pool=after.pool if after is not None else "", ending=ending)
        if after is None:
            self._sights.pop(uid, None)
        else:
            self._sights[uid] = after


def _ending(pod: PodSeen) -> Ending:
    return Ending(
        deletion_at=None if pod.deletion_at is None else pod.deletion_at.isoformat(),
        reason=pod.exit_reason,
        runner_exit_code=pod.runner_exit_code,
    )


class Pools:
    """The pools of a namespace. What their status says is our own work, and is told to nobody."""

    name = "pools"
    counted = False

    def __init__(self, client: KubeClient, hints: Hints, *, namespace: str) -> None:
        self._client = client
        self._hints = hints
        self._namespace = namespace
        self._sights: dict[str, PoolObservation] = {}

    def list(self) -> tuple[int, str]:
        """Take the whole list."""
        pools, version = list_pools_at(self._client, namespace=self._namespace, policy=_ONE_LIST)
        for uid in set(self._sights).difference(pool.uid for pool in pools):
            self._note(uid, None)
        for pool in pools:
            self.see(pool, deleted=False)
        return len(pools), version

    def connect(self, version: str, *, seconds: int) -> PoolWatch:
        """Return a watch from a version on."""
        return PoolWatch(self._client, namespace=self._namespace, since=version, seconds=seconds)

    def see(self, item: PoolSeen, *, deleted: bool) -> None:
        """Take one pool."""
        sight = PoolObservation(item.name, item.generation, terminating=item.terminating)
        self._note(item.uid, None if deleted else sight)

    def _note(self, uid: str, after: PoolObservation | None) -> None:
        before = self._sights.get(uid)
        seen = after or before
        if seen is not None and pool_changed(before, after):
            self._hints.record_pool(seen.name)
        if after is None:
            self._sights.pop(uid, None)
        else:
            self._sights[uid] = after
