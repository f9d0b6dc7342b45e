"""Disk of the node: the fields in a pool's spec, and the requests of its Pods."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.runners import build_pod
from rules.pools.pool_spec import PoolSpec


def pool(resources: dict[str, Any], overlay: Any = None) -> PoolSpec:
    spec = {"image": "i", "runnerLabels": ["linux"], "resources": resources, "podTemplate": overlay}
    return read_pool({"metadata": {"uid": "u", "name": "small", "namespace": "n"}, "spec": spec})


def disk(of: PoolSpec) -> tuple[list[str | None], list[str | None]]:
    """Return the requests and the limits of poller and runner."""
    pod = build_pod(pool=of, name="small-0", attempt="a", dispatch_url="", audience="")
    containers = [each["resources"] for each in pod["spec"]["containers"]]
    return (
        [each["requests"].get("ephemeral-storage") for each in containers],
        [each["limits"].get("ephemeral-storage") for each in containers],
    )


def test_the_runner_requests_disk_and_has_no_limit_unless_the_pool_sets_one() -> None:
    assert disk(pool({})) == ([None, "10240Mi"], [None, None])
    assert disk(pool({"ephemeralStorage": "1G"})) == ([None, "954Mi"], [None, None])
    assert disk(pool({"ephemeralStorage": "1Gi", "ephemeralStorageLimit": "2Gi"})) == (
        [None, "1024Mi"],
        [None, "2048Mi"],
    )


def test_an_overlay_keeps_its_own_request() -> None:
    """An overlay that requested disk before the spec had a field for it keeps its request."""
    asked = {"containers": [{"name": "runner", "resources": {"requests": {"ephemeral-storage": "50Gi"}}}]}
    assert disk(pool({}, {"spec": asked})) == ([None, "50Gi"], [None, None])


def test_a_limit_of_an_overlay_alone_is_its_request_too() -> None:
    """The API server uses a limit as the request. Ostler's request would be above the limit, and every Pod refused."""
    limited = {"containers": [{"name": "runner", "resources": {"limits": {"ephemeral-storage": "5Gi"}}}]}
    assert disk(pool({}, {"spec": limited})) == ([None, None], [None, "5Gi"])


@pytest.mark.parametrize("resources", [{"ephemeralStorage": "20Gi"}, {"ephemeralStorageLimit": "20Gi"}])
def test_another_disk_is_another_template_so_that_idle_pods_are_rolled(resources: dict[str, Any]) -> None:
    assert pool(resources).template_hash != pool({}).template_hash


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"ephemeralStorageLimit": "5Gi"}, "less than ephemeralStorage, which is 10240Mi"),
        ({"ephemeralStorage": "2Gi", "ephemeralStorageLimit": "1Gi"}, "less than ephemeralStorage"),
        ({"ephemeralStorage": "much"}, "spec.resources.ephemeralStorage is not a quantity"),
        ({"ephemeralStorageLimit": "1e5000"}, "spec.resources.ephemeralStorageLimit must be more than 0"),
    ],
)
def test_a_disk_that_no_pod_could_have_is_a_problem_of_its_pool(resources: dict[str, Any], says: str) -> None:
    assert says in (pool(resources).problem or "")
