"""Changes that people and autoscalers make to pools and nodes while jobs run. No such change may affect a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from k8s_adapters.pools.pools import create_pool, get_pool
from lab.bootstrap import RUNNER_IMAGE, LabPool, spec_of
from lab.chaos.plan import Blow, Strike
from lab.system import System
from ostler.errors import Conflict, Gone

T = TypeVar("T")
HALF = 0.5
AGAIN = 1.0
"""Seconds between two attempts to create a deleted pool again while the draining pool still has its name."""


After = Callable[[float, Callable[[], object]], None]
"""A function that runs another function after a number of seconds."""


class People:
    """Administrators of the cluster. They undo each change after a while, except for a new image.

    `rolls` is the number of new images. Real nodes get the names of all new images at the start, because a containerd
    might not run when the image of a pool changes.
    """

    def __init__(self, system: System, kube: KubeClient, after: After, *, rolls: int = 0) -> None:
        self._system, self._kube, self._after = system, kube, after
        self._namespace = system.namespace
        self._guarded = system.identities is not None
        """Whether the admission policy is in force. Only then may a pool be deleted in the foreground."""
        self._rolls = 0
        for node in system.real_nodes if rolls else ():
            for number in range(1, rolls + 1):
                node.tag(RUNNER_IMAGE, f"docker.io/library/{_image(number)}")

    def act(self, strike: Strike) -> bool:
        """Make the change of a strike. Return whether there was an object to change."""
        pool = chosen(self._system.pools, strike.dice)
        match strike.blow:
            case Blow.POOL_SCALED:
                return self._for_a_while(strike, pool, {"replicas": pool.replicas // 2}, {"replicas": pool.replicas})
            case Blow.POOL_PAUSED:
                return self._for_a_while(strike, pool, {"paused": True}, {"paused": False})
            case Blow.POOL_ROLLED:
                self._rolls += 1
                return self._patch(pool, {"image": _image(self._rolls)})
            case Blow.POOL_DELETED:
                self._delete(pool, foreground=self._guarded and strike.dice * 10 % 1 < HALF)
                self._after(strike.seconds, lambda: self._make_again(pool))
                return True
            case Blow.NODE_CORDONED:
                return self._cordon(strike)
        raise ValueError(f"the strike {strike.blow!r} is not a change to a pool or node")

    def _for_a_while(self, strike: Strike, pool: LabPool, now: Json, then: Json) -> bool:
        self._after(strike.seconds, lambda: self._patch(pool, then))
        return self._patch(pool, now)

    def _patch(self, pool: LabPool, spec: Json) -> bool:
        try:
            self._kube.request("PATCH", self._path(pool), body={"spec": spec}, content_type=MERGE_PATCH)
        except Gone:  # the pool is deleted and not created again yet
            return False
        return True

    def _delete(self, pool: LabPool, *, foreground: bool) -> None:
        how = {"propagationPolicy": "Foreground" if foreground else "Background"}
        with suppress(Gone):
            self._kube.request("DELETE", self._path(pool), query=how)

    def _make_again(self, pool: LabPool) -> None:
        try:
            create_pool(self._kube, namespace=self._namespace, name=pool.name, spec=spec_of(pool))
        except (Conflict, Gone):
            found = get_pool(self._kube, namespace=self._namespace, name=pool.name)
            if found is None or found.terminating:  # otherwise an earlier strike has already created it again
                self._after(AGAIN, lambda: self._make_again(pool))

    def _path(self, pool: LabPool) -> str:
        return f"/apis/ostler.dev/v1alpha1/namespaces/{self._namespace}/runnerpools/{pool.name}"

    def _cordon(self, strike: Strike) -> bool:
        node = chosen(self._system.nodes, strike.dice)
        self._after(strike.seconds, lambda: self._unschedulable(node, on=False))
        self._unschedulable(node, on=True)
        return True

    def _unschedulable(self, node: str, *, on: bool) -> None:
        path = f"/api/v1/nodes/{node}"
        self._kube.request("PATCH", path, body={"spec": {"unschedulable": on or None}}, content_type=MERGE_PATCH)


def _image(number: int) -> str:
    return f"runner:{number}"


def chosen(things: Sequence[T], dice: float) -> T:
    """Return one of the things, chosen by a number from 0 to 1."""
    return things[min(len(things) - 1, int(dice * len(things)))]
