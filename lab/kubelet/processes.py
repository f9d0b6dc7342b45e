"""A runner Pod as processes: the real scripts of its containers, in a private folder.

The lab's runner takes the place of actions/runner. Each script is the main process of its "container", and only this
process gets SIGTERM. When it ends, or after the grace period, its remaining child processes are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from lab.kubelet.events import Events
from lab.processes import die_with_parent

SCRIPTS = Path(__file__).parents[2] / "poller"
RUNNER_HOME = Path(__file__).parent / "runner"
GRACE_SECONDS = 5.0
PROBE_SECONDS = 0.25
WORK = re.compile(r"poller: work: claim (\S+) runner (\S+)")


@dataclass(frozen=True, kw_only=True)
class PodFolder:
    """Folder of a Pod's volumes on this machine."""

    root: Path

    @property
    def jit(self) -> Path:
        """Return the path of the volume that both containers share."""
        return self.root / "jit"

    @property
    def token(self) -> Path:
        """Return the path of the projected token."""
        return self.root / "token"

    @property
    def message(self) -> Path:
        """Return the path of the poller's termination log."""
        return self.root / "termination-log"

    @property
    def home(self) -> Path:
        """Return the path of the runner. The user can write to it, as in an image of the runner."""
        return self.root / "home"

    @property
    def registration(self) -> Path:
        """Return the path of the volume that the containers `register` and `runner` of a persistent runner share."""
        return self.root / "registration"

    @property
    def home_of_register(self) -> Path:
        """Return the path of the runner in container `register`, which has a file system of its own."""
        return self.root / "home-register"

    @property
    def scripts(self) -> Path:
        """Return the path of the scripts in the Pod's volume. Without a volume, return the path in this repository."""
        mounted = self.root / "scripts"
        return mounted if mounted.exists() else SCRIPTS

    def make(self, *, persistent: bool = False) -> None:
        """Create the folders with access for this user only."""
        self.root.mkdir(parents=True, mode=0o700)
        self.jit.mkdir()
        if persistent:
            self.registration.mkdir()
            shutil.copytree(RUNNER_HOME, self.home_of_register, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(RUNNER_HOME, self.home, ignore=shutil.ignore_patterns("__pycache__"))
        (self.home / "externals" / "node24" / "bin").mkdir(parents=True)
        (self.home / "externals" / "node24" / "bin" / "node").touch()

    def share(self) -> None:
        """Show the folders of the runner as the volumes that the containers of a job mount in a shared workspace."""
        volumes = self.root / "volumes"
        volumes.mkdir()
        for name, folder in (("ostler-work", "_work"), ("ostler-externals", "externals")):
            (self.home / folder).mkdir(exist_ok=True)
            (volumes / name).symlink_to(self.home / folder)

    def write_scripts(self, scripts: dict[str, str]) -> None:
        """Write the files of the volume that has the scripts."""
        folder = self.root / "scripts"
        folder.mkdir()
        for name, text in scripts.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o555)

    def forget_secrets(self) -> None:
        """Delete token and JIT. The output of the containers stays, so that a run can be inspected."""
        shutil.rmtree(self.home_of_register, ignore_errors=True)
        for name in (".runner", ".credentials", ".credentials_rsaparams"):
            (self.home / name).unlink(missing_ok=True)
        registration = self.registration.iterdir() if self.registration.exists() else ()
        for path in (self.token, *self.jit.iterdir(), *registration):
            path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class Containers:
    """The containers of one Pod: `poller` and `runner`, and `register` of a Pod with a persistent runner."""

    folder: PodFolder
    poller_environment: dict[str, str]
    runner_environment: dict[str, str]
    github_url: str
    events: Events
    persistent: bool = False

    async def run(self) -> None:
        """Run the containers until they end. Cancelling it ends them as the kubelet does and abandons the job."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._poller())
                both.create_task(self._runner())
                if self.persistent:
                    both.create_task(self._register())
        finally:
            self.folder.forget_secrets()

    async def _poller(self) -> None:
        environment = {
            **base_environment(),
            **self.poller_environment,
            "OSTLER_TOKEN_FILE": str(self.folder.token),
            "OSTLER_JIT_DIR": str(self.folder.jit),
            "OSTLER_TERMINATION_LOG": str(self.folder.message),
        }
        self.events.poller_started(simulated=False)
        code = await self._container("poller", self.folder.scripts / "poll.sh", environment, self._poller_says)
        message = self.folder.message.read_text() if self.folder.message.exists() else ""
        self.events.poller_exited(code=code, message=message)

    def _poller_says(self, line: str) -> None:
        if found := WORK.fullmatch(line):
            self.events.jit_received(claim=found[1], runner_name=found[2], simulated=False)

    async def _register(self) -> None:
        environment = {
            **base_environment(),
            "OSTLER_JIT_DIR": str(self.folder.jit),
            "OSTLER_REGISTRATION_DIR": str(self.folder.registration),
            "OSTLER_RUNNER_HOME": str(self.folder.home_of_register),
            "LAB_GITHUB_URL": self.github_url,
            "LAB_PYTHON": sys.executable,
        }
        script = self.folder.scripts / "register.sh"
        code = await self._container("register", script, environment, lambda _line: None)
        self.events.register_exited(code=code)

    async def _runner(self) -> None:
        environment = {
            **base_environment(),
            **self.runner_environment,
            "OSTLER_JIT_DIR": str(self._shared),
            "OSTLER_RUNNER_HOME": str(self.folder.home),
            "ACTIONS_RUNNER_HOOK_JOB_STARTED": str(self.folder.scripts / "job-started.sh"),
            "LAB_GITHUB_URL": self.github_url,
            "LAB_PYTHON": sys.executable,
        }
        if self.persistent:
            environment["ACTIONS_RUNNER_HOOK_JOB_COMPLETED"] = str(self.folder.scripts / "job-completed.sh")
        probe = asyncio.create_task(self._probe())
        script = self.folder.scripts / ("run-registered.sh" if self.persistent else "run.sh")
        try:
            code = await self._container("runner", script, environment, self._runner_says)
        finally:
            probe.cancel()
        self.events.runner_exited(code=code)

    async def _probe(self) -> None:
        """Readiness probe of container `runner`."""
        ready = False
        while True:
            if (now := (self._shared / "job-started").exists()) != ready:
                ready = now
                self.events.runner_ready(is_ready=ready)
            await asyncio.sleep(PROBE_SECONDS)

    @property
    def _shared(self) -> Path:
        """Return the path of the volume that container `runner` shares with another container."""
        return self.folder.registration if self.persistent else self.folder.jit

    def _runner_says(self, line: str) -> None:
        if not line.startswith("{"):
            return
        said = json.loads(line)
        if said["event"] == "runner_started":
            self.events.runner_started(runner_name=said["runner_name"])
        elif said["event"] == "job_started":
            self.events.job_started(job=said["job"])
        elif said["event"] == "job_finished":
            self.events.job_finished(job=said["job"], conclusion=said["conclusion"])
        elif said["event"].startswith("hook_"):
            self.events.hook_reported(said["event"], {name: fact for name, fact in said.items() if name != "event"})

    async def _container(
        self, name: str, script: Path, environment: dict[str, str], hear: Callable[[str], None]
    ) -> int:
        """Run a script until it ends and return its exit code. After signal n, the exit code is 128 + n."""
        with (self.folder.root / f"{name}.log").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                "sh",
                str(script),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        try:
            async for line in _lines(process.stdout):
                hear(line)
            code = await process.wait()
        finally:
            await end_process(process)
        return 128 - code if code < 0 else code


def base_environment() -> dict[str, str]:
    """Return the variables that every process of a Pod has."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C"}


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[str]:
    if stream is None:
        raise AssertionError("the output is a pipe")
    async for line in stream:
        yield line.decode(errors="replace").rstrip("\n")


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM to the main process, wait for the grace period, then kill the rest of its process group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
