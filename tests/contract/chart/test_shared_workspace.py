"""Shared workspaces on a real API server: the containers that a runner may add, and where it may execute commands."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from container_hooks.containers import plan_job, plan_step
from container_hooks.ephemeral import service_container, service_name, waiting_container
from container_hooks.inputs import Container, ContainerStep, PrepareJob, Service
from container_hooks.local_files import LocalFiles
from container_hooks.permissions import missing_rights
from container_hooks.ports import HookSettings, World
from k8s_adapters.calls.client import JSON, JSON_PATCH, Json, KubeClient, object_path
from k8s_adapters.calls.execs import ExecClient
from k8s_adapters.calls.retry import answer_of
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners.resources import Created
from lab.control_plane import ClusterAccess
from ostler.errors import UpstreamError
from rules.pools.hook_names import secret
from rules.upstream.retry import ONCE
from tests.contract.chart.cast import allowed
from tests.contract.chart.test_hook_manifests import Silent
from tests.contract.chart.test_hook_rights import Said, Stage, client_of, create, make_runner, pool_spec, role, stage
from tests.waiting import eventually

__all__ = ["stage"]

pytestmark = pytest.mark.timeout(300)

Change = Callable[[Json], object]


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A runner Pod with a shared workspace, and a client with the token of its sidecar."""

    pod: Created
    namespace: str
    client: KubeClient

    def add(self, *containers: Json, pod: str | None = None, uid: str | None = None) -> Said:
        """Add containers to a Pod in a dry run, and return the answer."""
        path = object_path("pods", namespace=self.namespace, name=pod or self.pod.name)
        operations: list[Json] = [{"op": "add", "path": "/spec/ephemeralContainers", "value": list(containers)}]
        if uid is not None:
            operations.insert(0, {"op": "test", "path": "/metadata/uid", "value": uid})
        return ask(self.client, "PATCH", f"{path}/ephemeralcontainers", operations)

    def execute(self, container: str | None, *, pod: str | None = None, kind: str = "exec") -> Said:
        """Ask for a command in a container, without the upgrade that would start it."""
        path = object_path("pods", namespace=self.namespace, name=pod or self.pod.name)
        query: dict[str, str | int] = {"command": "true", "stdout": "true"}
        if container is not None:
            query["container"] = container
        return ask(self.client, "POST", f"{path}/{kind}", None, query=query)


def ask(client: KubeClient, method: str, path: str, body: Any, *, query: dict[str, str | int] | None = None) -> Said:
    """Return the status and the message of an answer."""
    query = {"dryRun": "All"} if query is None else query
    content = JSON_PATCH if method == "PATCH" else JSON
    try:
        client.request(method, path, body=body, query=query, policy=ONCE, content_type=content)
    except UpstreamError as error:
        if (found := answer_of(error)) is None:
            raise
        return found.status, found.message
    return 200, ""


@pytest.fixture(scope="module")
def shared(
    stage: Stage, admin: KubeClient, control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    namespace = stage.cast.runners
    pool = create_pool(
        admin,
        namespace=namespace,
        name="shared",
        spec=pool_spec("shared", vcpu="1500m", memoryMib=128, workspace="shared"),
    )
    made = make_runner(stage.worker, pool)
    folder: Path = tmp_path_factory.mktemp("shared")
    client = client_of(made, admin=admin, access=control_plane, namespace=namespace, path=folder / "config")
    tenant = Shared(pod=made, namespace=namespace, client=client)
    eventually(lambda: allowed(client, "patch", "pods/ephemeralcontainers", namespace=namespace, name=made.name))
    wrong = job() | {"name": "other"}
    eventually(lambda: "must add containers with the names" in tenant.add(wrong)[1], within=60)
    eventually(lambda: "in the containers of its job only" in tenant.execute("poller")[1], within=60)
    yield tenant
    client.close()


def job() -> Json:
    """Return the container of a job, as the commands make it."""
    [plan] = plan_job(PrepareJob(Container(image="node:22", environment_variables={"A": "b"})))
    return waiting_container(plan, env_secret=secret("shared-0000000a", 0))


def database() -> Json:
    """Return the container of a service."""
    service = Service(context_name="db", image="postgres:17", create_options="--user 70")
    plan = plan_job(PrepareJob(Container(image="node:22"), [service]))[1]
    return service_container(plan, env_secret=None) | {"name": service_name(plan.name)}


def test_policy_accepts_the_containers_of_a_job(shared: Shared) -> None:
    step = waiting_container(plan_step(ContainerStep(image="alpine", entry_point="sh"))) | {"name": "job-step-12"}

    assert shared.add(job(), database(), step, uid=shared.pod.uid) == (200, "")


def test_sidecar_has_every_permission_that_the_commands_need(shared: Shared) -> None:
    world = World(
        client=shared.client,
        namespace=shared.namespace,
        pod=shared.pod.name,
        uid=shared.pod.uid,
        pool="shared",
        files=LocalFiles(),
        exec=ExecClient(shared.client, shared.namespace),
        log=Silent(),
        settings=HookSettings(shared=True),
    )
    assert missing_rights(world) == []


def test_patch_for_another_uid_changes_nothing(shared: Shared, stage: Stage) -> None:
    assert shared.add(job(), uid=stage.one.pod.uid)[0] == 422


def test_runner_adds_no_container_to_another_pod(shared: Shared, stage: Stage) -> None:
    for pod in (stage.one.pod.name, f"{stage.one.pod.name}-workflow"):
        status, why = shared.add(job(), pod=pod)
        assert status == 403, why


def with_(**fields: Any) -> Change:
    return lambda container: container.update(fields)


def mounts(*extra: Json) -> Change:
    return lambda container: container["volumeMounts"].extend(extra)


def security(**fields: Any) -> Change:
    return lambda container: container["securityContext"].update(fields)


def from_secret(name: str) -> Json:
    return {"name": "V", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}


REFUSED: dict[str, tuple[Change, str]] = {
    "another name": (with_(name="debugger"), "with the names job"),
    "a name that only begins like a job": (with_(name="jobs"), "with the names job"),
    "the token of the sidecar": (mounts({"name": "ostler-hooks-token", "mountPath": "/t"}), "must mount only"),
    "the socket of the sidecar": (mounts({"name": "ostler-hooks", "mountPath": "/s"}), "must mount only"),
    "the scripts": (mounts({"name": "ostler-scripts", "mountPath": "/x"}), "must mount only"),
    "the token for polls": (mounts({"name": "token", "mountPath": "/p"}), "must mount only"),
    "the JIT": (mounts({"name": "jit", "mountPath": "/j"}), "must mount only"),
    "a folder at another path": (with_(volumeMounts=[{"name": "ostler-work", "mountPath": "/etc"}]), "must mount only"),
    "the processes of the sidecar": (with_(targetContainerName="hooks"), "must not share the processes"),
    "a variable from a foreign Secret": (with_(env=[from_secret("one-0000000a-secret-0")]), "must read variables"),
    "a foreign Secret": (with_(envFrom=[{"secretRef": {"name": "registry"}}]), "must read variables"),
    "a ConfigMap": (with_(envFrom=[{"configMapRef": {"name": "any"}}]), "must read variables"),
    "privileges": (security(privileged=True, allowPrivilegeEscalation=True), ""),
    "a gain of privileges": (security(allowPrivilegeEscalation=True), ""),
    "root": (security(runAsUser=0, runAsNonRoot=False), ""),
    "capabilities": (security(capabilities={"add": ["SYS_PTRACE"]}), ""),
}


@pytest.mark.parametrize("what", REFUSED)
def test_runner_is_refused_a_container_with(shared: Shared, what: str) -> None:
    change, why = REFUSED[what]
    container = copy.deepcopy(job())
    change(container)

    status, said = shared.add(container)

    assert status == 403, said
    assert why in said


def test_service_with_the_workspace_is_refused(shared: Shared) -> None:
    status, said = shared.add(database() | {"volumeMounts": job()["volumeMounts"]})
    assert (status, "must mount no volume" in said) == (403, True)


@pytest.mark.parametrize("container", ["poller", "runner", "hooks", "externals", None])
def test_runner_executes_nothing_in_the_containers_of_ostler(shared: Shared, container: str | None) -> None:
    status, said = shared.execute(container)
    assert status == 403, said
    assert "in the containers of its job only" in said


def test_runner_executes_commands_in_the_containers_of_its_job(shared: Shared) -> None:
    for name in ("job", "job-service-postgres", "job-step-3"):
        status, said = shared.execute(name)
        assert status == 400, said  # the Pod has no node, or no such container


@pytest.mark.parametrize("kind", ["attach", "portforward"])
def test_runner_attaches_to_nothing(shared: Shared, kind: str) -> None:
    assert shared.execute("job", kind=kind)[0] == 403


def test_runner_with_hook_pods_adds_no_containers(stage: Stage) -> None:
    for pod in (stage.one.pod.name, f"{stage.one.pod.name}-workflow"):
        path = object_path("pods", namespace=stage.cast.runners, name=pod)
        operations = [{"op": "add", "path": "/spec/ephemeralContainers", "value": [job()]}]
        assert ask(stage.one.client, "PATCH", f"{path}/ephemeralcontainers", operations)[0] == 403


def test_runner_with_a_shared_workspace_creates_no_pods(shared: Shared, stage: Stage) -> None:
    assert create(shared.client, stage.one.hook_pod())[0] == 403


@pytest.mark.parametrize("change", ["name", "verb", "more"])
def test_worker_is_refused_another_role_of_a_shared_workspace(stage: Stage, change: str) -> None:
    body = role(stage.cast.runners, "shared-0000000b", size=None)
    assert create(stage.worker, body) == (200, "")
    rules = body["rules"]
    if change == "name":
        rules[1]["resourceNames"] = ["one-0000000a"]
    elif change == "verb":
        rules[1]["verbs"].append("update")
    else:
        rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]})

    assert create(stage.worker, body)[0] == 403
