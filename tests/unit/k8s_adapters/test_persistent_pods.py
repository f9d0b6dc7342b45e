"""Pods of persistent runners: the containers with the registration token, and the overlays that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.owners.stateful_set import build_stateful_set
from k8s_adapters.runners.runners import build_pod
from rules.pools.pool_spec import PoolSpec

Json = dict[str, Any]

LIFE: Json = {"lifecycle": "persistent", "registration": {"organization": "acme"}}
OVERLAY: Json = {
    "containers": [
        {"name": "runner", "volumeMounts": [{"name": "work", "mountPath": "/work"}]},
        {"name": "register", "resources": {"limits": {"memory": "1Gi"}}},
        {"name": "beside", "image": "b"},
    ],
    "volumes": [{"name": "work", "emptyDir": {}}],
}
SETS: Json = {
    "workload": "StatefulSet",
    "volumes": {"claims": [{"name": "cache", "mountPath": "/cache", "storage": "1Gi"}]},
}


def read(**spec: Any) -> PoolSpec:
    metadata = {"name": "small", "namespace": "runners", "uid": "u"}
    return read_pool({"metadata": metadata, "spec": {"image": "runner:1", "runnerLabels": ["small"], **LIFE, **spec}})


def build(pool: PoolSpec) -> Json:
    """Return the spec of the Pod for the workload of the pool."""
    assert pool.problem is None, pool.problem
    name = "small-0000000a-0" if pool.workload == "StatefulSet" else "small-0000000a"
    pod = build_pod(pool=pool, name=name, attempt="a", dispatch_url="http://web/", audience="o")
    if pool.workload == "StatefulSet":
        pod = build_stateful_set(pool=pool, pod=pod)["spec"]["template"]
    return dict(pod["spec"])


@pytest.mark.parametrize(
    ("more", "own"),
    [({}, set()), ({"podTemplate": {"spec": OVERLAY}}, {"work"}), (SETS, {"cache"})],
    ids=["Pod", "Pod with overlay", "StatefulSet with volumes"],
)
def test_no_token_and_no_secret_reaches_the_runner(more: Json, own: set[str]) -> None:
    spec = build(read(**more))

    mounts = {each["name"]: {mount["name"] for mount in each.get("volumeMounts", ())} for each in spec["containers"]}
    assert mounts.pop("poller") == {"jit", "token", "ostler-scripts"}
    assert mounts.pop("register") == {"jit", "ostler-registration", "ostler-scripts"}
    assert mounts.pop("runner") == {"ostler-registration", "ostler-scripts", *own}
    assert not any(mounts.values())

    kinds = {each["name"]: (set(each) - {"name"}).pop() for each in spec["volumes"] if each["name"] not in own}
    assert kinds == {
        "jit": "emptyDir",
        "ostler-registration": "emptyDir",
        "ostler-scripts": "configMap",
        "token": "projected",
    }
    assert spec["automountServiceAccountToken"] is False
    assert not spec.get("shareProcessNamespace")
    assert not any("envFrom" in each for each in spec["containers"])
    assert all(set(variable) == {"name", "value"} for each in spec["containers"] for variable in each.get("env", ()))


def container(name: str, **fields: Any) -> Json:
    return {"containers": [{"name": name, **fields}], "volumes": [{"name": "work", "emptyDir": {}}]}


def mounting(volume: str, path: str = "/x") -> Json:
    return {"volumeMounts": [{"name": volume, "mountPath": path}]}


@pytest.mark.parametrize(
    ("overlay", "says"),
    [
        (container("runner", **mounting("jit")), "volume jit is reserved"),
        (container("runner", **mounting("token")), "volume token is reserved"),
        (container("runner", **mounting("work", "/var/run/ostler")), "would hide a path that Ostler uses"),
        (container("runner", command=["sh"]), "containers[runner].command must not be set"),
        (container("beside", **mounting("jit")), "volume jit is reserved"),
        (container("beside", **mounting("ostler-registration")), "volume ostler-registration is reserved"),
        (container("register", **mounting("work")), "containers[register].volumeMounts must not be set"),
        (container("register", image="mine:1"), "containers[register].image must not be set"),
        (container("register", command=["sh"]), "containers[register].command must not be set"),
        (container("register", args=["sh"]), "containers[register].args must not be set"),
        (container("register", lifecycle={}), "containers[register].lifecycle must not be set"),
        (container("register", workingDir="/x"), "containers[register].workingDir must not be set"),
        (container("register", securityContext={"runAsUser": 5}), "containers[register].securityContext must not"),
        (
            container("register", env=[{"name": "OSTLER_REGISTRATION_DIR", "value": "/x"}]),
            "containers[register].env[OSTLER_REGISTRATION_DIR] is reserved",
        ),
        (
            container("register", env=[{"name": "ACTIONS_RUNNER_INPUT_URL", "value": "http://x"}]),
            "containers[register].env[ACTIONS_RUNNER_INPUT_URL] is reserved",
        ),
        ({"initContainers": [{"name": "register", "image": "mine:1"}]}, "the name is already in use"),
        ({"volumes": [{"name": "ostler-registration", "emptyDir": {}}]}, "[ostler-registration] is reserved"),
        (
            {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
            "the source serviceAccountToken must not be set",
        ),
        ({"shareProcessNamespace": True}, "shareProcessNamespace must not be set"),
        (
            container("runner", env=[{"name": "ACTIONS_RUNNER_HOOK_JOB_COMPLETED", "value": "/x"}]),
            "is reserved for Ostler: set OSTLER_JOB_COMPLETED_HOOK instead",
        ),
    ],
)
def test_overlay_that_would_reach_the_registration_token_is_refused(overlay: Json, says: str) -> None:
    problem = read(podTemplate={"spec": overlay}).problem
    assert problem is not None
    assert says in problem


def test_volume_of_a_runner_must_not_replace_a_volume_with_a_token() -> None:
    claim = {**SETS["volumes"]["claims"][0], "name": "jit"}
    problem = read(**{**SETS, "volumes": {"claims": [claim]}}).problem
    assert problem is not None
    assert "'jit', which another volume of the Pod has" in problem
