"""Protocols that the commands of container jobs use: files of the runner, processes in Pods, and the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from k8s_adapters.calls.client import KubeClient
from ostler.clock import Timing


class Files(Protocol):
    """Files of the container `runner`, for code without access to the file system of this container."""

    def send(self, folder: str) -> Iterator[bytes]:
        """Yield the chunks of a tar archive of the content of `folder`."""
        ...

    def receive(self, folder: str, chunks: Iterable[bytes]) -> None:
        """Unpack a tar archive into `folder`. Missing folders are created."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write one file with mode 0644. An existing file is replaced."""
        ...


class Exec(Protocol):
    """Processes in the containers of hook Pods."""

    def run(
        self,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        stdin: Iterable[bytes] | None = None,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
        writes_often: bool = False,
    ) -> int:
        """Run a command in a container, and return its exit code.

        If `writes_often` is True, the command writes every few seconds, and a connection without output counts as lost.

        A command that might have begun is never repeated. Raises `ExecLost` if the connection ends without an exit
        code, and the other errors of `ExecClient.run`.
        """
        ...


class Log(Protocol):
    """The log of the job, as the runner shows it."""

    def line(self, text: str) -> None:
        """Write one line."""
        ...

    def raw(self, data: bytes) -> None:
        """Write the output of a process, unchanged."""
        ...


@dataclass(frozen=True, kw_only=True)
class HookSettings:
    """Settings of the commands. Times are in seconds.

    `vcpu_millicores` and `memory_mib` are the resources of one hook Pod. Its containers share them. `disk_mib` is the
    limit of the disk space of a hook Pod, or None without a limit. If `shared` is True, the containers of a job run in
    the runner Pod, and there are no hook Pods. `work` and `externals` are folders of the container
    `runner`. `workspace` is the workspace of the job, relative to `work`, if the environment names it. `overlay` is the
    file of `ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE`.

    `start_within` limits the time until a hook Pod is ready. `pull_errors_for` is the time during which errors of an
    image pull are tolerated. The kubelet repeats the pull in this time. `terminating_within` limits the wait for the
    end of an older Pod with the same name. `progress_every` is the interval of the lines about a copy in the log.
    """

    vcpu_millicores: int = 1000
    memory_mib: int = 2048
    disk_mib: int | None = None
    shared: bool = False
    work: str = "/home/runner/_work"
    externals: str = "/home/runner/externals"
    workspace: str | None = None
    overlay: Path | None = None
    start_within: float = 600.0
    pull_errors_for: float = 45.0
    terminating_within: float = 60.0
    progress_every: float = 5.0


@dataclass
class Ledger:
    """Names of the objects that this process might have created.

    `taken` has the names of Secrets that this process found in use and did not create.

    `complete` is True if no earlier process can have created an object for the same runner Pod. `cleanup_job` then
    reads only the names in `pods` and `secrets`. Otherwise it reads every possible name.
    """

    complete: bool = False
    used: bool = False
    pods: set[str] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)

    def begin(self, *, first_of_job: bool) -> None:
        """Record the start of a command.

        The ledger is complete if the first command of this process is also the first command of the job. A process that
        replaces a killed process starts with a later command.
        """
        self.complete = self.complete or (first_of_job and not self.used)
        self.used = True

    def forget(self, kind: str, name: str) -> None:
        """Remove the name of a deleted object. `kind` is `pods` or `secrets`."""
        if kind == "pods":
            self.pods.discard(name)
        else:
            self.secrets.discard(name)
            self.taken.discard(name)


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything that the commands use: the API server, the files of the runner, processes in Pods, and the log.

    `pod` and `uid` identify the runner Pod, and `pool` is the name of its pool.
    All commands of a runner Pod share one `ledger`. `alone` returns whether no other command of this runner Pod has
    begun. If so, no other command begins before the end of this one.
    """

    client: KubeClient
    namespace: str
    pod: str
    uid: str
    pool: str
    files: Files
    exec: Exec
    log: Log
    timing: Timing = field(default_factory=Timing)
    settings: HookSettings = field(default_factory=HookSettings)
    ledger: Ledger = field(default_factory=Ledger)
    alone: Callable[[], bool] = lambda: True
