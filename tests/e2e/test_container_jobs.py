"""Container jobs without a node: the sidecar, the containers and their steps are processes of this machine.

The API server, its admission and the rights of each process are real, and an exec goes through the API server to the
lab's kubelet. These runs do not show images, the network of a Pod, users or resource limits: `tests/node` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.client import KubeClient, object_path
from lab.bootstrap import LabPool, put_pools_in_place
from lab.control_plane import ControlPlane, ControlPlaneUnavailable
from lab.faults import Fault, FaultProxy
from lab.manifests import Kinds
from lab.system import Options, System, read_log
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600)]

LABELS = ("self-hosted", "linux", "containers")
POOL = "containers"
IMAGE = "registry.example/job:1"
UP = "/tmp/up"  # noqa: S108 - a path in a container
SERVICE: Mapping[str, Any] = {
    "image": "registry.example/database:1",
    # The health command fails once, as while a database starts.
    "options": f"--cpus 0.1 --health-cmd 'test -f {UP} || {{ touch {UP}; exit 1; }}' --health-interval 1s",
}
ACTION = 'tr a-z A-Z < "$1" > "$2"; echo "shouted=$2" >> "$GITHUB_OUTPUT"'
JOB: Mapping[str, Any] = {
    "container": {"image": IMAGE, "env": {"GREETING": "hello"}},
    "services": {"database": SERVICE, "cache": {**SERVICE, "image": "registry.example/cache:1"}},
    "steps": [
        {"run": 'test "$GREETING" = hello; test -f checked-out.txt; echo made > made.txt'},
        {"run": "echo COLOR=blue >> $GITHUB_ENV"},
        {"run": f"cat > action.sh <<'END'\n{ACTION}\nEND\n"},
        {"image": IMAGE, "entrypoint": "sh", "args": ["-e", "action.sh", "made.txt", "shouted.txt"]},
        {"run": 'test "$COLOR" = blue; test "$(cat shouted.txt)" = MADE'},
    ],
}


class Fleet:
    """A system whose pool runs container jobs, with a faulty way from the sidecars to the API server."""

    def __init__(self, system: System, kube: KubeClient, proxy: FaultProxy) -> None:
        self.system = system
        self.kube = kube
        self.proxy = proxy

    def send(self, count: int = 1, **containers: Any) -> list[int]:
        """Queue container jobs and return their ids."""
        body = {"repository": "acme/shop", "labels": list(LABELS), "count": count, "containers": {**JOB, **containers}}
        ids: list[int] = self.system.lab("POST", "/jobs", body)["ids"]
        return ids

    def job(self, number: int) -> Mapping[str, Any]:
        """Return a job as the lab's GitHub has it."""
        return next(each for each in self.system.lab("GET", "/jobs")["jobs"] if each["id"] == number)

    def end_of(self, number: int, *, within: float = 120) -> Mapping[str, Any]:
        """Wait for the end of a job, and return the job."""
        what = f"job {number} is not over"
        eventually(lambda: self.job(number)["status"] == "completed", what, within=within)
        return self.job(number)

    def events(self, event: str) -> list[Mapping[str, Any]]:
        """Return the events of one kind from the kubelet's journal."""
        return [each for each in read_log(self.system.kubelet_log) if each["event"] == event]

    def hook_objects(self) -> list[str]:
        """Return the names of all hook Pods, and of all Secrets of hooks, in the pool's namespace."""
        found: list[str] = []
        for kind in ("pods", "secrets"):
            path = f"/api/v1/namespaces/{self.system.namespace}/{kind}?labelSelector=ostler.dev%2Fhook-of"
            found += [f"{kind}/{each['metadata']['name']}" for each in self.kube.request("GET", path)["items"]]
        return found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("j")
    with contextlib.ExitStack() as stack:
        try:
            plane = stack.enter_context(ControlPlane.start(folder / "control-plane"))
        except ControlPlaneUnavailable as missing:
            pytest.fail(str(missing), pytrace=False)
        proxy = stack.enter_context(FaultProxy(plane.access.url, ca_file=plane.access.ca_file, seed=1))
        options = Options(
            pools=(),
            beats=1,
            chart_values={
                "runners": {"containers": {"enabled": True}},
                "networkPolicies": {"apiServer": {"addresses": ["127.0.0.1/32"]}},
            },
            settings={"OSTLER_HOOKS_IMAGE": "ostler:1"},
            hooks_url=proxy.url,
            real_pods=100,
        )
        system = stack.enter_context(System(folder / "s", options, say=print, control_plane=plane))
        kube = stack.enter_context(contextlib.closing(system.kube()))
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system.namespace, "labels": level}}
        Kinds(kube).apply(namespace)
        spec = {"containers": {"mode": "kubernetes", "vcpu": "420m", "memoryMib": 512}}
        pool = LabPool(POOL, LABELS, 2, cpu="50m", memory="128Mi", spec=spec)
        put_pools_in_place(kube, namespace=system.namespace, pools=[pool])
        system.wait_for_warm_pods(2, timeout=120)
        yield Fleet(system, kube, proxy)


def succeeded(fleet: Fleet, job: int) -> None:
    """Wait for the end of a job. If it did not succeed, fail with the last errors of its hooks."""
    found = fleet.end_of(job, within=240)
    said = fleet.events("hook_failed")
    assert (found["conclusion"], found["executions"]) == ("success", 1), json.dumps(said[-3:], indent=1)


def pod_of(fleet: Fleet, job: int) -> str:
    """Return the name of the runner Pod that began a job."""
    [started] = eventually(lambda: [each for each in fleet.events("job_started") if each["job"] == job])
    return str(started["pod"])


def has_ended(fleet: Fleet, command: str, pod: str) -> bool:
    """Return whether a command of the hooks has ended in a runner Pod."""
    return any((each["command"], each["pod"]) == (command, pod) for each in fleet.events("hook_ended"))


def test_job_with_services_and_an_action_succeeds_and_leaves_nothing(fleet: Fleet) -> None:
    [job] = fleet.send()

    succeeded(fleet, job)

    eventually(lambda: not fleet.hook_objects(), "hook objects are left", within=60)


def test_failed_step_ends_the_job_and_leaves_nothing(fleet: Fleet) -> None:
    [job] = fleet.send(steps=[{"run": "exit 3"}])

    assert fleet.end_of(job)["conclusion"] == "failure"
    assert "run_script_step ended with 3" in fleet.events("hook_failed")[-1]["what"]
    eventually(lambda: not fleet.hook_objects(), "hook objects are left", within=60)


def test_job_goes_on_while_the_api_server_is_away(fleet: Fleet) -> None:
    steps = [{"run": "i=0; while [ $i -lt 6 ]; do echo $i; sleep 1; i=$((i + 1)); done"}, {"run": "true"}]
    [job] = fleet.send(services={}, steps=steps)
    pod = pod_of(fleet, job)
    eventually(lambda: has_ended(fleet, "prepare_job", pod), "the job's Pod is not ready", within=60)

    fleet.proxy.add(Fault(kind="status", status=503, until_seconds=3))
    fleet.proxy.disconnect()

    succeeded(fleet, job)
    fleet.proxy.clear()


def sleeping(fleet: Fleet) -> tuple[int, str]:
    """Queue a job with a step of a length that no other process has. Return the job and its Pod when the step runs."""
    seconds = random.SystemRandom().randrange(10_000, 99_999)
    [job] = fleet.send(services={}, steps=[{"run": f"sleep {seconds}"}])
    pod = pod_of(fleet, job)
    words = f"sleep\0{seconds}\0".encode()
    eventually(lambda: words in _command_lines(), "the step does not run", within=60)
    return job, pod


def _command_lines() -> set[bytes]:
    """Return the command lines of all processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process ended in between
            found.add((process / "cmdline").read_bytes())
    return found


def test_killed_sidecar_fails_the_job_with_a_line_and_leaves_nothing(fleet: Fleet) -> None:
    job, pod = sleeping(fleet)
    [folder] = (fleet.system.folder / "pods").glob(f"{pod}-????????")

    os.kill(int((folder / "hooks" / "pid").read_text()), signal.SIGKILL)

    assert fleet.end_of(job)["conclusion"] == "failure"
    assert "the sidecar of container jobs stopped" in fleet.events("hook_failed")[-1]["what"]
    assert has_ended(fleet, "cleanup_job", pod)
    eventually(lambda: not fleet.hook_objects(), "hook objects are left", within=60)


def test_deleted_runner_pod_takes_its_hook_pods_with_it(fleet: Fleet) -> None:
    _, pod = sleeping(fleet)
    assert fleet.hook_objects()

    path = object_path("pods", namespace=fleet.system.namespace, name=pod)
    fleet.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})

    eventually(lambda: not fleet.hook_objects(), f"left: {fleet.hook_objects()}", within=60)


def test_jobs_succeed_while_the_api_server_fails_often(fleet: Fleet) -> None:
    """5 % of the calls are reset, before or after they apply, and 3 % are answered with 429 or 503."""
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    for fault in (
        Fault(kind="reset_before", probability=0.025),
        Fault(kind="reset_after", probability=0.025),
        Fault(kind="status", status=429, headers={"Retry-After": "1"}, probability=0.01),
        Fault(kind="status", status=429, headers={"Retry-After": later}, probability=0.01),
        Fault(kind="status", status=503, probability=0.01),
    ):
        fleet.proxy.add(fault)

    for job in fleet.send(4):
        succeeded(fleet, job)

    fleet.proxy.clear()
    assert min(fleet.proxy.counts[kind] for kind in ("reset_before", "reset_after", "status")) > 0
    eventually(lambda: not fleet.hook_objects(), "hook objects are left", within=60)
