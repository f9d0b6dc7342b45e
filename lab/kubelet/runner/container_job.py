"""Container jobs of the lab's runner: the four hook commands, in the order and with the input of actions/runner.

`ACTIONS_RUNNER_CONTAINER_HOOKS` names the hook program. The program gets one JSON object on its input, writes its
answer to the `responseFile` of the input, and prints the log of the job. This module uses only the standard library,
like `runner.py`.
"""

import hashlib
import json
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_SHOWN = 4000  # characters of a failed command's output in the event
_FILE_COMMANDS = ("GITHUB_ENV", "GITHUB_OUTPUT")


class HookFailed(Exception):
    """A hook command that ended with a status other than 0, or without a response file."""


class ContainerJob:
    """One job whose steps run in containers.

    `definition` has `container` and `services` (image, env, options, ports, credentials), and `steps`. A step has
    either `run`, a script for the job's container, or `image`, `entrypoint` and `args` of a container of its own. Later
    steps have its outputs in variables `OUTPUT_NAME`. With `background` and an `id`, it runs beside the later steps. A
    step with only `cancel: ID` ends it. At the end of the job, the remaining ones are awaited. Two kinds of steps read
    files of the runner, as GitHub's runner does: `uses`, the folder of an action in the workspace, and `hashFiles`, a
    file whose digest the variable `HASH` gets. It is empty if the file does not exist.

    `say` writes one event. `lost` is set when GitHub no longer knows the job.
    """

    def __init__(self, definition: Json, *, say: Any, lost: threading.Event) -> None:
        self._definition = definition
        self._say = say
        self._lost = lost
        self._work = Path(os.environ.get("LAB_RUNNER_WORK", "/home/runner/_work"))
        self._temp = self._work / "_temp"
        self._state: Json = {}
        self._variables: dict[str, str] = {}
        self._background: dict[str, Background] = {}

    def run(self) -> str:
        """Execute the job and return its conclusion: `success`, `failure` or `lost`."""
        try:
            self._make_folders()
            with self._cleaned_up():
                self._prepare()
                for step in self._definition.get("steps", ()):
                    self._begin(step)
                for each in self._background.values():
                    each.wait()
        except HookFailed as error:
            self._say("hook_failed", what=str(error)[-_SHOWN:])
            return "lost" if self._lost.is_set() else "failure"
        return "success"

    @contextmanager
    def _cleaned_up(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._hook("cleanup_job", {})

    def _make_folders(self) -> None:
        for folder in ("_github_home", "_github_workflow", "_runner_file_commands", "_runner_hook_responses"):
            (self._temp / folder).mkdir(parents=True, exist_ok=True)
        for folder in ("_actions", "_tool", "shop/shop"):
            (self._work / folder).mkdir(parents=True, exist_ok=True)
        (self._temp / "_github_workflow" / "event.json").write_text("{}")
        (self._work / "shop" / "shop" / "checked-out.txt").write_text("checked out\n")

    def _prepare(self) -> None:
        container = self._definition["container"]
        services = [
            {"contextName": name, **self._container(each)}
            for name, each in self._definition.get("services", {}).items()
        ]
        response = self._hook(
            "prepare_job",
            {
                "container": {**self._container(container), "workingDirectory": "/__w/shop/shop", **self._mounts()},
                "services": services,
            },
        )
        self._state = response["state"]
        if len(response["context"].get("services", ())) != len(services) or "isAlpine" not in response:
            raise HookFailed(f"the response of prepare_job lacks fields: {response}")

    def _container(self, given: Json) -> Json:
        credentials = given.get("credentials")
        return {
            "image": given["image"],
            "entryPointArgs": given.get("args", []),
            "createOptions": given.get("options", ""),
            "environmentVariables": given.get("env", {}),
            "userMountVolumes": [],
            "portMappings": given.get("ports", []),
            "registry": credentials and {**credentials, "serverUrl": given["image"].partition("/")[0]},
        }

    def _mounts(self) -> Json:
        mounts = {
            self._work: "/__w",
            self._work.parent / "externals": "/__e",
            self._temp: "/__w/_temp",
            self._temp / "_github_home": "/github/home",
            self._temp / "_github_workflow": "/github/workflow",
        }
        listed = [
            {"sourceVolumePath": str(source), "targetVolumePath": target, "readOnly": target == "/__e"}
            for source, target in mounts.items()
        ]
        return {"systemMountVolumes": listed}

    def _begin(self, step: Json) -> None:
        """Execute a step, start it in the background, or cancel one."""
        if "cancel" in step:
            self._background.pop(step["cancel"]).cancel()
        elif step.get("background"):
            self._background[step["id"]] = Background(lambda mine: self._step(step, mine))
        else:
            self._step(step)

    def _step(self, step: Json, background: "Background | None" = None) -> None:
        checkout = self._work / "shop" / "shop"
        if "uses" in step:
            action = checkout / step["uses"] / "action.yml"
            if not action.exists():
                raise HookFailed(f"Can't find 'action.yml' under '{action.parent}'. Did you forget to run a checkout?")
            step = {"run": action.read_text().partition("run: ")[2]}
        elif "hashFiles" in step:
            hashed = checkout / step["hashFiles"]
            self._variables["HASH"] = hashlib.sha256(hashed.read_bytes()).hexdigest() if hashed.exists() else ""
            return
        folder = self._temp / "_runner_file_commands"
        files = {name: folder / f"{name.lower()}_{uuid.uuid4()}" for name in _FILE_COMMANDS}
        for file in files.values():
            file.write_text("")
        inside = "/github/file_commands" if "image" in step else "/__w/_temp/_runner_file_commands"
        workspace = "/github/workspace" if "image" in step else "/__w/shop/shop"
        variables = self._variables | {name: f"{inside}/{file.name}" for name, file in files.items()}
        variables["GITHUB_WORKSPACE"] = workspace
        if "image" in step:
            arguments = {
                **self._container({**step, "env": variables | step.get("env", {})}),
                "entryPoint": step.get("entrypoint"),
                "dockerfile": None,
                "prependPath": [],
                "workingDirectory": workspace,
                **self._mounts(),
            }
            self._hook("run_container_step", arguments, background)
        else:
            script = self._temp / f"{uuid.uuid4()}.sh"
            script.write_text(step["run"])
            arguments = {
                "entryPoint": "sh",
                "entryPointArgs": ["-e", f"/__w/_temp/{script.name}"],
                "environmentVariables": variables | step.get("env", {}),
                "prependPath": step.get("prependPath", []),
                "workingDirectory": workspace,
            }
            self._hook("run_script_step", arguments, background)
        self._variables |= _assignments(files["GITHUB_ENV"].read_text())
        outputs = _assignments(files["GITHUB_OUTPUT"].read_text())
        self._variables |= {f"OUTPUT_{name}": value for name, value in outputs.items()}

    def _hook(self, command: str, arguments: Json, background: "Background | None" = None) -> Json:
        """Run one hook command and return its answer. Only `prepare_job` must write an answer."""
        file = self._temp / "_runner_hook_responses" / f"{uuid.uuid4()}.json"
        given = {"command": command, "responseFile": str(file), "state": self._state, "args": arguments}
        environment = {
            **os.environ,
            "RUNNER_WORKSPACE": str(self._work / "shop"),
            "GITHUB_WORKSPACE": str(self._work / "shop" / "shop"),
            "RUNNER_TEMP": str(self._temp),
        }
        process = subprocess.Popen(
            ["sh", os.environ["ACTIONS_RUNNER_CONTAINER_HOOKS"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        if background is not None:
            background.process = process
        ended = threading.Event()
        watcher = threading.Thread(target=_kill_when, args=(process, self._lost, ended), daemon=True)
        if command != "cleanup_job":
            watcher.start()
        try:
            output, _ = process.communicate(json.dumps(given).encode())
        finally:
            ended.set()
        self._say("hook_ended", command=command, status=process.returncode)
        if process.returncode != 0:
            raise HookFailed(f"{command} ended with {process.returncode}: {output.decode(errors='replace')}")
        if command != "prepare_job":
            return {}
        try:
            answer: Json = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise HookFailed(f"{command} wrote no response file: {error}") from error
        return answer


class Background:
    """A step that runs beside others. `execute` gets this object, and stores the process of its hook here."""

    def __init__(self, execute: Callable[["Background"], None]) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._execute = execute
        self._error: HookFailed | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._execute(self)
        except HookFailed as error:
            self._error = error

    def cancel(self) -> None:
        """End the step as GitHub's runner does, by a signal to the hook. Its result does not count."""
        if self.process is not None:
            self.process.terminate()
        self._thread.join()

    def wait(self) -> None:
        """Wait for the end of the step. Raises `HookFailed` if it failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error


def _kill_when(process: "subprocess.Popen[bytes]", lost: threading.Event, ended: threading.Event) -> None:
    """Kill the process when the job is lost."""
    while not ended.wait(0.1):
        if lost.is_set():
            process.kill()
            return


def _assignments(text: str) -> Mapping[str, str]:
    """Return the variables of lines `NAME=VALUE`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
