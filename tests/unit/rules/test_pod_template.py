"""The overlay of a pool's Pods: allowed and forbidden changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rules.pools.pod_template import lay_over, outlive_lost_nodes, refusals

POD: dict[str, Any] = {
    "metadata": {"name": "p-1", "labels": {"ostler.dev/pool": "p"}, "annotations": {}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {"name": "poller", "env": [{"name": "OSTLER_JIT_DIR", "value": "/jit"}]},
            {
                "name": "runner",
                "env": [{"name": "OSTLER_JIT_DIR", "value": "/jit"}],
                "volumeMounts": [{"name": "jit", "mountPath": "/var/run/ostler"}],
            },
        ],
        "volumes": [{"name": "jit"}, {"name": "token"}],
    },
}


def runner(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "runner", **fields}]}}


def test_gpu_and_architecture_of_a_pool_reach_its_pods() -> None:
    overlay = runner(resources={"limits": {"nvidia.com/gpu": "1"}})
    overlay["spec"]["nodeSelector"] = {"kubernetes.io/arch": "arm64"}
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][1]["resources"] = {"limits": {"cpu": "2"}}
    assert refusals(overlay) == ()

    merged = lay_over(pod, overlay)["spec"]

    assert merged["containers"][1]["resources"]["limits"] == {"cpu": "2", "nvidia.com/gpu": "1"}
    assert merged["nodeSelector"] == {"kubernetes.io/arch": "arm64"}


def test_named_things_are_merged_by_name_and_the_others_stay() -> None:
    overlay = {
        "metadata": {"labels": {"team": "web"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "containers": [
                {
                    "name": "runner",
                    "env": [{"name": "HTTP_PROXY", "value": "http://proxy"}],
                    "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                },
                {"name": "sidecar", "image": "s"},
            ],
            "volumes": [{"name": "cache", "emptyDir": {}}],
        },
    }
    assert refusals(overlay) == ()

    merged = lay_over(POD, overlay)

    assert merged["metadata"]["labels"] == {"ostler.dev/pool": "p", "team": "web"}
    poller, with_more, sidecar = merged["spec"]["containers"]
    assert poller == POD["spec"]["containers"][0]
    assert [each["name"] for each in with_more["env"]] == ["OSTLER_JIT_DIR", "HTTP_PROXY"]
    assert [each["mountPath"] for each in with_more["volumeMounts"]] == ["/var/run/ostler", "/cache"]
    assert sidecar == {"name": "sidecar", "image": "s"}
    assert [each["name"] for each in merged["spec"]["volumes"]] == ["jit", "token", "cache"]
    assert "nodeSelector" not in POD["spec"]


def test_a_pod_may_get_a_user_namespace_of_its_own() -> None:
    overlay = {"spec": {"hostUsers": False}}
    assert refusals(overlay) == ()
    assert lay_over(POD, overlay)["spec"]["hostUsers"] is False


@pytest.mark.parametrize("name", ["OSTLER_RUNNER_HOME", "OSTLER_JOB_STARTED_HOOK", "OSTLER_JOB_COMPLETED_HOOK"])
def test_only_the_runner_may_have_the_variables_that_describe_its_image(name: str) -> None:
    env = [{"name": name, "value": "/srv"}]
    assert refusals(runner(env=env)) == ()
    for other in ("poller", "cache"):
        assert refusals({"spec": {"containers": [{"name": other, "env": env}]}}) != ()
    assert refusals({"spec": {"initContainers": [{"name": "first", "env": env}]}}) != ()


@pytest.mark.parametrize(
    ("overlay", "says"),
    [
        ({"spec": {"automountServiceAccountToken": True}}, "automountServiceAccountToken"),
        ({"spec": {"serviceAccountName": "admin"}}, "serviceAccountName"),
        ({"spec": {"shareProcessNamespace": True}}, "shareProcessNamespace"),
        ({"spec": {"hostPID": True}}, "hostPID"),
        ({"spec": {"hostUsers": True}}, "hostUsers may only be false"),
        ({"spec": {"hostUsers": "false"}}, "hostUsers may only be false"),
        ({"spec": {"hostUsers": 0}}, "hostUsers may only be false"),
        ({"spec": {"hostUsers": None}}, "must not remove anything"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "securityContext"),
        ({"spec": {"restartPolicy": "Always"}}, "restartPolicy"),
        ({"spec": {"containers": [{"name": "poller", "env": [{"name": "A", "value": "b"}]}]}}, "env"),
        ({"spec": {"containers": [{"name": "poller", "command": ["sh"]}]}}, "command"),
        (runner(command=["sh"]), "command"),
        (runner(readinessProbe={}), "readinessProbe"),
        (runner(securityContext={"privileged": True}), "privileged"),
        (runner(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "capabilities"),
        (runner(securityContext={"runAsUser": 0}), "root"),
        (runner(securityContext={"runAsUser": 1002}), "user"),
        (runner(env=[{"name": "ACTIONS_RUNNER_HOOK_JOB_STARTED", "value": ""}]), "reserved for Ostler"),
        (runner(env=[{"name": "OSTLER_JIT_DIR", "value": "/t"}]), "reserved for Ostler"),
        (runner(volumeMounts=[{"name": "ostler-scripts", "mountPath": "/x"}]), "reserved for"),
        (runner(volumeMounts=[{"name": "x", "mountPath": "/var/run/ostler-scripts"}]), "hide"),
        ({"spec": {"volumes": [{"name": "ostler-scripts", "emptyDir": {}}]}}, "reserved for Ostler"),
        (runner(volumeMounts=[{"name": "token", "mountPath": "/t"}]), "reserved for"),
        (runner(volumeMounts=[{"name": "x", "mountPath": "/opt/ostler"}]), "hide"),
        (runner(env=None), "must not remove anything"),
        ({"spec": {"containers": [{"name": "runner", "$patch": "delete"}]}}, "must not remove anything"),
        (
            {"spec": {"containers": [{"name": "spy", "volumeMounts": [{"name": "jit", "mountPath": "/j"}]}]}},
            ("reserved for"),
        ),
        ({"spec": {"initContainers": [{"name": "poller"}]}}, "already in use"),
        ({"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}, "hostPath"),
        ({"spec": {"volumes": [{"name": "jit", "emptyDir": {}}]}}, "reserved for"),
        (
            {"spec": {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}},
            "only the container poller",
        ),
        ({"metadata": {"labels": {"ostler.dev/runner-pool-owner": "1"}}}, "reserved for Ostler"),
        ({"metadata": {"annotations": {"ostler.dev/claim": "9.9"}}}, "reserved for Ostler"),
        ({"metadata": {"finalizers": ["x"]}}, "finalizers"),
        ({"spec": {"containers": [{"image": "x"}]}}, "structure of a Pod"),
        ({"spec": {"containers": "x"}}, "not a list"),
        ({"spec": ["x"]}, "not a map"),
        ({"spec": None}, "must not remove anything"),
        ({"metadata": None}, "must not remove anything"),
        ({"metadata": {"labels": None}}, "must not remove anything"),
        ({"metadata": {"annotations": []}}, "not a map"),
        ({"spec": {"nodeSelector": ["x"]}}, "not a map"),
        ({"spec": {"tolerations": 5}}, "not a list"),
        ({"spec": {"overhead": "x"}}, "not a map"),
        (runner(resources="x"), "not a map"),
        ([], "not an object"),
    ],
)
def test_what_would_weaken_the_split_is_refused_with_its_field(overlay: Any, says: str) -> None:
    assert any(says in reason for reason in refusals(overlay)), refusals(overlay)


NEVER_EVICTED = [
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([], []),
        ([{"key": "gpu", "operator": "Exists"}], [{"key": "gpu", "operator": "Exists"}]),
        ([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 30}], []),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}], []),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}], []),
        (
            [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
            [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
        ),
    ],
)
def test_lost_nodes_are_tolerated_without_end_whatever_an_overlay_says(
    given: list[dict[str, Any]], kept: list[dict[str, Any]]
) -> None:
    # In front of all others: the first toleration that matches a taint decides.
    assert outlive_lost_nodes(given) == [*NEVER_EVICTED, *kept]


@pytest.mark.parametrize(
    ("overlay", "field"),
    [
        ({"status": {}}, "podTemplate.status"),
        ({"metadata": {"name": "x"}}, "podTemplate.metadata.name"),
        ({"spec": {"hostPID": True}}, "podTemplate.spec.hostPID"),
        ({"spec": None}, "podTemplate.spec:"),
        (runner(volumeMounts=[{"name": "x", "mountPath": "/opt/ostler/"}]), "podTemplate.spec.containers[runner].volu"),
        (
            runner(volumeMounts=[{"name": "x", "mountPath": "/var/run/ostler/x"}]),
            "podTemplate.spec.containers[runner].",
        ),
    ],
)
def test_a_refusal_begins_with_its_field(overlay: Any, field: str) -> None:
    (reason,) = refusals(overlay)
    assert reason.startswith(field)


def test_labels_and_annotations_of_ones_own_are_let_in() -> None:
    assert refusals({"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}}) == ()


def test_neither_the_pod_nor_the_overlay_is_changed_by_what_is_laid_over() -> None:
    overlay = {
        "spec": {
            "affinity": {"nodeAffinity": {"x": [1]}},
            "tolerations": [{"key": "a"}],
            "containers": [{"name": "sidecar", "args": ["a"]}],
        },
    }
    pod, given = copy.deepcopy(POD), copy.deepcopy(overlay)
    merged = lay_over(POD, overlay)
    merged["metadata"]["labels"]["new"] = "x"
    merged["spec"]["containers"][0]["env"].append({})
    merged["spec"]["containers"][-1]["args"].append("b")
    merged["spec"]["affinity"]["nodeAffinity"]["x"].append(2)
    merged["spec"]["tolerations"][0]["key"] = "b"
    assert (POD, overlay) == (pod, given)


def test_lists_without_names_are_replaced_and_new_ones_are_taken() -> None:
    overlay = {"spec": {"tolerations": [{"key": "b"}], "initContainers": [{"name": "i"}]}}
    below = copy.deepcopy(POD)
    below["spec"]["tolerations"] = [{"key": "a"}]
    merged = lay_over(below, overlay)["spec"]
    assert merged["tolerations"] == [{"key": "b"}]
    assert merged["initContainers"] == [{"name": "i"}]


def test_a_null_takes_away_what_is_below_if_there_is_any() -> None:
    merged = lay_over(POD, {"spec": {"restartPolicy": None, "hostname": None}})
    assert "restartPolicy" not in merged["spec"]
    assert "hostname" not in merged["spec"]
