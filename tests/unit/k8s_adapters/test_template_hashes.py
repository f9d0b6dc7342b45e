"""The template hash of an unchanged pool keeps its value across releases, so that an upgrade replaces no Pod."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners import pod_hash as hashes
from k8s_adapters.runners.pod_hash import pod_hash

CACHE = {"name": "cache", "mountPath": "/cache", "storage": "10Gi"}
SETS = {"workload": "StatefulSet", "volumes": {"claims": [{**CACHE, "storageClassName": "fast"}]}}
PERSISTENT = {"lifecycle": "persistent", "runnerGroup": "big", "registration": {"organization": "acme"}}

RECORDED: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "smallest": ({}, ("4442c40f8bc111c5", "f39f7756c94a64a1")),
    "resources": (
        {"resources": {"cpu": "1500m", "memory": "3000000Ki", "ephemeralStorage": "1Gi"}},
        ("f9c9171839851049", "c51b02947199fcb1"),
    ),
    "disk limit": ({"resources": {"ephemeralStorageLimit": "20Gi"}}, ("1530d8fdabed81da", "58e8ec20589e48d9")),
    "overlay": (
        {"podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "ci"}}},
        ("0c6c1d8af3f11a58", "1389f1b4a77815a9"),
    ),
    "empty overlay": ({"podTemplate": {}}, ("4442c40f8bc111c5", "f39f7756c94a64a1")),
    "refused overlay": ({"podTemplate": {"spec": {"hostNetwork": True}}}, ("2fcaaea319e45d0d", "f28e001a70be9bca")),
    "assigned user": ({"assignedUser": True}, ("b88eed25f26746ad", "3b6157caa9cec781")),
    "container jobs": ({"containers": {"mode": "kubernetes"}}, ("36920829e151fa4d", "2ab0c9b2852c5bb4")),
    "sized hook Pods": (
        {"containers": {"mode": "kubernetes", "vcpu": "2500m", "memoryMib": 1000}},
        ("c4267b215375cf45", "a1c5fc48e1d22aeb"),
    ),
    "builder": (
        {"containers": {"mode": "buildkit", "cache": "5Gi"}, "security": {"podSecurity": "privileged"}},
        ("74cf0b9d15d3c6da", "da3ca27f431f62b5"),
    ),
    "Docker": (
        {"containers": {"mode": "dind"}, "security": {"podSecurity": "privileged"}},
        ("4fa184b67029e422", "5efdf4675005df26"),
    ),
    "baseline": ({"security": {"podSecurity": "baseline"}}, ("d9ca6b71a95e1602", "11c3b67bb2c00345")),
    "escalation": (
        {"security": {"podSecurity": "baseline", "allowPrivilegeEscalation": True}},
        ("46cf6f7ee6118cf8", "e0e6277e93af4f40"),
    ),
    "StatefulSet": ({"workload": "StatefulSet"}, ("7d62b60974724a79", "a31416e08cdd604c")),
    "volumes": (SETS, ("5cd18fd8433edcec", "6b3e112da1574d8d")),
    "deleted volumes": (
        {**SETS, "volumes": {"claims": [CACHE], "reclaim": "Delete"}},
        ("1c6ec65a65a88602", "e300b1a3b9db6493"),
    ),
    "persistent": (PERSISTENT, ("9a405b5fefb098f5", "5fc547861d248cf8")),
    "persistent in a repository": (
        {**PERSISTENT, "registration": {"repository": "acme/shop"}},
        ("1fc79d24aa01917c", "00e878ee1c537f99"),
    ),
    "persistent with forks": ({**PERSISTENT, "allowForks": True}, ("2a0d341a9309aae7", "01e6a64ae40ea78a")),
    "persistent above restricted": (
        {**PERSISTENT, "allowForks": True, "security": {"podSecurity": "baseline", "allowForks": True}},
        ("5e485c7e02cec06f", "73b5157d2b2d21f2"),
    ),
    "fields that shape no Pod": (
        {"replicas": 3, "paused": True, "allowedAccounts": [7], "autoscaling": {"enabled": True}, "drainTimeout": "1h"},
        ("4442c40f8bc111c5", "f39f7756c94a64a1"),
    ),
}
"""Specs, with the hash of their template and the hash of their Pods."""


@pytest.mark.parametrize("name", RECORDED)
def test_hashes_of_an_unchanged_pool_keep_their_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "scripts_name", lambda: "scripts")  # its digest follows the scripts
    spec, recorded = RECORDED[name]
    metadata = {"name": "small", "namespace": "runners", "uid": "u-1"}

    pool = read_pool({"metadata": metadata, "spec": {"image": "runner:1", "runnerLabels": ["linux"], **spec}})
    pods = pod_hash(
        pool,
        dispatch_url="https://web/",
        audience="ostler",
        dispatch_ca="ca",
        hooks_image="hooks:1",
        builder_image="builder:1",
    )

    assert (pool.template_hash, pods) == recorded
