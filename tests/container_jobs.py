"""Bodies of the tests of container jobs: `tests/e2e` runs them without a node, `tests/node` on a real node."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from k8s_adapters.calls.client import object_path
from lab.bootstrap import LabPool
from lab.faults import Fault, FaultProxy
from lab.manifests import Kinds
from lab.system import System
from tests.fleet import Fleet
from tests.waiting import eventually

LABELS = ("self-hosted", "linux", "containers")
POOL = LabPool(
    "containers",
    LABELS,
    2,
    cpu="50m",
    memory="128Mi",
    spec={"containers": {"mode": "kubernetes", "vcpu": "420m", "memoryMib": 512}},
)


SHARED_LABELS = ("self-hosted", "linux", "shared")
SHARED_POOL = LabPool(
    "shared",
    SHARED_LABELS,
    1,
    cpu="50m",
    memory="128Mi",
    spec={"containers": {"mode": "kubernetes", "vcpu": "420m", "memoryMib": 512, "workspace": "shared"}},
)
LOCAL_ACTION = """\
mkdir -p .github/actions/greet
printf 'runs:\\n  run: echo greeted > greeted.txt\\n' > .github/actions/greet/action.yml
echo locked > deps.lock
"""
"""Script that does what a checkout does: it writes a local action, and a file for a cache key."""


class ContainerFleet(Fleet, ABC):
    """A system whose pool runs container jobs, with a faulty connection from the sidecars to the API server.

    `whole_job` is a job with services and a Docker action. A job that succeeds ends within `within` seconds.
    """

    def __init__(self, system: System, proxy: FaultProxy, *, whole_job: Mapping[str, Any], within: float) -> None:
        super().__init__(system)
        self.proxy = proxy
        self.whole_job = whole_job
        self.within = within
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system.namespace, "labels": level}}
        Kinds(self.kube).apply(namespace)

    @abstractmethod
    def kill_sidecar(self, pod: str) -> None:
        """Send SIGKILL to the sidecar of a runner Pod."""

    def queue(self, count: int = 1, **changes: Any) -> list[int]:
        """Queue container jobs and return their ids. `changes` replaces fields of the whole job."""
        return self.send(count, labels=LABELS, containers={**self.whole_job, **changes})

    def conclusion(self, job: int, *, within: float) -> str:
        """Wait for the end of a job, and return its conclusion."""
        return str(self.wait_for(job, "completed", within=within)["conclusion"])

    def succeed(self, job: int) -> None:
        """Wait for the end of a job. If it did not succeed in one execution, fail with the last errors of its hooks."""
        found = self.wait_for(job, "completed", within=self.within)
        said = [each for each in self.events("hook_failed") if each.get("job") in {job, None}]
        assert (found["conclusion"], found["executions"]) == ("success", 1), json.dumps(said[-3:], indent=1)

    def has_ended(self, command: str, pod: str) -> bool:
        """Return whether a command of the hooks has ended in a runner Pod."""
        return any((each["command"], each["pod"]) == (command, pod) for each in self.events("hook_ended"))

    def wait_for_failure(self, text: str, pod: str) -> None:
        """Wait until a hook in a runner Pod has failed. The first message must contain `text`."""
        found = eventually(
            lambda: [each["what"] for each in self.events("hook_failed") if each["pod"] == pod],
            f"no hook of {pod} failed",
            within=30,
        )
        assert text in found[0]

    def hook_objects(self) -> list[str]:
        """Return the names of all hook Pods, and of all Secrets of hooks, in the pool's namespace."""
        found: list[str] = []
        for kind in ("pods", "secrets"):
            path = f"/api/v1/namespaces/{self.system.namespace}/{kind}?labelSelector=ostler.dev%2Fhook-of"
            found += [f"{kind}/{each['metadata']['name']}" for each in self.kube.request("GET", path)["items"]]
        return found

    def wait_until_nothing_is_left(self, *, within: float = 60) -> None:
        """Wait until no hook Pod and no Secret of hooks is left."""
        eventually(lambda: not self.hook_objects(), "hook objects are left", within=within)

    def start_sleeping(self) -> tuple[int, str]:
        """Queue a job whose step does not end. Return the job and its runner Pod when the step runs."""
        seconds = random.SystemRandom().randrange(10_000, 99_999)  # no other process has this argument
        [job] = self.queue(services={}, steps=[{"run": f"sleep {seconds}"}])
        pod = self.pod_of(job)
        words = f"sleep\0{seconds}\0".encode()
        eventually(lambda: words in _command_lines(), "the step does not run", within=120)
        return job, pod

    @contextlib.contextmanager
    def faulty(self, *faults: Fault) -> Iterator[None]:
        """Inject faults into the calls of the sidecars."""
        for each in faults:
            self.proxy.add(each)
        try:
            yield
        finally:
            self.proxy.clear()


def _command_lines() -> set[bytes]:
    """Return the command lines of all processes, also of those in containers."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process ended in between
            found.add((process / "cmdline").read_bytes())
    return found


def whole_job_succeeds_and_leaves_nothing(fleet: ContainerFleet) -> None:
    [job] = fleet.queue()

    fleet.succeed(job)

    fleet.wait_until_nothing_is_left()


def action_with_the_entry_point_of_its_image_returns_files_and_outputs(fleet: ContainerFleet, *, image: str) -> None:
    """The program of the image writes its first argument in capitals to its second one, which it returns as output."""
    steps = [
        *(each for each in fleet.whole_job["steps"] if "entry.sh" in each.get("run", "")),
        {"run": "echo made > made.txt"},
        {"image": image, "args": ["made.txt", "shouted.txt"]},
        {"run": 'test "$(cat shouted.txt)" = MADE; test "$OUTPUT_shouted" = shouted.txt'},
    ]
    failing = {"image": image, "args": ["absent.txt", "shouted.txt"]}
    [job] = fleet.queue(services={}, steps=steps)
    fleet.succeed(job)

    [job] = fleet.queue(services={}, steps=[steps[0], failing])
    assert fleet.conclusion(job, within=fleet.within) == "failure"
    fleet.wait_for_failure("run_container_step ended with", fleet.pod_of(job))
    fleet.wait_until_nothing_is_left()


def files_of_a_job_are_files_of_the_runner(fleet: ContainerFleet) -> None:
    """The whole job in a shared workspace, with a local action and `hashFiles()` after a checkout in the container."""
    digest = hashlib.sha256(b"locked\n").hexdigest()
    steps = [
        {"run": LOCAL_ACTION},
        {"uses": ".github/actions/greet"},
        {"hashFiles": "deps.lock"},
        {"run": f'test "$(cat greeted.txt)" = greeted; test "$HASH" = {digest}'},
        *fleet.whole_job["steps"],
    ]
    [job] = fleet.send(1, labels=SHARED_LABELS, containers={**fleet.whole_job, "steps": steps})

    fleet.succeed(job)

    pod = fleet.pod_of(job)
    assert f"pods/{pod}-workflow" not in fleet.hook_objects()
    fleet.wait_until_nothing_is_left()


def failed_step_ends_the_job_and_leaves_nothing(fleet: ContainerFleet) -> None:
    [job] = fleet.queue(steps=[{"run": "exit 3"}])

    assert fleet.conclusion(job, within=300) == "failure"
    fleet.wait_for_failure("run_script_step ended with 3", fleet.pod_of(job))
    fleet.wait_until_nothing_is_left()


BACKGROUND_STEPS: Sequence[Mapping[str, Any]] = (
    {"id": "server", "background": True, "run": "echo > up; exec sleep 600"},
    {"id": "first", "background": True, "run": "until [ -e second ]; do sleep 0.2; done; echo A=1 >> $GITHUB_ENV"},
    {"id": "second", "background": True, "run": "echo > second; echo B=2 >> $GITHUB_ENV"},
    {"run": "until [ -e up ] && [ -e second ]; do sleep 0.2; done"},
    {"cancel": "server"},
)
"""Three steps in the background. Two wait for each other or for nothing, and one ends only if it is cancelled."""


def background_steps_run_at_once_and_one_is_cancelled(fleet: ContainerFleet) -> None:
    [job] = fleet.queue(services={}, steps=BACKGROUND_STEPS)

    fleet.succeed(job)

    ends = [
        (each["command"], each["status"]) for each in fleet.events("hook_ended") if each["pod"] == fleet.pod_of(job)
    ]
    assert sorted(status for command, status in ends if command == "run_script_step") == [0, 0, 0, 143]
    fleet.wait_until_nothing_is_left()


def job_goes_on_while_the_api_server_is_away(fleet: ContainerFleet, *, seconds: int) -> None:
    """The API server is unreachable twice: before the job's Pod is ready, and while a step runs."""
    steps = [{"run": f"i=0; while [ $i -lt {2 * seconds} ]; do echo $i; sleep 1; i=$((i + 1)); done"}, {"run": "true"}]
    [job] = fleet.queue(services={}, steps=steps)
    pod = fleet.pod_of(job)
    away = Fault(kind="status", status=503, until_seconds=seconds)
    with fleet.faulty(away):
        eventually(lambda: fleet.has_ended("prepare_job", pod), "the job's Pod is not ready", within=120)
    with fleet.faulty(away):
        fleet.proxy.disconnect()
        fleet.succeed(job)


def killed_sidecar_fails_the_job_with_a_line_and_leaves_nothing(fleet: ContainerFleet) -> None:
    job, pod = fleet.start_sleeping()

    fleet.kill_sidecar(pod)

    assert fleet.conclusion(job, within=120) == "failure"
    fleet.wait_for_failure("the sidecar of container jobs did not finish this command", pod)
    eventually(lambda: fleet.has_ended("cleanup_job", pod), "the job was not cleaned up", within=30)
    fleet.wait_until_nothing_is_left()


def deleted_runner_pod_takes_its_hook_pods_with_it(fleet: ContainerFleet) -> None:
    _, pod = fleet.start_sleeping()
    assert fleet.hook_objects()
    eventually(lambda: _shows(fleet, pod, f"{pod}-workflow (Running"), "its hook Pod is not shown", within=30)

    path = object_path("pods", namespace=fleet.system.namespace, name=pod)
    fleet.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})

    fleet.wait_until_nothing_is_left(within=120)
    eventually(lambda: _shows(fleet, pod, f"{pod}-workflow (gone"), "the end of its hook Pod is not shown", within=30)


def _shows(fleet: ContainerFleet, pod: str, words: str) -> bool:
    """Return whether the explanation of a runner Pod contains these words."""
    shown = json.loads(fleet.system.command("pod", pod, "--json").stdout)
    return any(words in (each["evidence"] or "") for each in shown["why"]["checks"])


def jobs_succeed_while_the_api_server_fails_often(fleet: ContainerFleet, *, count: int) -> None:
    """5 % of the calls are reset, before or after they apply, and 3 % are answered with 429 or 503."""
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    often = (
        Fault(kind="reset_before", probability=0.025),
        Fault(kind="reset_after", probability=0.025),
        Fault(kind="status", status=429, headers={"Retry-After": "1"}, probability=0.01),
        Fault(kind="status", status=429, headers={"Retry-After": later}, probability=0.01),
        Fault(kind="status", status=503, probability=0.01),
    )
    with fleet.faulty(*often):
        jobs = fleet.queue(count)
        # GitHub gives a runner any of the queued jobs, so the first job can be the last one to run.
        eventually(lambda: all(fleet.job(job)["status"] == "completed" for job in jobs), within=60 * (count + 5))
        for job in jobs:
            fleet.succeed(job)

    assert min(fleet.proxy.counts[kind] for kind in ("reset_before", "reset_after", "status")) > 0
    fleet.wait_until_nothing_is_left(within=120)
