"""Container jobs on a real node: a container, services, a Docker action and files, through a faulty API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from k8s_adapters.calls.client import object_path
from lab.faults import FaultProxy
from lab.manifests import Kinds
from lab.node.job_images import ACTION, JOB, action_image, job_image
from lab.node.namespace import NODE_ADDRESS, is_isolated
from lab.node.product_images import PRODUCT, product_image
from lab.node.store_images import POSTGRES, REDIS, postgres_image, redis_image
from lab.system import NODE, Options, System
from ostler.errors import UpstreamError
from tests import container_jobs
from tests.container_jobs import POOL, SHARED_POOL, ContainerFleet
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]

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
        # In a shared workspace, the names of the services are host names too.
        {"run": "getent hosts postgres redis"},
        {"image": ACTION, "entrypoint": "/entry.sh", "args": ["made.txt", "shouted.txt"]},
        {"run": 'test "$COLOR" = blue; test "$(cat shouted.txt)" = MADE'},
    ],
}


class NodeFleet(ContainerFleet):
    """A system whose sidecars are containers of a real node."""

    def kill_sidecar(self, pod: str) -> None:
        [sidecar] = self.pods(POOL.name)[pod]["status"]["initContainerStatuses"]
        _, _, task = sidecar["containerID"].partition("containerd://")
        assert self.system.real_nodes[0].ctr("tasks", "kill", "-s", "SIGKILL", task).returncode == 0


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
        fleet = NodeFleet(system, proxy, whole_job=JOB_WITH_SERVICES, within=900)
        stack.enter_context(contextlib.closing(fleet.kube))
        _lead_through_the_proxy(fleet)
        fleet.add_pool(POOL)
        fleet.wait_until_whole(POOL.name)
        yield fleet


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


def test_job_with_services_and_an_action_succeeds_and_leaves_nothing(containers: ContainerFleet) -> None:
    container_jobs.whole_job_succeeds_and_leaves_nothing(containers)


def test_action_with_the_entry_point_of_its_image_succeeds(containers: ContainerFleet) -> None:
    container_jobs.action_with_the_entry_point_of_its_image_returns_files_and_outputs(containers, image=ACTION)


def test_background_steps_run_at_once_and_one_is_cancelled(containers: ContainerFleet) -> None:
    container_jobs.background_steps_run_at_once_and_one_is_cancelled(containers)


def test_job_in_a_shared_workspace_sees_the_files_of_its_runner(containers: ContainerFleet) -> None:
    containers.add_pool(SHARED_POOL)
    containers.wait_until_whole(SHARED_POOL.name)

    container_jobs.files_of_a_job_are_files_of_the_runner(containers)


def test_failed_step_ends_the_job_and_leaves_nothing(containers: ContainerFleet) -> None:
    container_jobs.failed_step_ends_the_job_and_leaves_nothing(containers)


def test_image_that_cannot_be_pulled_fails_the_job_and_leaves_nothing(containers: ContainerFleet) -> None:
    [job] = containers.queue(container={"image": "127.0.0.1:1/none:1"}, services={}, steps=[{"run": "true"}])

    assert containers.conclusion(job, within=300) == "failure"
    containers.wait_until_nothing_is_left()


def test_job_goes_on_while_the_api_server_is_away(containers: ContainerFleet) -> None:
    container_jobs.job_goes_on_while_the_api_server_is_away(containers, seconds=10)


def test_killed_sidecar_fails_the_job_with_a_line_and_leaves_nothing(containers: ContainerFleet) -> None:
    container_jobs.killed_sidecar_fails_the_job_with_a_line_and_leaves_nothing(containers)


def test_deleted_runner_pod_takes_its_hook_pods_with_it(containers: ContainerFleet) -> None:
    container_jobs.deleted_runner_pod_takes_its_hook_pods_with_it(containers)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_jobs_succeed_while_the_api_server_fails_often(containers: ContainerFleet) -> None:
    container_jobs.jobs_succeed_while_the_api_server_fails_often(containers, count=50)
    print("calls of the sidecars:", containers.proxy.counts)  # noqa: T201 - the figures of the run
