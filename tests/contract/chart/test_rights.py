"""The rights that `ostler doctor` checks equal the rights that the chart grants."""

from __future__ import annotations

import pytest

from k8s_adapters.cluster.access import CONTAINER_RIGHTS, RIGHTS, Right
from lab import helm

CONTAINERS: helm.Values = {
    "runners": {"containers": {"enabled": True}},
    "networkPolicies": {"apiServer": {"addresses": ["10.0.0.1/32"]}},
}


def granted(process: str, values: helm.Values) -> set[Right]:
    """Return the rights that the chart grants to the identity of a process."""
    found: set[Right] = set()
    for each in helm.render(values=values, namespace="ostler", release="ostler"):
        if each["kind"] not in {"Role", "ClusterRole"} or not each["metadata"]["name"].endswith(f"-{process}"):
            continue
        for rule in each["rules"]:
            found |= {Right(verb, path=path) for verb in rule["verbs"] for path in rule.get("nonResourceURLs", ())}
            found |= {
                Right(verb, resource, group, name=name, cluster=each["kind"] == "ClusterRole")
                for verb in rule["verbs"]
                for group in rule.get("apiGroups", ())
                for resource in rule.get("resources", ())
                for name in rule.get("resourceNames", (None,))
            }
    return found


@pytest.mark.parametrize("process", sorted(RIGHTS))
def test_the_chart_grants_what_is_asked_about(process: str) -> None:
    assert granted(process, {}) == set(RIGHTS[process])


@pytest.mark.parametrize("process", sorted(RIGHTS))
def test_chart_grants_more_rights_with_container_jobs(process: str) -> None:
    assert granted(process, CONTAINERS) == {*RIGHTS[process], *CONTAINER_RIGHTS.get(process, ())}


def test_rights_of_the_uninstall_exist_for_its_job_alone() -> None:
    found = [each for each in helm.render(values=CONTAINERS) if each["metadata"]["name"].endswith("-uninstall")]
    assert {each["kind"] for each in found} >= {"ServiceAccount", "Role", "RoleBinding", "Job"}
    for each in found:
        hook = each["metadata"]["annotations"]
        assert hook["helm.sh/hook"] == "post-delete", each["kind"]
        assert "hook-succeeded" in hook["helm.sh/hook-delete-policy"].split(","), each["kind"]


def test_every_admission_policy_fails_closed() -> None:
    elevated = {"allowedPodSecurity": "baseline", "elevatedPools": {"base": "baseline"}}
    values = {**CONTAINERS, "runners": {**CONTAINERS["runners"], **elevated}}
    objects = helm.render(values=values)
    policies = {
        each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "ValidatingAdmissionPolicy"
    }
    bindings = [each["spec"] for each in objects if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert len(policies) >= 8
    assert {name for name, spec in policies.items() if spec["failurePolicy"] != "Fail"} == set()
    assert {each["policyName"] for each in bindings} == set(policies)
    assert all("Deny" in each["validationActions"] for each in bindings)
