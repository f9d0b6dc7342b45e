"""Container jobs on a real node: a container, services, a Docker action and files, through a faulty API server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s_adapters.client import object_path
from lab.bootstrap import LabPool
from lab.faults import Fault, FaultProxy
from lab.manifests import Kinds
from lab.node.job_images import ACTION, JOB, action_image, job_image
from lab.node.namespace import NODE_ADDRESS, is_isolated
from lab.node.product_images import PRODUCT, product_image
from lab.node.store_images import POSTGRES, REDIS, postgres_image, redis_image
from lab.system import NODE, Options, System
from ostler.errors import UpstreamError
from tests.fleet import Fleet
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]

LABELS = ("self-hosted", "linux", "containers")
POOL = "containers"
POSTGRES_USER, REDIS_USER = 101, 100
"""Users of Debian's packages. A Pod of the level `restricted` cannot start as root and change its user."""

DATA = "/tmp/pgdata"  # noqa: S108 - a path in a container
CONNECTS = """\
import socket, time
for port in (5432, 6379):
    with socket.create_connection(("localhost", port), timeout=20) as service:
        print("connected to", port)
"""
HAS_A_SIDECAR = "object.spec.?initContainers.orValue([]).exists(c, c.name == 'hooks')"
THROUGH_THE_PROXY = """\
Object{spec: Object.spec{
  initContainers: [Object.spec.initContainers{
    name: "hooks",
    env: [Object.spec.initContainers.env{name: "OSTLER_KUBECONFIG", value: "/var/run/faulty/kubeconfig"}],
    volumeMounts: [Object.spec.initContainers.volumeMounts{
      name: "faulty", mountPath: "/var/run/faulty", readOnly: true
    }]
  }],
  volumes: [Object.spec.volumes{name: "faulty", configMap: Object.spec.volumes.configMap{name: "faulty"}}]
}}
"""
JOB_WITH_SERVICES: Mapping[str, Any] = {
    "container": {"image": JOB, "env": {"GREETING": "hello"}},
    "services": {
        "postgres": {
            "image": POSTGRES,
            "env": {"POSTGRES_PASSWORD": "postgres", "PGDATA": DATA},
            "ports": ["5432:5432"],
            "options": f"--user {POSTGRES_USER} --cpus 0.2 --health-cmd pg_isready --health-interval 1s "
            "--health-retries 120",
        },
        "redis": {"image": REDIS, "ports": ["6379:6379"], "options": f"--user {REDIS_USER}"},
    },
    "steps": [
        {"run": f"python3 -c '{CONNECTS}'"},
        {"run": 'test "$GREETING" = hello; test -f checked-out.txt; echo made > made.txt'},
        {"run": "echo COLOR=blue >> $GITHUB_ENV"},
        {"image": ACTION, "entrypoint": "/entry.sh", "args": ["made.txt", "shouted.txt"]},
        {"run": 'test "$COLOR" = blue; test "$(cat shouted.txt)" = MADE'},
    ],
}


class ContainerFleet(Fleet):
    """A system whose pool runs container jobs, with a faulty way from the sidecars to the API server."""

    def __init__(self, system: System, proxy: FaultProxy) -> None:
        super().__init__(system)
        self.proxy = proxy

    def has_ended(self, command: str, pod: str) -> bool:
        """Return whether a command of the hooks has ended in a runner Pod."""
        return any((each["command"], each["pod"]) == (command, pod) for each in self.events("hook_ended"))

    def hook_objects(self) -> list[str]:
        """Return the names of all hook Pods, and of all Secrets of hooks, in the pool's namespace."""
        found: list[str] = []
        for kind in ("pods", "secrets"):
            path = f"/api/v1/namespaces/{self.system.namespace}/{kind}?labelSelector=ostler.dev%2Fhook-of"
            found += [f"{kind}/{each['metadata']['name']}" for each in self.kube.request("GET", path)["items"]]
        return found


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerFleet]:
    """Yield a system with one pool for container jobs on one real node."""
    if not is_isolated():
        pytest.fail("these tests need namespaces of their own: run `make test-node`", pytrace=False)
    images = [product_image(say=print), postgres_image(say=print), redis_image(say=print)]
    images += [job_image(say=print), action_image(say=print)]
    options = Options(
        pools=(),
        beats=1,
        images=images,
        services=True,
        chart_values={
            "runners": {"containers": {"enabled": True}},
            "networkPolicies": {"apiServer": {"addresses": [f"{NODE_ADDRESS}/32"]}},
        },
        settings={"OSTLER_HOOKS_IMAGE": PRODUCT},
    )
    with contextlib.ExitStack() as stack:
        system = stack.enter_context(System(tmp_path_factory.mktemp("system"), options, say=print, cluster=NODE))
        proxy = stack.enter_context(
            FaultProxy(system.access.url, host=NODE_ADDRESS, ca_file=system.access.ca_file, seed=options.seed)
        )
        fleet = ContainerFleet(system, proxy)
        stack.enter_context(contextlib.closing(fleet.kube))
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system.namespace, "labels": level}}
        Kinds(fleet.kube).apply(namespace)
        _lead_through_the_proxy(fleet)
        fleet.add_pool(_pool())
        fleet.wait_until_whole(POOL)
        yield fleet


def _pool() -> LabPool:
    spec = {"containers": {"mode": "kubernetes", "vcpu": "420m", "memoryMib": 512}}
    return LabPool(POOL, LABELS, 2, cpu="50m", memory="128Mi", spec=spec)


def _lead_through_the_proxy(fleet: ContainerFleet) -> None:
    """Change each new sidecar so that it reaches the API server through the fault proxy.

    A pool cannot do this: an overlay must not change where a sidecar sends its token.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": fleet.proxy.url}}],
        "users": [{"name": "pod", "user": {"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "pod"}}],
        "current-context": "lab",
    }
    kinds = Kinds(fleet.kube)
    namespace = fleet.system.namespace
    kinds.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "faulty", "namespace": namespace},
            "data": {"kubeconfig": yaml.safe_dump(config)},
        }
    )
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "faulty"},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ],
            },
            "matchConditions": [
                {
                    "name": "sidecar",
                    "expression": "object.spec.?initContainers.orValue([]).exists(c, c.name == 'hooks')",
                }
            ],
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": THROUGH_THE_PROXY}}],
        },
    }
    kinds.apply(policy)
    kinds.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": "faulty"},
            "spec": {"policyName": "faulty"},
        }
    )
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "probe-"},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1001, "seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [_probe_container("hooks")],
            "containers": [_probe_container("c")],
        },
    }

    def is_led() -> bool:
        path = object_path("pods", namespace=namespace)
        with contextlib.suppress(UpstreamError):  # the new namespace has no ServiceAccount yet
            made = fleet.kube.request("POST", path, query={"dryRun": "All"}, body=probe)
            return any(each["name"] == "faulty" for each in made["spec"].get("volumes") or ())
        return False

    # Each API server applies a new policy within a second or so. A dry run shows when.
    eventually(is_led, "the policy has no effect", within=60)


def _probe_container(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": "probe:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


@contextlib.contextmanager
def faults(fleet: ContainerFleet, *planned: Fault) -> Iterator[None]:
    """Play faults on the calls of the sidecars."""
    for each in planned:
        fleet.proxy.add(each)
    try:
        yield
    finally:
        fleet.proxy.clear()


def complete(fleet: ContainerFleet, job: int) -> Mapping[str, Any]:
    """Wait for the end of a job and return it. If it did not succeed, fail with the last errors of its hooks."""
    found = fleet.wait_for(job, "completed", within=900)
    said = [each for each in fleet.events("hook_failed") if each.get("job") in {job, None}]
    assert (found["conclusion"], found["executions"]) == ("success", 1), json.dumps(said[-3:], indent=1)
    return found


def test_job_with_services_and_an_action_succeeds_and_leaves_nothing(containers: ContainerFleet) -> None:
    [job] = containers.send(labels=LABELS, containers=JOB_WITH_SERVICES)

    complete(containers, job)

    eventually(lambda: not containers.hook_objects(), "hook objects are left", within=60)


def test_failed_step_ends_the_job_with_its_code(containers: ContainerFleet) -> None:
    [job] = containers.send(labels=LABELS, containers={**JOB_WITH_SERVICES, "steps": [{"run": "exit 3"}]})

    assert containers.wait_for(job, "completed", within=300)["conclusion"] == "failure"
    eventually(lambda: not containers.hook_objects(), "hook objects are left", within=60)


def test_image_that_cannot_be_pulled_fails_the_job_and_leaves_nothing(containers: ContainerFleet) -> None:
    [job] = containers.send(
        labels=LABELS, containers={"container": {"image": "127.0.0.1:1/none:1"}, "steps": [{"run": "true"}]}
    )

    assert containers.wait_for(job, "completed", within=300)["conclusion"] == "failure"
    eventually(lambda: not containers.hook_objects(), "hook objects are left", within=60)


def test_job_goes_on_while_the_api_server_is_away_for_ten_seconds(containers: ContainerFleet) -> None:
    steps = [{"run": "i=0; while [ $i -lt 20 ]; do echo $i; sleep 1; i=$((i + 1)); done"}, {"run": "true"}]
    [job] = containers.send(labels=LABELS, containers={"container": {"image": JOB}, "steps": steps})
    pod = containers.pod_of(job)
    eventually(containers.hook_objects, "the job has no Pod", within=120)
    refused = Fault(kind="status", status=503, until_seconds=10)
    containers.proxy.add(refused)

    eventually(lambda: containers.has_ended("prepare_job", pod), "the job's Pod is not ready", within=120)
    containers.proxy.add(refused)
    containers.proxy.disconnect()
    complete(containers, job)

    containers.proxy.clear()
    assert containers.has_ended("run_script_step", pod)


def sleeping(fleet: ContainerFleet, seconds: int) -> tuple[int, str]:
    """Queue a job with a step of a length that no other job has. Return the job and its Pod when the step runs."""
    step = {"run": f"sleep {seconds}"}
    [job] = fleet.send(labels=LABELS, containers={"container": {"image": JOB}, "steps": [step]})
    pod = fleet.pod_of(job)
    words = f"sleep\0{seconds}\0".encode()
    eventually(lambda: words in _command_lines(), "the step does not run", within=120)
    return job, pod


def _command_lines() -> set[bytes]:
    """Return the command lines of all processes, also of those in containers."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.add((process / "cmdline").read_bytes())
    return found


def test_killed_sidecar_fails_the_job_with_a_line_and_leaves_nothing(containers: ContainerFleet) -> None:
    job, pod = sleeping(containers, 601)
    [sidecar] = containers.pods(POOL)[pod]["status"]["initContainerStatuses"]
    _, _, task = sidecar["containerID"].partition("containerd://")

    assert containers.system.real_nodes[0].ctr("tasks", "kill", "-s", "SIGKILL", task).returncode == 0

    assert containers.wait_for(job, "completed", within=120)["conclusion"] == "failure"
    eventually(lambda: containers.has_ended("cleanup_job", pod), "the job was not cleaned up", within=30)
    said = eventually(lambda: [each["what"] for each in containers.events("hook_failed") if each["pod"] == pod])
    assert "the sidecar of container jobs stopped" in said[0]
    eventually(lambda: not containers.hook_objects(), "hook objects are left", within=60)


def test_deleted_runner_pod_takes_its_hook_pods_with_it(containers: ContainerFleet) -> None:
    _, pod = sleeping(containers, 602)
    assert containers.hook_objects()

    path = object_path("pods", namespace=containers.system.namespace, name=pod)
    containers.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})

    eventually(lambda: not containers.hook_objects(), "hook objects are left", within=120)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_jobs_succeed_while_the_api_server_fails_often(containers: ContainerFleet) -> None:
    """5 % of the calls are reset, before or after they apply, and 3 % are answered with 429 or 503."""
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    planned = (
        Fault(kind="reset_before", probability=0.025),
        Fault(kind="reset_after", probability=0.025),
        Fault(kind="status", status=429, headers={"Retry-After": "1"}, probability=0.01),
        Fault(kind="status", status=429, headers={"Retry-After": later}, probability=0.01),
        Fault(kind="status", status=503, probability=0.01),
    )
    with faults(containers, *planned):
        jobs = containers.send(50, labels=LABELS, containers=JOB_WITH_SERVICES)
        # GitHub gives a runner any of the queued jobs, so the first job can be the last one to run.
        eventually(lambda: all(containers.job(job)["status"] == "completed" for job in jobs), within=3000)
        for job in jobs:
            complete(containers, job)

    print("calls of the sidecars:", containers.proxy.counts)  # noqa: T201 - the figures of the run
    assert min(containers.proxy.counts[kind] for kind in ("reset_before", "reset_after", "status")) > 0
    eventually(lambda: not containers.hook_objects(), "hook objects are left", within=120)
