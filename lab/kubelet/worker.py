"""Worker of one Pod, from its binding to its end, like a Pod worker of the real kubelet.

A deleted Pod is first stopped, then reported, then written to the journal, and removed last, as by the real kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.kubelet.ailments import UNUSABLE, Ailment, condition_of
from lab.kubelet.cluster import Cluster, GoneError, RefusedError
from lab.kubelet.hook_pod import HookPod
from lab.kubelet.hook_view import HookContainer, HookView
from lab.kubelet.journal import Journal
from lab.kubelet.pods import DEFAULT_TOKEN_SECONDS, POLLER, REGISTER, RUNNER, PodView, TokenVolume
from lab.kubelet.processes import Containers, PodFolder
from lab.kubelet.quota import RealQuota
from lab.kubelet.sidecar import HOOKS, SidecarFolder
from lab.kubelet.simulated import Simulation
from lab.kubelet.status import StatusReporter
from lab.kubelet.tokens import TokenRenewer

Run = Callable[[], Coroutine[Any, Any, None]]
TERMINATED = 143
MOUNT_SECONDS = 1.0
"""Seconds between two checks whether a missing volume exists."""
LOST = 255
"""Exit code that containerd reports for a container that ended while containerd did not run."""
UNKNOWN = "Unknown"
"""Reason that containerd reports for a container with the exit code `LOST`."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Objects that all Pods of the node share."""

    cluster: Cluster
    journal: Journal
    simulation: Simulation
    quota: RealQuota
    work: Path
    dispatch_url: str | None
    kubeconfig: Path
    hooks_url: str | None
    """Address at which sidecars reach the API server. None: the address in the kubeconfig."""
    start_delay: float


class PodWorker:
    """Runs one Pod.

    The caller calls `start()` once, `delete()` when the Pod is being deleted, and `vanished()` when it is gone.
    """

    def __init__(self, *, ground: Ground, pod: PodView) -> None:
        self._ground = ground
        self._pod = pod
        self._condition = condition_of(pod.images.get(RUNNER, ""))
        self._report = StatusReporter(cluster=ground.cluster, pod=pod)
        self._life: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._deleted = False
        self._job: int | None = None
        self._ran_a_job = False
        self.hook_pod: HookPod | None = None
        """The running hook Pod, or the ephemeral containers of another Pod. None if there are none."""

    @property
    def name(self) -> str:
        """Return the name of the Pod."""
        return self._pod.key.name

    def start(self, *, lost: bool) -> None:
        """Start the Pod. `lost`: it ran under an earlier kubelet, so its containers are reported as lost."""
        self._life = asyncio.create_task(self._guarded(self._report_lost if lost else self._live))
        self._life.add_done_callback(_complain)

    def delete(self) -> None:
        """Stop a Pod that has a deletionTimestamp and confirm its deletion. Repeated calls do nothing."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._guarded(self._end))
            self._ending.add_done_callback(_complain)

    def add(self, containers: Sequence[HookContainer]) -> None:
        """Start the ephemeral containers of the Pod that do not run yet."""
        if containers and self._running:
            if self.hook_pod is None:
                view = HookView(containers=(), init_containers=(), grace=0)
                folder = self._folder
                self.hook_pod = HookPod(view=view, cluster=self._ground.cluster, report=self._report, folder=folder)
            for each in containers:
                self.hook_pod.add(each)

    @property
    def _running(self) -> bool:
        return self._life is not None and not self._life.done() and self._pod.hook is None

    @property
    def _folder(self) -> Path:
        return self._ground.work / f"{self._pod.key.name}-{self._pod.key.uid[:8]}"

    def vanished(self) -> None:
        """Stop the remaining processes of a Pod that is gone from the API server."""
        self._journal_deletion()
        if self._life is not None:
            self._life.cancel()

    async def stop(self) -> None:
        """Stop all tasks of this Pod without a report."""
        tasks = [task for task in (self._life, self._ending) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # Events of the containers

    def poller_started(self, *, simulated: bool) -> None:
        """Record that the poller started."""
        self._write("poller_started", simulated=simulated)

    def jit_received(self, *, claim: str, runner_name: str, simulated: bool) -> None:
        """Record that the poller received work."""
        self._write("jit_received", claim=claim, runner_name=runner_name, simulated=simulated)

    def poller_exited(self, *, code: int, message: str) -> None:
        """Record that the poller exited."""
        self._write("poller_exited", code=code)
        self._report.terminated(POLLER, code=code, message=message)

    def runner_started(self, *, runner_name: str) -> None:
        """Record that the runner connected to GitHub."""
        self._write("runner_started", runner_name=runner_name)

    def runner_ready(self, *, is_ready: bool = True) -> None:
        """Report that the readiness probe of container `runner` succeeds, or that it fails."""
        self._report.ready(RUNNER, is_ready=is_ready)

    def register_exited(self, *, code: int) -> None:
        """Report that the container that registers a persistent runner exited."""
        self._write("register_exited", code=code)
        self._report.terminated(REGISTER, code=code)

    def job_started(self, *, job: int) -> None:
        """Record that the runner started a job."""
        self._job, self._ran_a_job = job, True
        self._write("job_started", job=job)

    def job_finished(self, *, job: int, conclusion: str) -> None:
        """Record that the runner finished a job."""
        self._job = None
        self._write("job_finished", job=job, conclusion=conclusion)

    def hook_reported(self, event: str, facts: dict[str, object]) -> None:
        """Record an event of the runner about a command of the container hooks."""
        self._write(event, **facts)

    def runner_exited(self, *, code: int) -> None:
        """Report that the runner exited."""
        self._report.terminated(RUNNER, code=code)

    # Life of the Pod

    async def _guarded(self, live: Run) -> None:
        try:
            await live()
        except GoneError:
            return  # the watch reports the end of the Pod
        except RefusedError as error:
            self._refused(str(error))

    async def _report_lost(self) -> None:
        phase = await self._report.finish(code_of_the_rest=LOST, reason_of_the_rest=UNKNOWN)
        self._write("pod_ended", phase=phase)

    async def _live(self) -> None:
        if self._pod.node is None:
            await self._ground.cluster.bind(self._pod.key)
        self._write("pod_bound")
        if self._pod.hook is not None:
            await self._live_as_hook_pod(self._pod.hook)
            return
        try:
            await self._live_as_other_pod()
        finally:
            await self._end_added()

    async def _end_added(self) -> None:
        """End the ephemeral containers, as the kubelet does when the containers of a Pod have ended."""
        if self.hook_pod is not None and self._pod.hook is None:
            await self.hook_pod.end()

    async def _live_as_other_pod(self) -> None:
        await asyncio.sleep(self._ground.start_delay)
        if not self._pod.is_runner:
            self._report.start()
            await asyncio.Event().wait()
        if self._condition.ailment in UNUSABLE:
            await self._live_with_unusable_image()
            return
        if self._condition.ailment is Ailment.NO_SHELL:
            self._report.not_started()
            self._write("pod_ended", phase=await self._report.finish(code_of_the_rest=0))
            return
        real = self._ground.quota.take()
        try:
            await (self._live_as_processes() if real or self._pod.persistent else self._live_simulated())
        finally:
            if real:
                self._ground.quota.give_back(used=self._ran_a_job)
        if self._pod.has_company:
            await asyncio.Event().wait()  # it runs until the Pod is deleted
        await self._end_added()
        self._write("pod_ended", phase=await self._report.finish(code_of_the_rest=0))

    async def _live_as_hook_pod(self, hook: HookView) -> None:
        self._report.wait()
        await asyncio.sleep(self._ground.start_delay)
        folder = self._folder
        self.hook_pod = HookPod(view=hook, cluster=self._ground.cluster, report=self._report, folder=folder)
        try:
            await self.hook_pod.run()
        finally:
            await asyncio.to_thread(shutil.rmtree, folder / "volumes", ignore_errors=True)
        self._write("pod_ended", phase=await self._report.finish(code_of_the_rest=0))

    async def _live_with_unusable_image(self) -> None:
        """End both containers at once, as the product's scripts do when they cannot use the image."""
        of_poller, of_runner = UNUSABLE[self._condition.ailment]
        self._report.start()
        self.poller_exited(code=of_poller, message="")
        self.runner_exited(code=of_runner)
        self._write("pod_ended", phase=await self._report.finish(code_of_the_rest=0))

    async def _live_as_processes(self) -> None:
        folder = PodFolder(root=self._folder)
        folder.make(persistent=self._pod.persistent)
        if self._pod.scripts is not None:
            folder.write_scripts(await self._mounted_scripts(self._pod.scripts))
        tokens = self._tokens(folder.token, self._pod.token)
        poller = dict(self._pod.environment[POLLER])
        if self._ground.dispatch_url is not None:
            poller["OSTLER_DISPATCH_URL"] = self._ground.dispatch_url
        runner = {**self._pod.environment[RUNNER], **self._condition.environment()}
        if self._pod.sidecar is not None:
            sidecar = SidecarFolder(root=folder.root / HOOKS)
            folder.share()
            runner |= sidecar.environment_of_runner() | {"LAB_RUNNER_WORK": str(folder.home / "_work")}
        containers = Containers(
            folder=folder,
            poller_environment=poller,
            runner_environment=runner,
            github_url=self._ground.simulation.github_url,
            persistent=self._pod.persistent,
            events=self,
        )
        if self._pod.sidecar is None:
            await self._beside_token(tokens, containers.run)
        else:
            await self._beside_sidecar(sidecar, self._pod.sidecar, lambda: self._beside_token(tokens, containers.run))

    async def _beside_sidecar(self, folder: SidecarFolder, environment: dict[str, str], run: Run) -> None:
        """Start the sidecar, run the containers when it is ready, and end it after them."""
        folder.make(kubeconfig=self._ground.kubeconfig, server=self._ground.hooks_url)
        tokens = self._tokens(folder.token, TokenVolume(audience="", seconds=DEFAULT_TOKEN_SECONDS))
        renewing = asyncio.create_task(tokens.renew_forever(await tokens.first()))
        serving = asyncio.create_task(folder.serve(environment))
        serving.add_done_callback(_complain)
        try:
            await folder.wait_until_ready()
            await run()
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            renewing.cancel()
            folder.token.unlink(missing_ok=True)

    async def _mounted_scripts(self, name: str) -> dict[str, str]:
        """Return the files of the ConfigMap with the scripts. The containers wait until it exists, as on a node."""
        while (found := await self._ground.cluster.read_config_map(name)) is None:  # noqa: ASYNC110 - no watch
            await asyncio.sleep(MOUNT_SECONDS)
        return found

    async def _live_simulated(self) -> None:
        tokens = self._tokens(None, self._pod.token)
        named = self._pod.environment[POLLER].get("OSTLER_DISPATCH_URL", "")
        url = self._ground.dispatch_url or named
        simulation = self._ground.simulation
        await self._beside_token(
            tokens,
            lambda: simulation.run(dispatch_url=url, tokens=tokens, events=self, condition=self._condition),
        )

    def _tokens(self, file: Path | None, asked: TokenVolume | None) -> TokenRenewer:
        return TokenRenewer(cluster=self._ground.cluster, pod=self._pod, file=file, asked=asked, refused=self._refused)

    async def _beside_token(self, tokens: TokenRenewer, run: Run) -> None:
        life = await tokens.first()
        self._report.start()
        renewing = asyncio.create_task(tokens.renew_forever(life))
        try:
            await run()
        finally:
            renewing.cancel()

    async def _end(self) -> None:
        """Stop a Pod that is being deleted."""
        running = self._life is not None and not self._life.done()
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait({self._life})
        self._journal_deletion()
        if running and self._report.phase in {"Pending", "Running"}:
            # A Pod that never started gets a terminal phase as well, as the kubelet reports it since Kubernetes 1.27.
            await self._report.finish(code_of_the_rest=TERMINATED)
        await self._report.sent()  # the Pod might have been about to end by itself
        await self._ground.cluster.remove(self._pod.key)

    def _journal_deletion(self) -> None:
        if not self._deleted:
            self._deleted = True
            self._write("pod_deleted", phase=self._report.phase, job=self._job)

    def _refused(self, text: str) -> None:
        self._write("call_refused", text=text)

    def _write(self, event: str, **facts: object) -> None:
        self._ground.journal.write(event, pod=self._pod.key.name, uid=self._pod.key.uid, **facts)


def _complain(task: asyncio.Task[None]) -> None:
    """Print the error of a Pod's task at once.

    Such an error is a bug of the lab. Without the output, the Pod would seem to hang.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error, file=sys.stderr)
