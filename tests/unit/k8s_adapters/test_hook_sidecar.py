"""Pods of pools with container jobs: the sidecar, its token, its volumes, and permitted changes by the overlay."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.cluster.nodes import needs_of
from k8s_adapters.hooks.hook_sidecar import FOLDER, SCRIPT, SOCKET
from k8s_adapters.names import CONTAINERS_LABEL
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.pod_hash import pod_hash
from k8s_adapters.runners.pods import read_pod
from k8s_adapters.runners.runners import build_pod
from rules.pools.pool_spec import PoolSpec

Json = dict[str, Any]

IMAGE = "ostler:1"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
CONTAINERS = {"mode": "kubernetes", "vcpu": "1500m", "memoryMib": 3000}
TEMPLATE: Json = {
    "initContainers": [
        {
            "name": "hooks",
            "resources": {"limits": {"memory": "512Mi"}},
            "env": [{"name": "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE", "value": "/etc/ostler-hooks/template.yaml"}],
            "volumeMounts": [{"name": "template", "mountPath": "/etc/ostler-hooks"}],
        },
        {"name": "warm-up", "image": "cache:1"},
    ],
    "volumes": [{"name": "template", "configMap": {"name": "hook-template"}}, {"name": "work", "emptyDir": {}}],
}


def read(*, name: str = "small", **spec: Any) -> PoolSpec:
    metadata = {"name": name, "namespace": "runners", "uid": "u"}
    return read_pool(
        {
            "metadata": metadata,
            "spec": {
                "image": "runner:1",
                "runnerLabels": ["small"],
                "resources": {"cpu": 2, "memory": "4Gi"},
                **spec,
            },
        }
    )


def build(pool: PoolSpec) -> Json:
    assert pool.problem is None, pool.problem
    return build_pod(
        pool=pool, name="small-0", attempt="a", dispatch_url="http://web/", audience="o", hooks_image=IMAGE
    )


def with_containers(**overlay: Any) -> Json:
    more: Json = {"podTemplate": {"spec": overlay}} if overlay else {}
    return build(read(containers=CONTAINERS, **more))


def test_sidecar_knows_the_limit_of_disk_space_of_its_pool() -> None:
    limited = read(containers=CONTAINERS, resources={"cpu": 2, "memory": "4Gi", "ephemeralStorageLimit": "20Gi"})

    assert {"name": "OSTLER_HOOKS_DISK_MIB", "value": "20480"} in of(build(limited), "hooks")["env"]
    assert "OSTLER_HOOKS_DISK_MIB" not in {each["name"] for each in of(with_containers(), "hooks")["env"]}


def mounts(container: Json) -> dict[str, Json]:
    return {each["name"]: each for each in container["volumeMounts"]}


def of(pod: Json, name: str) -> Json:
    every = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    (found,) = (each for each in every if each["name"] == name)
    return dict(found)


def test_pod_without_container_jobs_has_no_sidecar_and_no_trace_of_it() -> None:
    pod = build(read())

    assert "initContainers" not in pod["spec"]
    assert "ostler-hooks" not in str(pod)
    assert CONTAINERS_LABEL not in pod["metadata"]["labels"]
    assert "ACTIONS_RUNNER_CONTAINER_HOOKS" not in str(pod)


def test_sidecar_starts_first_and_serves_before_the_runner_starts() -> None:
    hooks = of(with_containers(), "hooks")

    assert (hooks["image"], hooks["args"], hooks["restartPolicy"]) == (IMAGE, ["hook", "serve"], "Always")
    assert hooks["startupProbe"]["exec"]["command"] == ["test", "-S", SOCKET]
    assert "command" not in hooks


@pytest.mark.parametrize("overlay", [{}, TEMPLATE])
def test_token_of_the_api_server_is_in_the_sidecar_alone(overlay: Json) -> None:
    pod = with_containers(**overlay)
    assert pod["spec"]["automountServiceAccountToken"] is False
    audiences = {
        volume["name"]: [
            each["serviceAccountToken"].get("audience", "the API server")
            for each in volume["projected"]["sources"]
            if "serviceAccountToken" in each
        ]
        for volume in pod["spec"]["volumes"]
        if "projected" in volume
    }
    assert audiences == {"token": ["o"], "ostler-hooks-token": ["the API server"]}

    assert mounts(of(pod, "hooks"))["ostler-hooks-token"]["mountPath"] == TOKEN_PATH
    for each in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]):
        if each["name"] != "hooks":
            assert "ostler-hooks-token" not in mounts({"volumeMounts": [], **each})


def test_tokens_of_a_pod_are_valid_for_an_hour() -> None:
    tokens = [
        source["serviceAccountToken"]
        for volume in with_containers()["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    ]
    assert [each["expirationSeconds"] for each in tokens] == [3600, 3600]


def test_runner_can_connect_to_the_socket_but_not_replace_it() -> None:
    pod = with_containers()

    assert mounts(of(pod, "runner"))["ostler-hooks"] == {"name": "ostler-hooks", "mountPath": FOLDER, "readOnly": True}
    assert "readOnly" not in mounts(of(pod, "hooks"))["ostler-hooks"]
    assert "ostler-hooks" not in mounts(of(pod, "poller"))
    assert {"name": "ACTIONS_RUNNER_CONTAINER_HOOKS", "value": SCRIPT} in of(pod, "runner")["env"]
    users = [of(pod, name)["securityContext"].get("runAsUser") for name in ("hooks", "runner")]
    assert users == [None, None], "the user of the Pod owns the socket and connects to it"


@pytest.mark.parametrize("overlay", [{}, TEMPLATE])
def test_sidecar_meets_the_restricted_level_with_a_read_only_root(overlay: Json) -> None:
    security = of(with_containers(**overlay), "hooks")["securityContext"]

    assert security == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_sidecar_knows_its_pod_and_the_size_of_a_hook_pod() -> None:
    pod = with_containers()
    values = {each["name"]: each.get("value") for each in of(pod, "hooks")["env"]}
    sources = {each["name"]: each.get("valueFrom", {}).get("fieldRef", {}) for each in of(pod, "hooks")["env"]}

    assert values["ACTIONS_RUNNER_POD_NAME"] == "small-0"
    assert values["ACTIONS_RUNNER_KUBERNETES_NAMESPACE"] == "runners"
    assert (values["OSTLER_HOOKS_POOL"], values["OSTLER_HOOKS_SOCKET"]) == ("small", SOCKET)
    assert (values["OSTLER_HOOKS_VCPU"], values["OSTLER_HOOKS_MEMORY_MIB"]) == ("1500", "3000")
    assert sources["OSTLER_HOOKS_POD_UID"]["fieldPath"] == "metadata.uid"


def test_sidecar_and_two_hook_pods_count_in_the_needs_of_a_pod() -> None:
    before, after = needs_of(read()).size, needs_of(read(containers=CONTAINERS)).size

    assert (after.vcpu - before.vcpu, after.memory - before.memory) == (250 + 2 * 1500, 256 + 2 * 3000)


def test_pod_keeps_the_quality_of_service_guaranteed() -> None:
    for each in (*with_containers()["spec"]["containers"], *with_containers()["spec"]["initContainers"]):
        for kind in ("cpu", "memory"):
            assert each["resources"]["requests"][kind] == each["resources"]["limits"][kind]


def test_running_sidecar_does_not_keep_a_pod_from_being_over() -> None:
    pod = with_containers()
    ended = {"terminated": {"exitCode": 0}}
    pod["metadata"] |= {"uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    pod["status"] = {
        "phase": "Running",
        "containerStatuses": [{"name": "poller", "state": ended}, {"name": "runner", "state": ended}],
        "initContainerStatuses": [{"name": "hooks", "state": {"running": {}}}],
    }

    seen = read_pod(pod)

    assert seen.is_over
    assert not seen.is_outlived


# The size that an account is charged for.


def test_job_is_charged_for_the_runner_and_two_hook_pods() -> None:
    pool = read(containers=CONTAINERS)
    assert (pool.charged_millicores, pool.charged_mib) == (2000 + 2 * 1500, 4096 + 2 * 3000)


def test_hook_pod_is_as_large_as_the_runner_by_default() -> None:
    pool = read(containers={"mode": "kubernetes"})
    assert pool.containers is not None
    assert (pool.containers.vcpu_millicores, pool.containers.memory_mib) == (2000, 4096)
    assert (pool.charged_millicores, pool.charged_mib) == (3 * 2000, 3 * 4096)


def test_hook_pod_is_never_larger_than_the_size_in_the_spec() -> None:
    odd = {"cpu": "1000500u", "memory": "4000000000"}
    pool = read(resources=odd, containers={"mode": "kubernetes"})
    assert pool.containers is not None
    assert (pool.vcpu_millicores, pool.memory_mib) == (1001, 3815)
    assert (pool.containers.vcpu_millicores, pool.containers.memory_mib) == (1000, 3814)


def test_job_without_hook_pods_is_charged_for_the_runner() -> None:
    assert (read().charged_millicores, read().charged_mib) == (2000, 4096)


# The hash of the Pod.


def digest(pool: PoolSpec, image: str | None = IMAGE) -> str:
    return pod_hash(pool, dispatch_url="http://web/", audience="o", hooks_image=image)


def test_pods_roll_when_container_jobs_their_size_or_their_image_change() -> None:
    bigger = {**CONTAINERS, "memoryMib": 4000}
    pools = [read(), read(containers=CONTAINERS), read(containers=bigger)]

    assert len({digest(pool) for pool in pools}) == 3
    assert digest(pools[1]) != digest(pools[1], "ostler:2")


def test_pods_without_container_jobs_do_not_roll_when_the_image_changes() -> None:
    assert digest(read()) == digest(read(), None) == digest(read(), "ostler:2")


# Mistakes in the spec, and overlays.


@pytest.mark.parametrize(
    ("containers", "says"),
    [
        ({"mode": "docker"}, "spec.containers.mode must be one of kubernetes, buildkit, dind"),
        ({}, "spec.containers.mode must be one of kubernetes, buildkit, dind"),
        ("kubernetes", "spec.containers.mode must be one of kubernetes, buildkit, dind"),
        ({**CONTAINERS, "vcpu": "plenty"}, "spec.containers.vcpu is not a quantity"),
        ({**CONTAINERS, "vcpu": 0}, "spec.containers.vcpu must be more than 0"),
        ({**CONTAINERS, "memoryMib": 0}, "spec.containers.memoryMib must be more than 0"),
        ({**CONTAINERS, "memoryMib": 63}, "spec.containers.memoryMib must be at least 64"),
    ],
)
def test_wrong_containers_are_a_problem_of_the_pool(containers: object, says: str) -> None:
    problem = read(containers=containers).problem
    assert problem is not None
    assert says in problem


def test_pool_with_container_jobs_needs_a_name_that_hook_pods_can_have() -> None:
    assert read(name="a" * 45, containers=CONTAINERS).problem is None
    assert read(name="a" * 46).problem is None
    assert "at most 45 characters" in str(read(name="a" * 46, containers=CONTAINERS).problem)


def test_overlay_may_set_resources_and_a_template_of_the_sidecar() -> None:
    pod = with_containers(**TEMPLATE)

    hooks = of(pod, "hooks")
    assert hooks["resources"]["limits"]["memory"] == "512Mi"
    assert mounts(hooks)["template"]["mountPath"] == "/etc/ostler-hooks"
    assert hooks["env"][-1]["name"] == "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE"
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["hooks", "warm-up"]


def in_hooks(**fields: Any) -> Json:
    volumes = [{"name": "work", "emptyDir": {}}, {"name": "map", "configMap": {"name": "m"}}]
    return {"initContainers": [{"name": "hooks", **fields}], "volumes": volumes}


@pytest.mark.parametrize(
    ("overlay", "says"),
    [
        (in_hooks(image="mine:1"), "image must not be set"),
        (in_hooks(command=["sh"]), "command must not be set"),
        (in_hooks(args=["sh"]), "args must not be set"),
        (in_hooks(restartPolicy="Never"), "restartPolicy must not be set"),
        (in_hooks(startupProbe={}), "startupProbe must not be set"),
        (in_hooks(securityContext={"runAsUser": 5}), "securityContext must not be set"),
        (in_hooks(env=[{"name": "PYTHONPATH", "value": "/x"}]), "env[PYTHONPATH]"),
        (in_hooks(env=[{"name": "OSTLER_HOOKS_POD_UID", "value": "u"}]), "env[OSTLER_HOOKS_POD_UID]"),
        (in_hooks(env=[{"name": "ACTIONS_RUNNER_POD_NAME", "value": "other-0"}]), "env[ACTIONS_RUNNER_POD_NAME]"),
        (
            in_hooks(env=[{"name": "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE", "valueFrom": {"secretKeyRef": {}}}]),
            "must be a plain value",
        ),
        (in_hooks(volumeMounts=[{"name": "work", "mountPath": "/etc/ostler-hooks"}]), "is not a ConfigMap"),
        (in_hooks(volumeMounts=[{"name": "map", "mountPath": "/opt/ostler/lib"}]), "must be /etc/ostler-hooks"),
        (in_hooks(volumeMounts=[{"name": "map", "mountPath": "/etc/ostler-hooks/../x"}]), "must be /etc/ostler-hooks"),
        ({"containers": [{"name": "hooks", "image": "mine:1"}]}, "the name is already in use"),
        (
            {"containers": [{"name": "runner", "env": [{"name": "ACTIONS_RUNNER_CONTAINER_HOOKS", "value": "/x"}]}]},
            "is reserved for Ostler",
        ),
        (
            {"containers": [{"name": "side", "volumeMounts": [{"name": "ostler-hooks-token", "mountPath": "/t"}]}]},
            "is reserved",
        ),
        (
            {"containers": [{"name": "runner", "volumeMounts": [{"name": "ostler-hooks", "mountPath": "/t"}]}]},
            "is reserved",
        ),
        ({"volumes": [{"name": "ostler-hooks", "emptyDir": {}}]}, "is reserved for Ostler"),
    ],
)
def test_overlay_that_would_reach_the_token_is_refused(overlay: Json, says: str) -> None:
    problem = read(containers=CONTAINERS, podTemplate={"spec": overlay}).problem
    assert problem is not None
    assert says in problem


def test_init_container_named_hooks_stays_allowed_without_container_jobs() -> None:
    overlay = {"spec": {"initContainers": [{"name": "hooks", "image": "mine:1", "command": ["true"]}]}}
    assert read(podTemplate=overlay).problem is None


SHARED: Json = {**CONTAINERS, "workspace": "shared"}


def test_shared_workspace_is_a_volume_of_the_runner_and_not_of_the_sidecar() -> None:
    spec = build(read(containers=SHARED))["spec"]

    volumes = {each["name"] for each in spec["volumes"]}
    assert {"ostler-work", "ostler-externals", "ostler-github"} <= volumes
    externals, hooks = spec["initContainers"]
    runner = next(each for each in spec["containers"] if each["name"] == "runner")
    assert {"name": "ostler-work", "mountPath": "/home/runner/_work"} in runner["volumeMounts"]
    assert [each["name"] for each in externals["volumeMounts"]] == ["ostler-externals"]
    assert {"name": "OSTLER_HOOKS_WORKSPACE", "value": "shared"} in hooks["env"]
    assert not {"ostler-work", "ostler-externals", "ostler-github"} & {each["name"] for each in hooks["volumeMounts"]}
    assert spec["imagePullSecrets"] == [{"name": "small-0-secret-7"}]


def test_pod_with_a_shared_workspace_has_the_size_of_a_job() -> None:
    pool = read(containers=SHARED)

    spec = build(pool)["spec"]

    runner = next(each for each in spec["containers"] if each["name"] == "runner")
    assert runner["resources"]["limits"] == {"cpu": "3500m", "memory": "7096Mi"}
    assert (pool.charged_millicores, pool.charged_mib) == (3500, 7096)
    # The poller has 50 millicores, and the sidecar 250.
    assert needs_of(pool).size.vcpu == 3800


def test_names_of_services_are_host_names_from_the_start() -> None:
    [alias] = build(read(containers=SHARED))["spec"]["hostAliases"]
    assert alias["ip"] == "127.0.0.1"
    assert {"postgres", "redis", "db"} <= set(alias["hostnames"])

    assert "hostAliases" not in build(read(containers={**SHARED, "serviceNames": []}))["spec"]
    assert "hostAliases" not in build(read(containers=CONTAINERS))["spec"]


def test_another_workspace_makes_the_pods_of_a_pool_stale() -> None:
    copied, shared = read(containers=CONTAINERS), read(containers=SHARED)
    named = read(containers={**SHARED, "serviceNames": ["db"]})

    assert len({copied.template_hash, shared.template_hash, named.template_hash}) == 3
    assert read(containers={**CONTAINERS, "workspace": "copy"}).template_hash == copied.template_hash


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"containers": {**CONTAINERS, "workspace": "nfs"}}, "spec.containers.workspace must be one of copy, shared"),
        ({"containers": {**SHARED, "serviceNames": ["a.b"]}}, "spec.containers.serviceNames must be host names"),
        ({"containers": SHARED, "assignedUser": True}, "works neither with spec.assignedUser"),
        ({"containers": SHARED, "security": {"podSecurity": "baseline"}}, "nor above the level restricted"),
    ],
)
def test_workspace_that_a_pool_cannot_have_is_a_problem(spec: Json, problem: str) -> None:
    assert problem in str(read(**spec).problem)
