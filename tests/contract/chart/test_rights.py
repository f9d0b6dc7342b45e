"""The rights that `ostler doctor` checks are those that the chart grants: nothing more, nothing less."""

from __future__ import annotations

import pytest

from k8s_adapters.access import CONTAINER_RIGHTS, RIGHTS, Right
from lab import helm

CONTAINERS: helm.Values = {
    "runners": {"containers": {"enabled": True}},
    "networkPolicies": {"apiServer": {"addresses": ["10.0.0.1/32"]}},
}


def granted(process: str, values: helm.Values) -> set[Right]:
    """Return the rights that the chart gives to the identity of a process."""
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
