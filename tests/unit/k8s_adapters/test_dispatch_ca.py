"""The CAs of the address that runner Pods poll: mounted for https only, and not part of any other Pod."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.pod_hash import pod_hash
from k8s_adapters.runners.runners import build_pod
from rules.pools.pod_template import refusals
from rules.pools.pool_spec import PoolSpec

PLAIN, BY_TLS = "http://web/runners/v1/dispatch", "https://web/runners/v1/dispatch"
CA = "ostler-polls-ca"


@pytest.fixture
def pool() -> PoolSpec:
    spec = {"image": "runner:1", "runnerLabels": ["small"], "resources": {"cpu": "2", "memory": "4Gi"}, "replicas": 1}
    metadata = {"name": "small", "namespace": "runners", "uid": "u-1", "generation": 1, "resourceVersion": "1"}
    return read_pool({"metadata": metadata, "spec": spec})


def built(pool: PoolSpec, url: str, ca: str | None) -> dict[str, Any]:
    return build_pod(pool=pool, name="small-0", attempt="a", dispatch_url=url, audience="o", dispatch_ca=ca)


def test_poller_alone_reads_the_cas_from_a_folder_that_follows_the_configmap(pool: PoolSpec) -> None:
    spec = built(pool, BY_TLS, CA)["spec"]
    poller, runner = spec["containers"]
    (mount,) = (each for each in poller["volumeMounts"] if each["name"] == "ostler-ca")
    assert mount["readOnly"]
    assert "subPath" not in mount, "the kubelet brings no change to a file that is mounted alone"
    environment = {each["name"]: each["value"] for each in poller["env"]}
    assert environment["OSTLER_CA_FILE"] == environment["CURL_CA_BUNDLE"] == f"{mount['mountPath']}/ca.crt"
    assert "ostler-ca" not in str(runner)
    (volume,) = (each for each in spec["volumes"] if each["name"] == "ostler-ca")
    assert volume["configMap"]["name"] == CA
    assert volume["configMap"]["optional"], "a Pod without it would not start"


@pytest.mark.parametrize(("url", "ca"), [(PLAIN, CA), (PLAIN, None), (BY_TLS, None)])
def test_pod_without_the_cas_is_built_as_before(pool: PoolSpec, url: str, ca: str | None) -> None:
    pod = built(pool, url, ca)
    assert "ostler-ca" not in str(pod)
    assert "CURL_CA_BUNDLE" not in str(pod)
    assert pod_hash(pool, dispatch_url=url, audience="o", dispatch_ca=ca) == pod_hash(
        pool, dispatch_url=url, audience="o"
    )


def test_pods_with_and_without_the_cas_have_different_hashes(pool: PoolSpec) -> None:
    assert pod_hash(pool, dispatch_url=BY_TLS, audience="o", dispatch_ca=CA) != pod_hash(
        pool, dispatch_url=BY_TLS, audience="o"
    )


def test_overlay_may_not_bring_a_volume_of_that_name() -> None:
    overlay = {"spec": {"volumes": [{"name": "ostler-ca", "configMap": {"name": "mine"}}]}}
    assert refusals(overlay) == ("podTemplate.spec.volumes[ostler-ca] is reserved for Ostler",)
