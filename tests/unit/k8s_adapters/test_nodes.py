"""Resources that a Pod requests from nodes, and the nodes that count."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from k8s_adapters.cluster.nodes import _ITEMS, _PAGES, _read, list_nodes, needs_of
from k8s_adapters.pools.pool_reader import read_pool
from ostler.errors import Retryable
from rules.pools.fleets import Fleet, Size, Taint, Toleration
from rules.pools.pool_spec import PoolSpec
from rules.sweeps.nodes import NodeHealth, Ready

POLLER = Size(50, 64)
LOST = (
    Toleration("node.kubernetes.io/unreachable", "Exists", "", "NoExecute"),
    Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),
)
"""Tolerations of every runner Pod, which keep the Pod on a node that is cut off."""


def pool(overlay: Any = None, **resources: str) -> PoolSpec:
    spec = {"image": "i", "runnerLabels": ["linux"], "resources": {"cpu": "2", "memory": "4Gi", **resources}}
    if overlay is not None:
        spec["podTemplate"] = overlay
    return read_pool({"metadata": {"uid": "u", "name": "small", "namespace": "n"}, "spec": spec})


def node(**parts: Any) -> Any:
    page = {"items": [{"metadata": {"name": "a", "labels": {"disk": "ssd"}}, **parts}]}
    items: Any = _PAGES.decode(orjson.dumps(page)).items
    return _read(items[0]).room


def test_a_pod_asks_for_its_runner_and_its_poller() -> None:
    needs = needs_of(pool())
    assert needs.size == Size(2000, 4096) + POLLER
    assert (needs.fleet, needs.tolerations) == (Fleet(), LOST)


def test_what_an_overlay_adds_counts() -> None:
    overlay = {
        "spec": {
            "nodeSelector": {"gpu": "a100", "disk": "ssd"},
            "tolerations": [
                {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "ci", "value": "yes"},
            ],
            "containers": [{"name": "docker", "resources": {"limits": {"cpu": "500m"}, "requests": {"memory": "1G"}}}],
            "initContainers": [
                {"name": "log", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "once", "resources": {"requests": {"cpu": "9"}}},
            ],
            "overhead": {"cpu": "250m", "memory": "160Mi"},
        }
    }
    needs = needs_of(pool(overlay))
    assert needs.size == Size(2000 + 50 + 500 + 100 + 250, 4096 + 64 + 954 + 160)
    assert str(needs.fleet) == "disk=ssd,gpu=a100"
    assert needs.tolerations == (
        *LOST,
        Toleration("gpu", "Exists", "", "NoSchedule"),
        Toleration("ci", "Equal", "yes", None),
    )


def test_forbidden_overlay_is_not_evaluated() -> None:
    needs = needs_of(pool({"spec": {"hostNetwork": True, "containers": "x"}}))
    assert needs.size == Size(2000, 4096) + POLLER


def test_a_node_counts_what_it_can_allocate_when_it_is_ready() -> None:
    found = node(
        spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}, {"key": "soft", "effect": "PreferNoSchedule"}]},
        status={
            "allocatable": {"cpu": "3920m", "memory": "7Gi", "pods": "110"},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
            "images": [{"names": ["i"]}],
        },
    )
    assert (found.usable, found.allocatable) == (True, Size(3920, 7168))
    assert found.taints == (Taint("gpu", "", "NoSchedule"),)
    assert dict(found.labels) == {"disk": "ssd"}


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
        {"spec": {"unschedulable": True}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    ],
)
def test_a_node_that_is_not_ready_or_cordoned_is_not_usable(parts: dict[str, Any]) -> None:
    assert not node(**parts).usable


def test_the_health_of_a_node_has_the_times_of_its_condition_and_its_taint() -> None:
    page = {
        "metadata": {"name": "a"},
        "spec": {
            "unschedulable": True,
            "taints": [
                {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-22T10:00:05Z"},
                {"key": "node.kubernetes.io/out-of-service", "value": "off", "effect": "NoExecute"},
            ],
        },
        "status": {
            "conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-22T10:00:00Z"}]
        },
    }
    found = _read(_ITEMS.decode(orjson.dumps(page)))
    assert (found.name, found.cordoned) == ("a", True)
    assert found.health == NodeHealth(
        Ready.UNKNOWN,
        ready_since=datetime(2026, 11, 22, 10, tzinfo=UTC),
        out_of_service=True,
        tainted=True,
        tainted_since=datetime(2026, 11, 22, 10, 0, 5, tzinfo=UTC),
    )


@pytest.mark.parametrize("status", [{}, {"conditions": [{"type": "Ready", "status": "Perhaps"}]}])
def test_a_node_that_does_not_say_whether_it_is_ready_is_not_unreachable(status: dict[str, Any]) -> None:
    found = _read(_ITEMS.decode(orjson.dumps({"metadata": {"name": "a"}, "status": status})))
    assert found.health == NodeHealth(None)


@pytest.mark.parametrize("page", [b"{}", b'{"items": [], "metadata": {"continue": "more"}}'])
def test_a_part_of_a_list_of_nodes_is_none(page: bytes) -> None:
    class Client:
        def get(self, _path: str, *, decode: Any, **_: Any) -> Any:
            return decode(page)

    client: Any = Client()
    with pytest.raises(Retryable):
        list_nodes(client)


@pytest.mark.parametrize(
    ("ready", "cordoned", "not_ready"),
    [("True", False, False), ("False", False, True), ("Unknown", False, True), ("Unknown", True, False)],
)
def test_a_node_is_not_ready_since_its_condition_changed(*, ready: str, cordoned: bool, not_ready: bool) -> None:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    found = node(spec={"unschedulable": cordoned}, status={"conditions": [condition]})
    assert found.not_ready is not_ready
    if not_ready:
        assert found.not_ready_since == datetime(2026, 1, 1, tzinfo=UTC)


def test_a_node_that_never_reported_is_no_lost_one() -> None:
    assert not node().not_ready
