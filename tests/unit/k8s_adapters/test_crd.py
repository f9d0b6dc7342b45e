"""The definition of RunnerPool has the values and limits that the code has."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.names import (
    CONTAINERS_BUILDKIT,
    CONTAINERS_DIND,
    CONTAINERS_KUBERNETES,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
)
from k8s_adapters.pools.crd import CRD_NAME, crd_manifest
from k8s_adapters.pools.pool_reader import (
    DEFAULT_CPU,
    DEFAULT_EPHEMERAL_STORAGE,
    DEFAULT_MEMORY,
    LEAST_HOOK_MEMORY,
    LONGEST_GROUP,
)
from rules.pools.hook_names import LONGEST_POOL
from rules.pools.pod_security import PodSecurity
from rules.pools.pod_states import PodState
from rules.pools.volumes import Reclaim
from rules.pools.workloads import LONGEST_STATEFUL_POOL, Lifecycle, Workload

DEFINITION = crd_manifest()
(SERVED,) = DEFINITION["spec"]["versions"]
SCHEMA = SERVED["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]["properties"]


def field(path: str) -> dict[str, Any]:
    found: dict[str, Any] = {"properties": SPEC}
    for name in path.split("."):
        found = found["properties"][name]
    return found


def test_definition_has_the_names_of_the_adapter() -> None:
    names = DEFINITION["spec"]["names"]
    assert (DEFINITION["metadata"]["name"], DEFINITION["spec"]["group"]) == (CRD_NAME, GROUP)
    assert (names["kind"], names["plural"], SERVED["name"]) == (KIND, PLURAL, VERSION)


@pytest.mark.parametrize(
    ("path", "values", "default"),
    [
        ("security.podSecurity", list(PodSecurity), PodSecurity.RESTRICTED),
        ("workload", list(Workload), Workload.POD),
        ("lifecycle", list(Lifecycle), Lifecycle.EPHEMERAL),
        ("volumes.reclaim", list(Reclaim), Reclaim.RETAIN),
        ("containers.mode", [CONTAINERS_KUBERNETES, CONTAINERS_BUILDKIT, CONTAINERS_DIND], None),
    ],
)
def test_field_allows_the_values_that_the_code_knows(path: str, values: list[str], default: str | None) -> None:
    assert (field(path)["enum"], field(path).get("default")) == (values, default)


def test_resources_have_the_defaults_of_the_reader() -> None:
    defaults = {name: each["default"] for name, each in field("resources")["properties"].items() if "default" in each}
    assert {name: str(default) for name, default in defaults.items()} == {
        "cpu": DEFAULT_CPU,
        "memory": DEFAULT_MEMORY,
        "ephemeralStorage": DEFAULT_EPHEMERAL_STORAGE,
    }


def test_status_counts_the_states_of_pods() -> None:
    assert {*PodState, "stale", "lost"} <= set(SCHEMA["properties"]["status"]["properties"])


def test_rules_have_the_limits_of_the_code() -> None:
    rules = [each["rule"] for each in SCHEMA["x-kubernetes-validations"]]
    names = [rule for rule in rules if "size(self.metadata.name) <=" in rule]
    limits = [int(rule.partition("size(self.metadata.name) <= ")[2]) for rule in names]
    assert (len(names), limits) == (3, [54, LONGEST_POOL, LONGEST_STATEFUL_POOL])
    assert max(limits) + len("-0000000a") <= 63
    assert field("runnerGroup")["maxLength"] == LONGEST_GROUP
    assert f"self >= {LEAST_HOOK_MEMORY} " in field("containers.memoryMib")["x-kubernetes-validations"][0]["rule"]
