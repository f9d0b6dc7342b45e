"""Pod statuses of the kubelet: container states, phase, and a reporter that merges changes into few patches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from lab.kubelet.ailments import NO_SHELL, START_ERROR
from lab.kubelet.cluster import Cluster, GoneError
from lab.kubelet.pods import PodView

JOIN_SECONDS = 0.1
"""Seconds that a change waits for further changes. One patch can then report the poller's end and the job's start."""

_KILLED = 137
"""Exit code of an ephemeral container that still ran at the end of its Pod."""

_NEVER = "1970-01-01T00:00:00Z"
"""Start of a container that did not start, as the real kubelet reports it."""


@dataclass(frozen=True, kw_only=True)
class ContainerState:
    """State of one container. It has been running since `started`. Once `code` is set, it terminated at `ended`.

    While `waits_for` is not empty, it has not started, and `message` explains why.
    """

    started: str
    waits_for: str = ""
    ready: bool = False
    code: int | None = None
    reason: str = ""
    message: str = ""
    ended: str = ""

    def render(self, *, name: str, image: str) -> dict[str, Any]:
        """Return the entry for `status.containerStatuses`."""
        state: dict[str, Any] = {"running": {"startedAt": self.started}}
        if self.waits_for:
            state = {"waiting": {"reason": self.waits_for, **({"message": self.message} if self.message else {})}}
        elif self.code is not None:
            times = {"startedAt": self.started, "finishedAt": self.ended}
            state = {"terminated": {"exitCode": self.code, "reason": self.reason, "message": self.message, **times}}
        return {
            "name": name,
            "image": image,
            "imageID": "",
            "restartCount": 0,
            "started": self.code is None and not self.waits_for,
            "ready": self.ready and self.code is None,
            "state": state,
        }


class StatusReporter:
    """Stores the status of a Pod and sends it after each change.

    Every patch contains the whole status, so only the last patch counts.
    """

    def __init__(self, *, cluster: Cluster, pod: PodView) -> None:
        self._cluster = cluster
        self._pod = pod
        self._containers: dict[str, ContainerState] = {}
        self._added: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._started = now()
        self.phase = pod.phase

    def start(self) -> None:
        """Report every container as running."""
        self.phase = "Running"
        self._containers = {name: ContainerState(started=now()) for name in self._pod.images}
        self._change()

    def wait(self) -> None:
        """Report that no container of a hook Pod has started yet. The phase stays Pending until a container runs."""
        names = (*self._pod.init_images, *self._pod.images)
        self._containers = {name: ContainerState(started=_NEVER, waits_for="ContainerCreating") for name in names}
        self._change()

    def waiting(self, container: str, *, reason: str, message: str) -> None:
        """Report why a container cannot start yet."""
        self._containers[container] = ContainerState(started=_NEVER, waits_for=reason, message=message)
        self._change()

    def added(self, container: str, *, image: str) -> None:
        """Report that an ephemeral container waits for its start."""
        self._added[container] = image
        self.waiting(container, reason="ContainerCreating", message="")

    def running(self, container: str) -> None:
        """Report that one container of a hook Pod runs."""
        if container in self._pod.images:
            self.phase = "Running"
        self._containers[container] = ContainerState(started=now())
        self._change()

    def ready(self, container: str, *, is_ready: bool = True) -> None:
        """Report that the readiness probe of a container succeeds, or that it fails."""
        if self._containers[container].ready != is_ready:
            self._containers[container] = replace(self._containers[container], ready=is_ready)
            self._change()

    def not_started(self) -> None:
        """Report that no container of the Pod started. The phase does not become Running."""
        self._containers = {name: ContainerState(started=_NEVER) for name in self._pod.images}
        for name in self._pod.images:
            self.terminated(
                name, code=NO_SHELL, reason=START_ERROR, message="the image lacks the command of the container"
            )

    def terminated(self, container: str, *, code: int, message: str = "", reason: str | None = None) -> None:
        """Report the end of a container. By default, `reason` is Completed for exit code 0, and Error for others."""
        reason = reason or ("Completed" if code == 0 else "Error")
        state = replace(self._containers[container], waits_for="")
        self._containers[container] = replace(state, code=code, reason=reason, message=message, ended=now())
        self._change()

    async def finish(self, *, code_of_the_rest: int, reason_of_the_rest: str | None = None) -> str:
        """End the containers that still run, send the last status and return the phase.

        `code_of_the_rest` is the exit code of those containers, and `reason_of_the_rest` is the reason of their ends.
        The phase is Failed unless every exit code is 0.
        """
        for name in self._pod.images:
            self._containers.setdefault(name, ContainerState(started=self._started))
            if self._containers[name].code is None:
                self.terminated(name, code=code_of_the_rest, reason=reason_of_the_rest)
        for name in self._added:
            if self._containers[name].code is None:
                self.terminated(name, code=_KILLED)
        failed = any(state.code for name, state in self._containers.items() if name not in self._added)
        self.phase = "Failed" if failed else "Succeeded"
        self._change()
        self._closing.set()
        await self.sent()
        return self.phase

    async def sent(self) -> None:
        """Wait until the last status is sent, after `finish` began. The end of the caller does not stop the sending."""
        if self._closing.is_set() and self._sender is not None:
            await asyncio.shield(self._sender)

    def _change(self) -> None:
        self._changed.set()
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        # Patches are sent one at a time and never cancelled. If a patch were overtaken by the next one, the old status
        # would return.
        delay = 0.0
        while not (self._closing.is_set() and not self._changed.is_set()):
            await self._changed.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), delay)
            delay = JOIN_SECONDS
            self._changed.clear()
            try:
                await self._cluster.report(self._pod.key, self._render())
            except GoneError:
                return

    def _render(self) -> dict[str, Any]:
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._started}
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": self._started}
        if self._pod.hook is not None and all(self._containers[name].ready for name in self._pod.images):
            ready["status"] = "True" if self.phase == "Running" else "False"
        status = {
            "phase": self.phase,
            "startTime": self._started,
            "conditions": [scheduled, ready],
            "containerStatuses": self._render_containers(self._pod.images),
        }
        if self._added:
            status["ephemeralContainerStatuses"] = self._render_containers(self._added)
        if self._pod.init_images:
            status["initContainerStatuses"] = self._render_containers(self._pod.init_images)
        return status

    def _render_containers(self, images: Mapping[str, str]) -> list[dict[str, Any]]:
        return [
            state.render(name=name, image=images[name]) for name, state in self._containers.items() if name in images
        ]


def now() -> str:
    """Return the current time in the format of Kubernetes."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
