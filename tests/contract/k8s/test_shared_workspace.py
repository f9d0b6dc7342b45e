"""Container jobs in a shared workspace: ephemeral containers of the API server and the lab's kubelet."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from container_hooks.commands import execute
from container_hooks.inputs import parse
from container_hooks.local_files import LocalFiles
from container_hooks.ports import HookSettings, Ledger, World
from k8s_adapters.calls.client import Json, KubeClient, make_client, object_path
from k8s_adapters.calls.execs import ExecClient
from k8s_adapters.names import CLAIM_ANNOTATION
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from rules.pools.hook_names import secret_names
from tests.contract.k8s.hook_pods import HookPods, hook_pods
from tests.contract.k8s.test_hook_commands import LOGIN, QUICK, SERVICES, Lines
from tests.waiting import eventually

VOLUMES = ("ostler-work", "ostler-externals", "ostler-github")


@pytest.fixture(scope="module")
def pods(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookPods]:
    """A namespace with a kubelet behind the API server."""
    with hook_pods(control_plane, tmp_path_factory.mktemp("kubelet")) as made:
        yield made


class Runner:
    """A Pod with the volumes of a shared workspace. Its files are the files of the runner."""

    def __init__(self, pods: HookPods, client: KubeClient | None = None) -> None:
        self.pods, self.client = pods, client or pods.client
        self.name = f"pool-{secrets.token_hex(4)}"
        made = pods.client.request(
            "POST",
            object_path("pods", namespace=pods.namespace),
            body={
                "metadata": {"name": self.name, "annotations": {CLAIM_ANNOTATION: "7.1"}},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "runner", "image": "runner:1"}],
                    "volumes": [{"name": name, "emptyDir": {}} for name in VOLUMES],
                },
            },
        )
        self.uid = made["metadata"]["uid"]
        volumes = pods.folder / f"{self.name}-{self.uid[:8]}" / "volumes"
        self.work = volumes / "ostler-work"
        for path in ("_temp/_runner_file_commands", "_temp/_github_workflow", "_temp/_github_home", "shop/shop"):
            (self.work / path).mkdir(parents=True)
        (self.work / "shop" / "shop" / "README.md").write_text("read me\n")
        self.log, self.ledger, self.state = Lines(), Ledger(), dict[str, Any]()
        eventually(lambda: self.pod()["status"]["phase"] == "Running", "the Pod does not run", within=60)

    def pod(self) -> Json:
        return self.pods.pod(self.name)

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
            settings=HookSettings(work=str(self.work), start_within=60, shared=True),
            ledger=self.ledger,
        )
        code = execute(parse(json.dumps(given).encode()), world=world)
        if response.exists():
            self.state = json.loads(response.read_text())["state"]
        return code

    def step(self, text: str) -> int:
        """Run a script step in the workspace of the job."""
        script = self.work / "_temp" / "step.sh"
        script.write_text(text)
        arguments = {
            "entryPoint": "sh",
            "entryPointArgs": ["-e", "/__w/_temp/step.sh"],
            "workingDirectory": "/__w/shop/shop",
        }
        return self.run("run_script_step", arguments)

    def job(self) -> None:
        """Run a job with services, a local action, a Docker action and a failed step."""
        container = {"image": "node:22", "workingDirectory": "/__w/shop/shop", "registry": LOGIN}
        assert self.run("prepare_job", {"container": container, "services": SERVICES}) == 0, self.log.shown
        assert self.step("cat README.md; mkdir -p .github/actions/x; echo runs > .github/actions/x/action.yml") == 0
        assert (self.work / "shop/shop/.github/actions/x/action.yml").read_text() == "runs\n"
        action = '"cat README.md > copied; echo b=$B > /github/file_commands/set_output; exit 7"'
        arguments = {
            "image": "alpine:3",
            "entryPoint": "sh",
            "entryPointArgs": ["-c", action],
            "environmentVariables": {"B": "2"},
        }
        assert self.run("run_container_step", arguments) == 7, self.log.shown
        assert (self.work / "_temp/_runner_file_commands/set_output").read_text() == "b=2\n"
        assert (self.work / "shop/shop/copied").read_text() == "read me\n"
        assert self.step("exit 3") == 3, self.log.shown

    def states(self) -> dict[str, Json]:
        """Return the states of the ephemeral containers."""
        found = self.pod()["status"].get("ephemeralContainerStatuses") or ()
        return {each["name"]: each["state"] for each in found}


def test_whole_job_runs_in_the_runner_pod(pods: HookPods) -> None:
    runner = Runner(pods)
    runner.job()

    assert runner.run("cleanup_job") == 0, runner.log.shown

    assert set(runner.states()) == {"job", "job-service-postgres", "job-service-redis", "job-step-0"}
    ended = eventually(
        lambda: all("terminated" in runner.states()[name] for name in ("job", "job-step-0")), "they do not end"
    )
    assert ended
    assert runner.pod()["status"]["phase"] == "Running"


def test_cleanup_of_a_new_process_leaves_no_secret(pods: HookPods) -> None:
    runner = Runner(pods)
    container = {"image": "node:22", "workingDirectory": "/__w/shop/shop", "registry": LOGIN}
    assert runner.run("prepare_job", {"container": container, "services": SERVICES}) == 0, runner.log.shown
    runner.ledger = Ledger()

    assert runner.run("cleanup_job") == 0

    path = object_path("secrets", namespace=pods.namespace)
    left = {each["metadata"]["name"] for each in pods.client.request("GET", path)["items"]}
    assert not left & set(secret_names(runner.name))


def test_image_that_cannot_be_pulled_is_one_line(pods: HookPods) -> None:
    runner = Runner(pods)
    container = {"image": "missing:1", "workingDirectory": "/__w/shop/shop"}

    assert runner.run("prepare_job", {"container": container}) == 1

    assert b"image missing:1 of container job cannot be pulled" in runner.log.shown
    assert runner.log.shown.count(b"::error::") == 1


@pytest.mark.parametrize("fault", ["reset_before", "reset_after", "status-503", "status-429"])
def test_whole_job_survives_faults_of_the_api_server(pods: HookPods, fault: str) -> None:
    kind, _, status = fault.partition("-")
    shares: list[dict[str, Any]] = [{"times": 1}, {"probability": 0.05}]
    with FaultProxy(pods.access.url, ca_file=pods.access.ca_file) as proxy:
        for share in shares:
            proxy.add(Fault(kind=kind, status=int(status or 503), headers={"Retry-After": "0"}, **share))
        kubeconfig = str(proxy.kubeconfig(pods.access.kubeconfig))
        with closing(make_client(kubeconfig=kubeconfig, policy=QUICK)) as client:
            runner = Runner(pods, client)
            runner.job()
            assert runner.run("cleanup_job") == 0
        assert proxy.counts[kind] > 0
