"""Container jobs in the chart's values: the sidecar image for workers, and pools with `containers`."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pool_reader import read_pool
from lab import helm

Json = dict[str, Any]

ENABLED: Json = {
    "runners": {"containers": {"enabled": True}},
    "networkPolicies": {"apiServer": {"addresses": ["10.0.0.1/32"]}},
}
IMAGE: Json = {"repository": "registry.example/ostler", "tag": "7"}
POOL: Json = {"image": "runner:1", "runnerLabels": ["linux"]}


def variables(values: Json) -> dict[str, dict[str, str]]:
    """Return the environment of the container of each Deployment."""
    found = {}
    for each in helm.render(values=values):
        if each["kind"] == "Deployment":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            found[each["metadata"]["name"]] = {
                variable["name"]: variable.get("value", "") for variable in container["env"]
            }
    return found


def test_workers_alone_get_the_image_of_the_sidecar_when_container_jobs_are_enabled() -> None:
    found = variables({**ENABLED, "image": IMAGE})

    assert {name for name, known in found.items() if "OSTLER_HOOKS_IMAGE" in known} == {"ostler-worker-default"}
    assert found["ostler-worker-default"]["OSTLER_HOOKS_IMAGE"] == "registry.example/ostler:7"


def test_digest_of_the_image_has_precedence_for_the_sidecar_too() -> None:
    digest = f"sha256:{'0' * 64}"
    found = variables({**ENABLED, "image": {**IMAGE, "digest": digest}})

    assert found["ostler-worker-default"]["OSTLER_HOOKS_IMAGE"] == f"registry.example/ostler@{digest}"


def test_workers_get_no_image_by_default() -> None:
    assert not any("OSTLER_HOOKS_IMAGE" in known for known in variables({}).values())


@pytest.mark.parametrize("level", ["restricted", "baseline", "privileged"])
def test_workers_get_the_images_of_builders_only_if_pools_may_be_privileged(level: str) -> None:
    runners = {"allowedPodSecurity": level, "buildkit": {"image": "buildkit:7"}, "dind": {"image": "docker:7"}}
    found = variables({"runners": runners})

    for variable, image in (("OSTLER_BUILDKIT_IMAGE", "buildkit:7"), ("OSTLER_DIND_IMAGE", "docker:7")):
        known = {name: known[variable] for name, known in found.items() if variable in known}
        assert known == ({"ostler-worker-default": image} if level == "privileged" else {})


@pytest.mark.parametrize("variable", ["OSTLER_HOOKS_IMAGE", "OSTLER_BUILDKIT_IMAGE", "OSTLER_DIND_IMAGE"])
def test_image_of_a_sidecar_is_no_setting_of_the_values(variable: str) -> None:
    with pytest.raises(helm.HelmRefused, match=variable):
        helm.render(values={"settings": {variable: "mine:1"}})


def test_pool_of_the_values_may_have_container_jobs() -> None:
    containers = {"mode": "kubernetes", "vcpu": "500m", "memoryMib": 1024}
    rendered = helm.render(values={**ENABLED, "pools": {"small": {**POOL, "containers": containers}}})

    (pool,) = (each for each in rendered if each["kind"] == "RunnerPool")
    seen = read_pool({**pool, "metadata": {**pool["metadata"], "uid": "u"}})
    assert seen.problem is None
    assert seen.containers is not None
    assert (seen.containers.vcpu_millicores, seen.containers.memory_mib) == (500, 1024)


@pytest.mark.parametrize(
    ("containers", "named"),
    [({"mode": "docker"}, "mode"), ({}, "mode"), ({"mode": "kubernetes", "memory": 1}, "memory")],
)
def test_wrong_containers_of_a_pool_are_refused_by_the_schema(containers: Json, named: str) -> None:
    with pytest.raises(helm.HelmRefused, match=f"(?s){named}"):
        helm.render(values={**ENABLED, "pools": {"small": {**POOL, "containers": containers}}})
