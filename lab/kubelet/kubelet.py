"""Kubelet with two loops. One renews the Node. The other follows the namespace's Pods, with one worker for each Pod."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import aiohttp

from lab.kubelet.cluster import Cluster, ExpiredError
from lab.kubelet.hook_pod import HookPod
from lab.kubelet.node import NodeHeartbeat
from lab.kubelet.pods import PodView, view
from lab.kubelet.worker import Ground, PodWorker

LONGEST_WAIT = 5.0


class Kubelet:
    """Follows the Pods of one namespace.

    It is also a scheduler: it binds the Pods without a node whose node selector names this kubelet (`serves`).
    """

    def __init__(self, *, ground: Ground, node: str, heartbeat: NodeHeartbeat, serves: str | None = None) -> None:
        """`serves`: name of this kubelet in the node selectors of its Pods.

        If it is None, only Pods whose node selector names no kubelet are bound.
        """
        self._serves = serves
        self._ground = ground
        self._node = node
        self._heartbeat = heartbeat
        self._workers: dict[str, PodWorker] = {}

    def hook_pod(self, namespace: str, name: str) -> HookPod | None:
        """Return the Pod with this name if it runs here and can execute commands, else None."""
        if namespace != self._ground.cluster.namespace:
            return None
        return next((each.hook_pod for each in self._workers.values() if each.name == name), None)

    async def serve(self, *, ready: Callable[[], None]) -> None:
        """Serve until cancelled. Call `ready` after the first list. Raises permanent errors."""
        await self._ground.cluster.announce_node()
        await self._heartbeat.renew()
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._heartbeat.renew_forever())
                loops.create_task(self._follow(ready))
        finally:
            await asyncio.gather(*(worker.stop() for worker in self._workers.values()), return_exceptions=True)

    async def _follow(self, ready: Callable[[], None]) -> None:
        while True:
            pods, since = await self._ground.cluster.list_pods()
            self._compare(pods)
            ready()
            with contextlib.suppress(ExpiredError):
                await self._watch(since)

    async def _watch(self, since: str) -> None:
        """Follow the watch and reconnect when it breaks, until `ExpiredError`."""
        cluster: Cluster = self._ground.cluster
        wait = 0.1
        while True:
            try:
                async for kind, found in cluster.watch_pods(since):
                    since = found["metadata"]["resourceVersion"]
                    wait = 0.1
                    self._hear(kind, found)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(wait * random.uniform(0.5, 1))
                wait = min(wait * 2, LONGEST_WAIT)

    def _compare(self, pods: list[dict[str, Any]]) -> None:
        """Apply a complete list. A known Pod that the list lacks is gone."""
        listed = {pod["metadata"]["uid"] for pod in pods}
        for uid in set(self._workers) - listed:
            self._workers.pop(uid).vanished()
        for pod in pods:
            self._hear("MODIFIED", pod)

    def _hear(self, kind: str, found: dict[str, Any]) -> None:
        if kind == "BOOKMARK":
            return
        pod = view(found)
        worker = self._workers.get(pod.key.uid)
        if kind == "DELETED":
            if worker is not None:
                del self._workers[pod.key.uid]
                worker.vanished()
            return
        if worker is None:
            worker = self._take_on(pod)
        if worker is not None and pod.deleted:
            worker.delete()
        elif worker is not None:
            worker.add(pod.added)

    def _take_on(self, pod: PodView) -> PodWorker | None:
        """Start a worker for a Pod of this Node, or for a Pod without a node that names this kubelet.

        Returns None for a Pod of another node or kubelet, for a deleted Pod without a node, and for a Pod that has
        ended and is not deleted.
        """
        if pod.node not in {None, self._node} or (pod.deleted and pod.node is None):
            return None
        if pod.terminal and not pod.deleted:
            return None
        if pod.node is None and pod.served_by != self._serves:
            return None
        worker = self._workers[pod.key.uid] = PodWorker(ground=self._ground, pod=pod)
        if not pod.deleted:
            worker.start(lost=pod.phase == "Running")
        return worker
