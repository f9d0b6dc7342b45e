"""Last phase of each deleted Pod, from a watch.

A list that is read at intervals can miss the phase in which a Pod was deleted: on a busy machine a Pod can end and
disappear between two lists. A watch delivers each change in order, even if it is read late.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from k8s_adapters.calls.client import KubeClient, make_client, object_path
from k8s_adapters.cluster.watching import Watch
from ostler.errors import UpstreamError

_SECONDS = 300  # duration of one watch
_PAUSE = 0.2  # seconds before the next watch


class LastPhases:
    """A thread that watches the Pods of one namespace until `stop`."""

    def __init__(self, *, namespace: str, kubeconfig: Path) -> None:
        self._path = object_path("pods", namespace=namespace)
        self._kubeconfig = kubeconfig
        self._phases: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._stopping = threading.Event()
        self._watch: Watch[dict[str, Any]] | None = None
        self._thread = threading.Thread(target=self._run, name="last-phases", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if (watch := self._watch) is not None:
            watch.stop()
        self._thread.join(30)

    def of_deleted(self, uid: str) -> str | None:
        """Return the phase of a Pod before its deletion, or None if the watch has not seen the end of the Pod."""
        return self._phases.get(uid) if uid in self._deleted else None

    def record(self, kind: str, pod: Mapping[str, Any]) -> None:
        """Record an event of the watch. A Pod with a deletionTimestamp keeps the phase that it had before."""
        uid, phase = pod["metadata"]["uid"], pod.get("status", {}).get("phase")
        if phase is not None and ("deletionTimestamp" not in pod["metadata"] or uid not in self._phases):
            self._phases[uid] = phase
        if kind == "DELETED":
            self._deleted.add(uid)

    def _run(self) -> None:
        with closing(make_client(kubeconfig=str(self._kubeconfig))) as kube:
            while not self._stopping.is_set():
                with suppress(UpstreamError):  # the next round lists again
                    self._follow(kube)
                self._stopping.wait(_PAUSE)

    def _follow(self, kube: KubeClient) -> None:
        """List the Pods, then watch them. Pods that disappeared between two watches stay unknown."""
        listed = kube.request("GET", self._path)
        for pod in listed["items"]:
            self.record("ADDED", pod)
        since = listed["metadata"]["resourceVersion"]
        with Watch(kube, self._path, selector=None, read=dict, since=since, seconds=_SECONDS) as watch:
            self._watch = watch
            for event in watch.events():
                if self._stopping.is_set():
                    return
                if event.item is not None and event.kind != "BOOKMARK":
                    self.record(event.kind, event.item)
