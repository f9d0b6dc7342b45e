"""A world for the commands: the fake API server, folders in place of containers, and real shells in them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from container_hooks.commands import execute
from container_hooks.inputs import parse
from container_hooks.local_files import LocalFiles
from container_hooks.ports import HookSettings, Ledger, World
from k8s_adapters.calls.client import Json
from k8s_adapters.names import CLAIM_ANNOTATION
from ostler.errors import ExecLost, Gone
from tests.unit.container_hooks.api import FakeApi

POD, UID, NAMESPACE = "pool-0000000a", "runner-uid", "runners"
JOB_POD = f"{POD}-workflow"
_INSIDE = re.compile(r"(?<![\w.])/(__w|__e|github)(?=/|\b)")


@dataclass
class FoldersAsContainers:
    """Satisfies `Exec`: each Pod is a folder, and commands are real processes whose paths are moved into it.

    `faults` is consulted before each process. A fault is `lost before`, `lost after`, `file missing`, or an exit code.
    """

    root: Path
    api: FakeApi
    ran: list[tuple[str, str]] = field(default_factory=list)
    faults: dict[int, str | int | BaseException] = field(default_factory=dict)
    cut_after: dict[int, int] = field(default_factory=dict)
    """Number of input bytes after which the connection of a process is lost."""
    moved: set[Path] = field(default_factory=set)

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
        del writes_often
        self.api.tick()
        number = len(self.ran)
        self.ran.append((pod, command[0] if command[-2] != "-e" else "step"))
        if ("pods", pod) not in self.api.objects:
            raise Gone(f"exec in Pod {pod}: status 404")
        assert container == "job" or container.startswith(("job-", "ostler-files"))
        fault = self.faults.get(number)
        if isinstance(fault, BaseException):
            raise fault
        if fault == "lost before":
            raise ExecLost("the server closed the connection")
        if isinstance(fault, int):
            return fault
        hears = (lambda data: stdout(data.partition(b"\n")[2])) if fault == "file missing" else stdout
        code = self._run(pod, list(command), stdin, hears, stderr, self.cut_after.get(number))
        if fault == "lost after":
            raise ExecLost("the server closed the connection")
        return code

    def folder(self, pod: str) -> Path:
        """Return the folder that stands for the file system of a Pod."""
        return self.root / pod

    def _inside(self, pod: str, text: str) -> str:
        return _INSIDE.sub(lambda match: f"{self.folder(pod)}/{match[1]}", text)

    def _move_script(self, pod: str, script: Path) -> None:
        """Replace the paths of a script once: it might already run when its start is repeated."""
        if script not in self.moved and script.exists():
            self.moved.add(script)
            script.write_text(self._inside(pod, script.read_text()))

    def _run(
        self,
        pod: str,
        command: list[str],
        stdin: Iterable[bytes] | None,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
        cut_after: int | None,
    ) -> int:
        for name in ("__w", "__e", "github"):  # links in a shared workspace
            (self.folder(pod) / name).mkdir(parents=True, exist_ok=True)
        moved = [self._inside(pod, word) for word in command]
        if command[-2] == "-e":
            self._move_script(pod, Path(moved[-1]))
        pipe = subprocess.PIPE
        with subprocess.Popen(moved, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
            lost: list[BaseException] = []
            feeder = threading.Thread(target=_feed, args=(process, stdin or (), cut_after, lost))
            assert process.stderr is not None
            drain = threading.Thread(target=lambda pipe=process.stderr: stderr(pipe.read()))
            feeder.start()
            drain.start()
            try:
                assert process.stdout is not None
                while chunk := os.read(process.stdout.fileno(), 65536):
                    stdout(chunk)
                process.wait()
            except BaseException:
                _kill(process)
                raise
            finally:
                feeder.join()
                drain.join()
        if lost:
            raise lost[0]
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _feed(
    process: subprocess.Popen[bytes], stdin: Iterable[bytes], cut_after: int | None, lost: list[BaseException]
) -> None:
    """Write the input of a process, or kill the process after `cut_after` bytes."""
    assert process.stdin is not None
    sent = 0
    try:
        for chunk in stdin:
            process.stdin.write(chunk)
            process.stdin.flush()
            sent += len(chunk)
            if process.poll() is not None:  # an input that waits for the output never ends by itself
                break
            if cut_after is not None and sent >= cut_after:
                raise ExecLost("the server closed the connection")  # noqa: TRY301
        process.stdin.close()
    except BrokenPipeError:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    except BaseException as error:  # noqa: BLE001  raised in the thread of the caller
        lost.append(error)
        _kill(process)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass
class Lines:
    """Satisfies `Log`."""

    lines: list[str] = field(default_factory=list)
    output: bytearray = field(default_factory=bytearray)

    def line(self, text: str) -> None:
        assert "\n" not in text
        self.lines.append(text)

    def raw(self, data: bytes) -> None:
        self.output += data

    @property
    def errors(self) -> list[str]:
        return [line.removeprefix("::error::") for line in self.lines if line.startswith("::error::")]


@dataclass
class Stage:
    """One runner Pod with its work folder."""

    folder: Path
    api: FakeApi = field(default_factory=FakeApi)
    log: Lines = field(default_factory=Lines)
    settings: dict[str, Any] = field(default_factory=dict)
    alone: bool = True

    def __post_init__(self) -> None:
        self.exec = FoldersAsContainers(self.folder / "pods", self.api)
        self.work = self.folder / "runner" / "_work"
        self.externals = self.folder / "runner" / "externals"
        self.ledger = Ledger()
        for name in ("_runner_file_commands", "_github_workflow", "_github_home", "_runner_hook_responses"):
            (self.work / "_temp" / name).mkdir(parents=True)
        (self.work / "shop" / "shop").mkdir(parents=True)
        (self.work / "shop" / "shop" / "README.md").write_text("read me\n")
        (self.work / "_temp" / "_github_workflow" / "event.json").write_text("{}")
        (self.externals / "node20" / "bin").mkdir(parents=True)
        (self.externals / "node20" / "bin" / "node").write_bytes(bytes(3000))

    def world(self) -> World:
        settings = HookSettings(work=str(self.work), externals=str(self.externals))
        return World(
            client=self.api.client(),
            namespace=NAMESPACE,
            pod=POD,
            uid=UID,
            pool="pool",
            files=LocalFiles(),
            exec=self.exec,
            log=self.log,
            timing=self.api.clock.timing(),
            settings=replace(settings, **self.settings),
            ledger=self.ledger,
            alone=lambda: self.alone,
        )

    def share(self) -> None:
        """Give the runner Pod the volumes of a shared workspace."""
        self.settings["shared"] = True
        self.api.put("pods", POD, owner=None)
        self.api.objects["pods", POD]["metadata"] |= {"uid": UID, "annotations": {CLAIM_ANNOTATION: "7.1"}}
        self.api.objects["pods", POD]["spec"] = {
            "containers": [{"name": "runner", "image": "i"}],
            "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["postgres"]}],
            "volumes": [{"name": f"ostler-{name}"} for name in ("work", "externals", "github", "hooks-token")],
        }
        folder = self.exec.folder(POD)
        folder.mkdir(parents=True)
        (folder / "__w").symlink_to(self.work)
        (folder / "__e").symlink_to(self.externals)

    def restart(self) -> None:
        """Replace a killed process by a new one, which has forgotten everything."""
        self.api.dead, self.api.kill_at = False, None
        self.ledger = Ledger()

    def run(self, command: str, args: Json | None = None, *, state: Json | None = None) -> int:
        given = {
            "command": command,
            "responseFile": str(self.response_file),
            "state": state or {},
            **({} if args is None else {"args": args}),
        }
        return execute(parse(json.dumps(given).encode()), world=self.world())

    @property
    def response_file(self) -> Path:
        return self.work / "_temp" / "_runner_hook_responses" / "response.json"

    def inside(self, path: str, *, pod: str = JOB_POD) -> Path:
        """Return the place of a path of a container."""
        return self.exec.folder(pod) / path.lstrip("/")


def container(**fields: Any) -> Json:
    return {"image": "node:22", "workingDirectory": "/__w/shop/shop", **fields}


def step(run: Path, **fields: Any) -> Json:
    """Return the arguments of a script step with a file of the runner."""
    return {
        "entryPoint": "sh",
        "entryPointArgs": ["-e", f"/__w/_temp/{run.name}"],
        "environmentVariables": {},
        "prependPath": [],
        "workingDirectory": "/__w/shop/shop",
        **fields,
    }
