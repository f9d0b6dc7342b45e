"""Whole container jobs: the commands, exec over WebSocket and the lab's kubelet, on both API servers."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from container_hooks.commands import execute
from container_hooks.inputs import parse
from container_hooks.local_files import LocalFiles
from container_hooks.ports import HookSettings, Ledger, World
from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, make_client, object_path
from k8s_adapters.calls.exec_stream import Heartbeat
from k8s_adapters.calls.execs import ExecClient
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from ostler.errors import Gone
from rules.pools.hook_names import pod_names, secret_names, workflow_pod
from rules.upstream.retry import RetryPolicy
from tests.contract.k8s.hook_pods import HookPods, hook_pods
from tests.waiting import eventually

QUICK = RetryPolicy(base=0.02, deadline=60.0)
SERVICES = [
    {
        "contextName": "db",
        "image": "registry.example/postgres:17",
        "createOptions": "--health-cmd true --health-interval 1s",
        "environmentVariables": {"POSTGRES_PASSWORD": "words"},
        "portMappings": ["5432:5432"],
    },
    {"contextName": "cache", "image": "redis:8"},
]
LOGIN = {"username": "u", "password": "p", "serverUrl": "https://registry.example"}


@pytest.fixture(scope="module")
def pods(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookPods]:
    """A namespace with a kubelet behind the API server."""
    with hook_pods(control_plane, tmp_path_factory.mktemp("kubelet")) as made:
        yield made


@dataclass
class Lines:
    """The log of a job."""

    shown: bytearray = field(default_factory=bytearray)

    def line(self, text: str) -> None:
        self.shown += f"{text}\n".encode()

    def raw(self, data: bytes) -> None:
        self.shown += data


class Runner:
    """A runner Pod with a work folder. It gives commands as actions/runner does."""

    def __init__(
        self, pods: HookPods, folder: Path, client: KubeClient | None = None, *, heartbeat: Heartbeat | None = None
    ) -> None:
        self.pods, self.client = pods, client or pods.client
        self._heartbeat = heartbeat
        self.name = f"pool-{secrets.token_hex(4)}"
        # The garbage collector of the real control plane deletes objects whose owner does not exist.
        body: Json = {
            "metadata": {"name": self.name},
            "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"no": "node"}},
        }
        made = pods.client.request("POST", object_path("pods", namespace=pods.namespace), body=body)
        self.uid = made["metadata"]["uid"]
        self.work = folder / self.name / "_work"
        for path in ("_temp/_runner_file_commands", "_temp/_github_workflow", "_temp/_github_home", "shop/shop"):
            (self.work / path).mkdir(parents=True)
        (folder / self.name / "externals" / "node20").mkdir(parents=True)
        (folder / self.name / "externals" / "node20" / "node").write_bytes(bytes(100_000))
        (self.work / "shop" / "shop" / "README.md").write_text("read me\n")
        self.log, self.ledger, self.state = Lines(), Ledger(), dict[str, Any]()

    def run(self, command: str, args: Json | None = None) -> int:
        response = self.work / "_temp" / f"{secrets.token_hex(4)}.json"
        given = {"command": command, "responseFile": str(response), "state": self.state, "args": args}
        world = World(
            client=self.client,
            namespace=self.pods.namespace,
            pod=self.name,
            uid=self.uid,
            pool="pool",
            files=LocalFiles(),
            exec=ExecClient(self.client, self.pods.namespace, heartbeat=self._heartbeat),
            log=self.log,
            timing=self.client.timing,
            settings=HookSettings(
                work=str(self.work), externals=str(self.work.parent / "externals"), start_within=60, memory_mib=256
            ),
            ledger=self.ledger,
        )
        code = execute(parse(json.dumps(given).encode()), world=world)
        if response.exists():
            self.state = json.loads(response.read_text())["state"]
        return code

    def job(self, number: int = 0) -> None:
        """Run a whole job with services, a script step and a container step."""
        container = {"image": "node:22", "workingDirectory": "/__w/shop/shop", "registry": LOGIN}
        assert self.run("prepare_job", {"container": container, "services": SERVICES}) == 0, self.log.shown
        commands = self.work / "_temp" / "_runner_file_commands"
        (commands / "set_output").write_text("")
        script = self.work / "_temp" / "step.sh"
        script.write_text(
            f"cat README.md; echo a={number} > /__w/_temp/_runner_file_commands/set_output; echo s > made"
        )
        step = {
            "entryPoint": "sh",
            "entryPointArgs": ["-e", "/__w/_temp/step.sh"],
            "workingDirectory": "/__w/shop/shop",
        }
        assert self.run("run_script_step", step) == 0, self.log.shown
        assert (commands / "set_output").read_text() == f"a={number}\n"
        action = '"cat made; echo b=$B > /github/file_commands/set_output; echo c > made; exit 7"'
        arguments = {
            "image": "alpine:3",
            "entryPoint": "sh",
            "entryPointArgs": ["-c", action],
            "environmentVariables": {"B": "2"},
        }
        assert self.run("run_container_step", arguments) == 7, self.log.shown
        assert (commands / "set_output").read_text() == "b=2\n"
        script.write_text("cat made")
        self.log.shown.clear()
        assert self.run("run_script_step", step) == 0, self.log.shown
        assert self.log.shown == b"c\n"

    def left(self) -> list[str]:
        """Return the names of hook objects that exist and are not terminating."""
        return [
            name
            for kind, names in (("pods", pod_names(self.name)), ("secrets", secret_names(self.name)))
            for name in names
            if self._lives(kind, name)
        ]

    def _lives(self, kind: str, name: str) -> bool:
        path = object_path(kind, namespace=self.pods.namespace, name=name)
        try:
            found = self.pods.client.request("GET", path)
        except Gone:
            return False
        return "deletionTimestamp" not in found["metadata"]


def test_whole_job_runs_and_leaves_nothing(pods: HookPods, tmp_path: Path) -> None:
    runner = Runner(pods, tmp_path)
    runner.job()
    assert runner.run("cleanup_job") == 0
    assert runner.left() == []


def test_cleanup_of_a_new_process_leaves_nothing(pods: HookPods, tmp_path: Path) -> None:
    runner = Runner(pods, tmp_path)
    container = {"image": "node:22", "workingDirectory": "/__w/shop/shop", "registry": LOGIN}
    assert runner.run("prepare_job", {"container": container, "services": SERVICES}) == 0
    assert len(runner.left()) == 3
    runner.ledger = Ledger()
    assert runner.run("cleanup_job") == 0
    assert runner.left() == []


def test_service_that_ends_is_one_line_and_leaves_nothing(pods: HookPods, tmp_path: Path) -> None:
    runner = Runner(pods, tmp_path)
    service = {"contextName": "db", "image": "postgres", "entryPoint": "sh", "entryPointArgs": ["-c", '"exit 3"']}
    container = {"image": "node:22", "workingDirectory": "/__w/shop/shop"}

    assert runner.run("prepare_job", {"container": container, "services": [service]}) == 1

    assert b"container postgres ended with exit code 3" in runner.log.shown
    assert runner.left() == []


def test_step_ends_with_a_line_when_the_node_of_its_pod_dies(control_plane: ClusterAccess, tmp_path: Path) -> None:
    """The kubelet is frozen, so nothing is answered or closed. The Pod goes through the states of a lost node.

    The lab's API server answers the pings of an exec itself, so only the real one passes them on to the kubelet.
    """
    seconds = f"6{secrets.randbelow(10**6):06}"
    (tmp_path / "kubelet").mkdir()
    with hook_pods(control_plane, tmp_path / "kubelet") as lost:
        runner = Runner(lost, tmp_path, heartbeat=Heartbeat(period=0.5, deadline=5))
        container = {"image": "node:22", "workingDirectory": "/__w/shop/shop"}
        assert runner.run("prepare_job", {"container": container}) == 0, runner.log.shown
        (runner.work / "_temp" / "step.sh").write_text(f"echo begun; exec sleep {seconds}")
        step = {"entryPoint": "sh", "entryPointArgs": ["-e", "/__w/_temp/step.sh"]}
        with ThreadPoolExecutor() as threads:
            code = threads.submit(runner.run, "run_script_step", step)
            eventually(lambda: b"begun" in runner.log.shown, "the step does not run", within=60)

            lost.kubelet.send_signal(signal.SIGSTOP)
            lose(lost, workflow_pod(runner.name))

            assert code.result(60) == 137, runner.log.shown
        assert b"the step has no exit code: Pod " in runner.log.shown
        assert runner.log.shown.count(b"::error::") == 1
        assert runner.run("cleanup_job") == 0
        assert runner.left() == []

        lost.kubelet.send_signal(signal.SIGCONT)
        eventually(lambda: not sleepers(seconds), "the step runs on when its node is back", within=60)


def lose(pods: HookPods, name: str) -> None:
    """Do what the node controller and the garbage collector of Pods do with a Pod whose node does not exist."""
    path = object_path("pods", namespace=pods.namespace, name=name)
    ready = {"type": "Ready", "status": "False", "reason": "NodeLost"}
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "no node"}
    for status in ({"conditions": [ready]}, {"conditions": [ready, disrupted], "phase": "Failed"}):
        pods.client.request("PATCH", f"{path}/status", body={"status": status}, content_type=MERGE_PATCH)
    pods.client.request("DELETE", path, body={"gracePeriodSeconds": 0})


def sleepers(seconds: str) -> list[Path]:
    """Return the processes that sleep for this time."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if each.read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(each)
    return found


@pytest.fixture
def proxy(pods: HookPods) -> Iterator[FaultProxy]:
    with FaultProxy(pods.access.url, ca_file=pods.access.ca_file) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", ["reset_before", "reset_after", "status-503", "status-429"])
def test_whole_job_survives_faults_of_the_api_server(
    pods: HookPods, tmp_path: Path, proxy: FaultProxy, fault: str
) -> None:
    kind, _, status = fault.partition("-")
    shares: list[dict[str, Any]] = [{"times": 1}, {"probability": 0.05}]
    for share in shares:
        proxy.add(Fault(kind=kind, status=int(status or 503), headers={"Retry-After": "0"}, **share))
    kubeconfig = str(proxy.kubeconfig(pods.access.kubeconfig))
    with closing(make_client(kubeconfig=kubeconfig, policy=QUICK)) as client:
        runner = Runner(pods, tmp_path, client)
        runner.job()
        assert runner.run("cleanup_job") == 0
    assert runner.left() == []
    assert proxy.counts[kind] > 0
