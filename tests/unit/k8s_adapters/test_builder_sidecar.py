"""Pods of pools whose jobs build images: the sidecar `builder`, its rights, its volumes and the size of a job."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.cluster.nodes import needs_of
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.builder_sidecar import BUILDKIT_ADDRESS, DOCKER_ADDRESS, FOLDER
from k8s_adapters.runners.pod_hash import pod_hash
from k8s_adapters.runners.runners import build_pod
from rules.pools.pool_spec import PoolSpec

Json = dict[str, Any]

IMAGE = "moby/buildkit:1"
CONTAINERS = {"mode": "buildkit", "vcpu": "1500m", "memoryMib": 3000}
DIND = {**CONTAINERS, "mode": "dind"}
PRIVILEGED = {"podSecurity": "privileged"}


def read(**spec: Any) -> PoolSpec:
    given = {
        "image": "runner:1",
        "runnerLabels": ["builds"],
        "resources": {"cpu": 2, "memory": "4Gi"},
        "security": PRIVILEGED,
        "containers": CONTAINERS,
        **spec,
    }
    return read_pool({"metadata": {"name": "builds", "namespace": "builds", "uid": "u"}, "spec": given})


def build(pool: PoolSpec) -> Json:
    assert pool.problem is None, pool.problem
    return build_pod(
        pool=pool, name="builds-0", attempt="a", dispatch_url="http://web/", audience="o", builder_image=IMAGE
    )


def of(pod: Json, name: str) -> Json:
    every = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    (found,) = (each for each in every if each["name"] == name)
    return dict(found)


def mounted(container: Json) -> dict[str, bool]:
    """Return the volumes of a container, each with True if it is mounted read-only."""
    return {each["name"]: each.get("readOnly", False) for each in container["volumeMounts"]}


def test_builder_is_a_sidecar_in_a_user_namespace_of_its_pod() -> None:
    pod = build(read())

    assert pod["spec"]["hostUsers"] is False
    builder = of(pod, "builder")
    assert (builder["image"], builder["restartPolicy"]) == (IMAGE, "Always")
    assert builder["securityContext"]["runAsUser"] == 0
    assert not builder["securityContext"].get("privileged", False)


def test_volume_of_layers_belongs_to_no_group_of_the_runner() -> None:
    assert "fsGroup" not in build(read())["spec"]["securityContext"]
    assert build(read(containers=DIND))["spec"]["securityContext"]["fsGroup"] == 1001
    assert build(read(containers=None))["spec"]["securityContext"]["fsGroup"] == 1001


OVERLAY = {
    "spec": {"containers": [{"name": "runner", "resources": {"limits": {"ephemeral-storage": "20Gi"}}}]},
}


@pytest.mark.parametrize(
    "limit",
    [{"resources": {"ephemeralStorage": "10Gi", "ephemeralStorageLimit": "20Gi"}}, {"podTemplate": OVERLAY}],
    ids=["field", "overlay"],
)
@pytest.mark.parametrize("mode", ["buildkit", "dind"])
def test_layers_have_room_beside_the_files_of_a_job_with_a_limit(mode: str, limit: Json) -> None:
    pod = build(read(containers={**CONTAINERS, "mode": mode, "cache": "20Gi"}, **limit))

    every = (*pod["spec"]["containers"], *pod["spec"]["initContainers"])
    disk = [each["resources"]["limits"].get("ephemeral-storage") for each in every]
    assert sorted(filter(None, disk)) in (["20480Mi", "20480Mi"], ["20480Mi", "20Gi"])


def test_layers_bound_no_job_that_has_no_limit() -> None:
    pod = build(read(containers={**CONTAINERS, "cache": "20Gi"}))

    every = (*pod["spec"]["containers"], *pod["spec"]["initContainers"])
    assert not any("ephemeral-storage" in each["resources"]["limits"] for each in every)


def test_pod_without_a_builder_has_no_trace_of_it() -> None:
    pod = build(read(containers=None))

    assert "hostUsers" not in pod["spec"]
    assert "builder" not in str(pod).replace("builds", "")
    assert "BUILDKIT_HOST" not in str(pod)


def test_builder_sees_its_own_volumes_and_the_runner_its_socket_read_only() -> None:
    pod = build(read())

    assert mounted(of(pod, "builder")) == {"ostler-builder": False, "ostler-builder-cache": False}
    assert mounted(of(pod, "runner")) == {"jit": False, "ostler-scripts": True, "ostler-builder": True}
    assert "ostler-builder" not in mounted(of(pod, "poller"))
    variables = {each["name"]: each.get("value") for each in of(pod, "runner")["env"]}
    assert (variables["BUILDKIT_HOST"], variables["OSTLER_BUILDKIT"]) == (BUILDKIT_ADDRESS, BUILDKIT_ADDRESS)
    assert BUILDKIT_ADDRESS.startswith(f"unix://{FOLDER}/")


def test_docker_daemon_shares_the_work_folder_and_the_socket_with_the_runner_alone() -> None:
    pod = build(read(containers=DIND))

    shared = {"ostler-builder": False, "ostler-work": False}
    assert mounted(of(pod, "builder")) == {**shared, "ostler-builder-cache": False, "ostler-externals": False}
    assert mounted(of(pod, "runner")) == {**shared, "ostler-builder": True, "jit": False, "ostler-scripts": True}
    assert not any(name.startswith(("ostler-builder", "ostler-work")) for name in mounted(of(pod, "poller")))
    assert {"name": "DOCKER_HOST", "value": DOCKER_ADDRESS} in of(pod, "runner")["env"]
    paths = {each["name"]: each["mountPath"] for each in of(pod, "runner")["volumeMounts"]}
    assert paths["ostler-work"] == "/home/runner/_work"


def test_only_the_docker_daemon_is_privileged() -> None:
    pod = build(read(containers=DIND))

    every = (*pod["spec"]["containers"], *pod["spec"]["initContainers"])
    assert [each["name"] for each in every if each["securityContext"].get("privileged")] == ["builder"]
    assert "hostUsers" not in pod["spec"]
    own = build(read(containers=DIND, podTemplate={"spec": {"hostUsers": False}}))
    assert own["spec"]["hostUsers"] is False


def test_programs_of_the_runner_are_copied_before_the_daemon_starts() -> None:
    pod = build(read(containers=DIND))

    first, second = pod["spec"]["initContainers"]
    assert (first["name"], first["image"], second["name"]) == ("externals", "runner:1", "builder")
    assert "restartPolicy" not in first


def test_overlay_leaves_the_rights_of_each_container_as_they_are() -> None:
    overlay = {"spec": {"containers": [{"name": "runner", "workingDir": "/srv"}], "nodeSelector": {"builds": "yes"}}}
    plain, laid_over = build(read()), build(read(podTemplate=overlay))

    for name in ("poller", "runner", "builder"):
        assert of(laid_over, name)["securityContext"] == of(plain, name)["securityContext"]


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_overlay_must_not_change_the_builder(kind: str) -> None:
    overlay = {"spec": {kind: [{"name": "builder", "image": "mine:1"}]}}

    assert "must not be set while spec.containers has a builder" in (read(podTemplate=overlay).problem or "")
    assert "builder" not in (read(podTemplate=overlay, containers=None).problem or "")


@pytest.mark.parametrize("volume", ["ostler-builder", "ostler-builder-cache"])
def test_overlay_must_not_use_the_volumes_of_the_builder(volume: str) -> None:
    mount = {"name": volume, "mountPath": "/mnt"}
    problem = read(podTemplate={"spec": {"containers": [{"name": "runner", "volumeMounts": [mount]}]}}).problem

    assert f"volume {volume} is reserved" in (problem or "")


@pytest.mark.parametrize("mode", ["buildkit", "dind"])
@pytest.mark.parametrize("level", ["restricted", "baseline"])
def test_builder_needs_the_level_privileged(level: str, mode: str) -> None:
    problem = read(security={"podSecurity": level}, containers={"mode": mode}).problem

    assert problem == f"spec.containers.mode {mode} needs spec.security.podSecurity privileged"


def test_builder_does_not_work_with_a_user_that_the_cluster_assigns() -> None:
    assert read(assignedUser=True).problem == "spec.containers.mode buildkit does not work with spec.assignedUser"


def test_unknown_mode_is_a_problem_that_names_the_known_ones() -> None:
    problem = read(containers={"mode": "docker"}).problem

    assert problem == "spec.containers.mode must be one of kubernetes, buildkit, dind: 'docker'"


def test_cache_bounds_the_volume_and_the_layers_of_buildkit() -> None:
    pod = build(read(containers={**CONTAINERS, "cache": "10Gi"}))

    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "ostler-builder-cache")
    assert volume["emptyDir"] == {"sizeLimit": "10240Mi"}
    builder = of(pod, "builder")
    assert builder["resources"]["requests"]["ephemeral-storage"] == "10240Mi"
    assert "ephemeral-storage" not in builder["resources"]["limits"]
    (kept,) = (each.partition("=")[2] for each in builder["args"] if "keepstorage" in each)
    assert 0.75 * 10 * 1024**3 < int(kept) * 1_000_000 < 10 * 1024**3


def test_cache_without_a_size_has_no_limit() -> None:
    pod = build(read())

    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "ostler-builder-cache")
    assert volume["emptyDir"] == {}
    assert not any("gc" in each for each in of(pod, "builder")["args"])


def test_size_of_the_builder_counts_for_the_account_and_for_nodes() -> None:
    pool, without = read(), read(containers=None)

    assert (pool.charged_millicores, pool.charged_mib) == (2000 + 1500, 4096 + 3000)
    more, less = needs_of(pool).size, needs_of(without).size
    assert (more.vcpu - less.vcpu, more.memory - less.memory) == (1500, 3000)


def test_pods_roll_when_the_builder_or_its_image_changes() -> None:
    def hash_of(pool: PoolSpec, image: str = IMAGE) -> str:
        return pod_hash(pool, dispatch_url="http://web/", audience="o", builder_image=image)

    hashes = {
        hash_of(read()),
        hash_of(read(), "moby/buildkit:2"),
        hash_of(read(containers={**CONTAINERS, "cache": "1Gi"})),
        hash_of(read(containers={**CONTAINERS, "memoryMib": 2000})),
        hash_of(read(containers=DIND)),
        hash_of(read(containers=None)),
    }
    assert len(hashes) == 6
    assert hash_of(read(containers=None)) == hash_of(read(containers=None), "moby/buildkit:2")
