"""A sidecar that is killed at each call of each command, while two commands run, leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from container_hooks.ports import Ledger
from k8s_adapters.calls.client import Json, KubeClient, make_client
from lab.control_plane import ClusterAccess
from tests.contract.k8s.hook_pods import HookPods, hook_pods
from tests.contract.k8s.test_hook_commands import QUICK, Runner
from tests.waiting import eventually

CONTAINER = {"image": "node:22", "workingDirectory": "/__w/shop/shop"}
MOST_CALLS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the kubelet, which contains the volumes of its Pods."""
    return tmp_path_factory.mktemp("kubelet")


@pytest.fixture(scope="module")
def pods(control_plane: ClusterAccess, folder: Path) -> Iterator[HookPods]:
    """A namespace with a kubelet behind the API server."""
    with hook_pods(control_plane, folder) as made:
        yield made


def script_step(runner: Runner, name: str) -> tuple[str, Json]:
    """Return a script step that records each of its starts, and writes an output."""
    (runner.work / "_temp" / "_runner_file_commands" / f"set_output_{name}").write_text("")
    script = runner.work / "_temp" / f"{name}.sh"
    script.write_text(f"echo {name} >> /__w/starts; echo {name}=1 > $GITHUB_OUTPUT; sleep 0.3")
    return "run_script_step", {
        "entryPoint": "sh",
        "entryPointArgs": ["-e", f"/__w/_temp/{name}.sh"],
        "environmentVariables": {"GITHUB_OUTPUT": f"/__w/_temp/_runner_file_commands/set_output_{name}"},
        "workingDirectory": "/__w/shop/shop",
    }


def container_step() -> tuple[str, Json]:
    """Return a step in a container of its own."""
    return "run_container_step", {"image": "alpine:3", "entryPoint": "sleep", "entryPointArgs": ["0.3"]}


def serve(pods: HookPods, runner: Runner, commands: list[tuple[str, Json]], *, kill_at: int) -> None:
    """Execute commands at the same time, as a sidecar does. Kill this process at a call of the API server."""
    calls, lock = itertools.count(1), threading.Lock()

    def dies_at_the_call(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            with lock:
                if next(calls) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return method(*words, **more)

        return call

    for name in ("request", "dial"):
        setattr(KubeClient, name, dies_at_the_call(getattr(KubeClient, name)))
    # The connections of the parent must not be used by two processes.
    runner.client = make_client(kubeconfig=str(pods.access.kubeconfig), policy=QUICK)
    with ThreadPoolExecutor(len(commands)) as threads:
        codes = list(threads.map(lambda command: runner.run(*command), commands))
    os._exit(max(codes))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("second", ["script", pytest.param("container", marks=pytest.mark.slow)])
def test_killed_sidecar_with_two_commands_leaves_nothing_and_repeats_nothing(
    pods: HookPods, folder: Path, tmp_path: Path, second: str
) -> None:
    for kill_at in range(1, MOST_CALLS):
        runner = Runner(pods, tmp_path)
        assert runner.run("prepare_job", {"container": CONTAINER}) == 0, runner.log.shown
        commands = [script_step(runner, "a"), script_step(runner, "b") if second == "script" else container_step()]
        sidecar = get_context("fork").Process(target=serve, args=(pods, runner, commands), kwargs={"kill_at": kill_at})
        sidecar.start()
        sidecar.join(120)

        begun = [line for each in folder.rglob("starts") for line in each.read_text().split()]
        runner.ledger = Ledger()
        assert runner.run("cleanup_job") == 0, runner.log.shown
        assert runner.left() == [], kill_at
        assert len(begun) == len(set(begun)), kill_at
        eventually(lambda: not list(folder.rglob("starts")), "the volumes of the job are left")
        if sidecar.exitcode != -signal.SIGKILL:
            break

    assert sidecar.exitcode == 0
    assert begun in (["a"], ["a", "b"], ["b", "a"])
    assert 8 < kill_at < MOST_CALLS - 1  # each of the two commands makes at least four calls
