"""Second namespace of the chart, for pools above the Pod Security level restricted."""

from __future__ import annotations

from typing import Any

import pytest

from lab import helm

FIRST, SECOND = "ostler-runners", "ostler-runners-elevated"
LEVEL = "pod-security.kubernetes.io/enforce"
CONTAINERS: dict[str, Any] = {
    "runners": {"containers": {"enabled": True}},
    "networkPolicies": {"apiServer": {"addresses": ["10.0.0.1/32"]}},
    "web": {"tls": {"enabled": True, "existingSecret": "s", "caBundle": "-----BEGIN CERTIFICATE-----"}},
}
POOL = {"image": "i", "runnerLabels": ["a"]}


def values(level: str = "baseline", *, pools: dict[str, Any] | None = None, **runners: Any) -> dict[str, Any]:
    given = {**CONTAINERS["runners"], "allowedPodSecurity": level, "elevatedPools": {"sudo": "baseline"}, **runners}
    return {**CONTAINERS, "runners": given, "pools": pools or {}}


def places(objects: list[helm.Manifest], namespace: str) -> dict[tuple[str, str], helm.Manifest]:
    """Return the objects of a namespace by kind and name, without their namespace."""
    return {
        (each["kind"], each["metadata"]["name"]): {**each, "metadata": {**each["metadata"], "namespace": ""}}
        for each in objects
        if each["metadata"].get("namespace") == namespace
    }


def test_second_namespace_has_every_object_of_the_first() -> None:
    found = helm.render(values=values())
    first = places(found, FIRST)
    assert {kind for kind, _ in first} == {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding"}
    assert places(found, SECOND) == first


def test_objects_of_the_first_namespace_do_not_change_with_a_second_one() -> None:
    assert places(helm.render(values=values()), FIRST) == places(helm.render(values=CONTAINERS), FIRST)


@pytest.mark.parametrize("level", ["baseline", "privileged"])
def test_namespaces_have_their_levels_and_stay_with_the_pods(level: str) -> None:
    found = {
        each["metadata"]["name"]: each["metadata"]
        for each in helm.render(values=values(level))
        if each["kind"] == "Namespace"
    }
    assert {name: each["labels"][LEVEL] for name, each in found.items()} == {FIRST: "restricted", SECOND: level}
    assert all(each["annotations"] == {"helm.sh/resource-policy": "keep"} for each in found.values())


def test_restricted_makes_no_second_namespace() -> None:
    chosen = values("restricted", elevatedNamespace="up")
    assert helm.render(values=chosen) == helm.render(values=CONTAINERS)


def test_processes_know_the_second_namespace() -> None:
    known: dict[str, dict[str, str]] = {}
    for each in helm.render(values=values("privileged", elevatedNamespace="up")):
        if each["kind"] == "Deployment":
            container = each["spec"]["template"]["spec"]["containers"][0]
            known[each["metadata"]["name"]] = {env["name"]: env.get("value", "") for env in container["env"]}
    for process in ("ostler-web", "ostler-worker-default", "ostler-watch"):
        assert known[process]["OSTLER_ELEVATED_NAMESPACE"] == "up"
    for process in ("ostler-web", "ostler-worker-default"):
        assert known[process]["OSTLER_ALLOWED_POD_SECURITY"] == "privileged"


def test_policies_and_web_admit_both_namespaces() -> None:
    found = helm.render(values=values())
    kind = "ValidatingAdmissionPolicy"
    selected = [each["spec"]["matchConstraints"].get("namespaceSelector") for each in found if each["kind"] == kind]
    both = [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": [FIRST, SECOND]}]
    only = {"matchLabels": {"kubernetes.io/metadata.name": SECOND}}
    assert [each for each in selected if each not in (None, {"matchExpressions": both}, only)] == []
    assert selected.count(only) == 2
    (web,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", "ostler-web")]
    assert {"matchExpressions": both} in [
        peer["namespaceSelector"]
        for rule in web["spec"]["ingress"]
        for peer in rule.get("from", ())
        if "namespaceSelector" in peer
    ]


def test_pool_of_the_values_is_in_the_namespace_of_its_level() -> None:
    pools = {"small": POOL, "sudo": {**POOL, "security": {"podSecurity": "baseline"}}}
    found = helm.render(values=values(pools=pools))
    made = {each["metadata"]["name"]: each["metadata"]["namespace"] for each in found if each["kind"] == "RunnerPool"}
    assert made == {"small": FIRST, "sudo": SECOND}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (values("restricted", pools={"sudo": {**POOL, "security": {"podSecurity": "baseline"}}}), "is restricted"),
        (values(pools={"other": {**POOL, "security": {"podSecurity": "baseline"}}}), "not in runners.elevatedPools"),
        (
            values("privileged", pools={"sudo": {**POOL, "security": {"podSecurity": "privileged"}}}),
            "elevatedPools allows baseline",
        ),
        (values(elevatedPools={"sudo": "restricted"}), "elevatedPools"),
        (values(elevatedNamespace=FIRST), "name another namespace"),
        (values(elevatedNamespace="ostler"), "name another namespace"),
        (values("root"), "allowedPodSecurity"),
        (
            {"runners": {"allowedPodSecurity": "baseline"}, "admissionPolicy": {"enabled": False}},
            "needs admissionPolicy.enabled",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused_with_the_cure(given: dict[str, Any], says: str) -> None:
    with pytest.raises(helm.HelmRefused, match=says):
        helm.render(values=given)
