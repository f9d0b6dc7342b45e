"""One hook Pod: its init containers, its containers with their readiness, and the rooms for commands from outside.

The ephemeral containers of any other Pod are run in the same way.

A container with a `command` runs it as a process. Of the images' own entry points, only that of `ENTRY` is known. A
container of another image without a command therefore runs until its Pod is deleted, or as the tag of its image asks
(`lab.kubelet.hook_view`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from lab.kubelet.cluster import Cluster, GoneError
from lab.kubelet.container_logs import LogWriter
from lab.kubelet.hook_view import HookContainer, HookView, Probe, SecretKey
from lab.kubelet.rooms import NOT_STARTED, NotStarted, Room
from lab.kubelet.status import StatusReporter

PULL_RETRY_SECONDS = 2.0
_INIT_SECONDS = 600.0
_LEAST_GRACE = 0.1


class HookPod:
    """Runs the containers of one hook Pod.

    `folder` contains the volumes of the Pod, and a folder (`Room`) for each container.
    """

    def __init__(self, *, view: HookView, cluster: Cluster, report: StatusReporter, folder: Path) -> None:
        self._view = view
        self._cluster = cluster
        self._report = report
        self._folder = folder
        self._rooms: dict[str, Room] = {}
        self._running: set[str] = set()
        self._added: dict[str, asyncio.Task[None]] = {}

    def room(self, container: str) -> Room | None:
        """Return the folder of a running container, or None if no such container runs."""
        return self._rooms[container] if container in self._running else None

    def has(self, container: str) -> bool:
        """Return whether the Pod has a container with this name."""
        known = (*self._view.init_containers, *self._view.containers)
        return container in self._added or any(each.name == container for each in known)

    def log(self, container: str) -> Path | None:
        """Return the log of a container, or None if it has not started."""
        path = self._log(container)
        return path if self.has(container) and path.exists() else None

    def add(self, container: HookContainer) -> None:
        """Start an ephemeral container, unless it was added before."""
        if container.name not in self._added:
            self._report.added(container.name, image=container.image)
            self._added[container.name] = asyncio.create_task(self._run(container))

    async def end(self) -> None:
        """End the containers that were added."""
        for each in self._added.values():
            each.cancel()
        await asyncio.gather(*self._added.values(), return_exceptions=True)
        self._running.clear()
        await asyncio.gather(*(room.end(grace=_LEAST_GRACE) for room in self._rooms.values()))

    async def run(self) -> None:
        """Run until every container has ended. Cancelling it ends the processes within the grace period."""
        try:
            for init in self._view.init_containers:
                if not await self._initialize(init):
                    return
            async with asyncio.TaskGroup() as containers:
                for each in self._view.containers:
                    containers.create_task(self._run(each))
        finally:
            self._running.clear()
            grace = max(self._view.grace, _LEAST_GRACE)
            await asyncio.gather(*(room.end(grace=grace) for room in self._rooms.values()))

    async def _initialize(self, container: HookContainer) -> bool:
        """Run an init container. Return whether it succeeded."""
        room = await self._start(container)
        self._report.running(container.name)
        self._running.add(container.name)
        code, reason = 0, None
        if container.command is not None:
            try:
                code = await room.run(container.command, seconds=_INIT_SECONDS, output=self._log(container.name))
            except NotStarted as error:
                code, reason = NOT_STARTED, str(error)
        self._running.discard(container.name)
        await room.end(grace=_LEAST_GRACE)
        self._report.terminated(container.name, code=code, message=reason or "")
        return code == 0

    async def _run(self, container: HookContainer) -> None:
        room = await self._start(container)
        fate = container.fate
        process: asyncio.subprocess.Process | None = None
        writer: asyncio.Task[None] | None = None
        if container.command is not None:
            log = LogWriter(self._log(container.name))
            writer = asyncio.create_task(log.copy())
            try:
                process = await room.start(
                    container.command, stdin=asyncio.subprocess.DEVNULL, stdout=log.pipe, stderr=log.pipe
                )
            except NotStarted as error:
                self._report.terminated(container.name, code=NOT_STARTED, reason="StartError", message=str(error))
                return
            finally:
                os.close(log.pipe)
        self._report.running(container.name)
        self._running.add(container.name)
        probing = asyncio.create_task(self._become_ready(container, room))
        try:
            if fate.code is not None:
                code = fate.code
            else:
                code = await (asyncio.Event().wait() if process is None else room.wait(process))
        finally:
            probing.cancel()
        self._running.discard(container.name)
        await room.end(grace=_LEAST_GRACE)
        if writer is not None:
            await writer  # the log is complete before the end is reported
        self._report.terminated(container.name, code=code, reason=fate.reason)

    async def _start(self, container: HookContainer) -> Room:
        """Return the room of a container, once its image is pulled and its environment is known."""
        refused = 'failed to pull and unpack image "%s": not found'
        while not container.can_be_pulled:
            for reason, message in (
                ("ErrImagePull", refused % container.image),
                ("ImagePullBackOff", f'Back-off pulling image "{container.image}"'),
            ):
                self._report.waiting(container.name, reason=reason, message=message)
                await asyncio.sleep(PULL_RETRY_SECONDS)
        room = Room(
            root=self._folder / "containers" / container.name,
            mounts={
                path: self._folder / "volumes" / volume / below for path, (volume, below) in container.mounts.items()
            },
            directory=container.directory,
            environment=await self._environment(container),
        )
        room.make()
        self._rooms[container.name] = room
        return room

    async def _environment(self, container: HookContainer) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name, value in container.environment.items():
            found[name] = value if isinstance(value, str) else await self._secret(container, value)
        return found

    async def _secret(self, container: HookContainer, wanted: SecretKey) -> str:
        while True:
            with contextlib.suppress(GoneError, KeyError):
                data = await self._cluster.read_secret(wanted.secret)
                return base64.b64decode(data[wanted.key]).decode()
            message = f'secret "{wanted.secret}" not found'
            self._report.waiting(container.name, reason="CreateContainerConfigError", message=message)
            await asyncio.sleep(PULL_RETRY_SECONDS)

    async def _become_ready(self, container: HookContainer, room: Room) -> None:
        """Report the readiness of a container until cancelled."""
        if container.fate.never_ready:
            return
        if container.probe is None:
            self._report.ready(container.name)
            return
        failures = 0
        await asyncio.sleep(container.probe.delay)
        while True:
            failures = 0 if await _succeeds(container.probe, room) else failures + 1
            if failures == 0:
                self._report.ready(container.name)
            elif failures == container.probe.failures:
                self._report.ready(container.name, is_ready=False)
            await asyncio.sleep(container.probe.period)

    def _log(self, container: str) -> Path:
        return self._folder / f"{container}.log"


async def _succeeds(probe: Probe, room: Room) -> bool:
    with contextlib.suppress(TimeoutError, NotStarted):
        return await room.run(probe.command, seconds=probe.timeout) == 0
    return False
