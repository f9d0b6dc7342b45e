"""Whole container jobs: the commands, exec over WebSocket and the lab's kubelet, on both API servers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from container_hooks.commands import execute
from container_hooks.inputs import parse
from container_hooks.local_files import LocalFiles
from container_hooks.ports import HookSettings, Ledger, World
from k8s_adapters.client import Json, KubeClient, make_client, object_path
from k8s_adapters.execs import ExecClient
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from ostler.errors import Gone
from rules.pools.hook_names import pod_names, secret_names
from rules.upstream.retry import RetryPolicy
from tests.contract.k8s.hook_pods import HookPods, hook_pods

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


@pytest.fixture(scope="module", params=["control_plane", "embedded_cluster"])
def pods(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookPods]:
    """A namespace with a kubelet behind one of the two API servers in turn."""
    access: ClusterAccess = request.getfixturevalue(request.param)
    with hook_pods(access, tmp_path_factory.mktemp("kubelet")) as made:
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

    def __init__(self, pods: HookPods, folder: Path, client: KubeClient | None = None) -> None:
        self.pods, self.client = pods, client or pods.client
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
            exec=ExecClient(self.client, self.pods.namespace),
            log=self.log,
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
