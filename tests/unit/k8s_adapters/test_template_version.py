"""The Pod that is built from a spec changes only together with `_TEMPLATE_VERSION`, which rolls the live Pods."""

from __future__ import annotations

import hashlib
import json

from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.pod_hash import pod_hash
from k8s_adapters.runners.runner_scripts import scripts_name
from k8s_adapters.runners.runners import build_pod
from rules.pools.pool_spec import _TEMPLATE_VERSION

BUILT = (4, "86db1d609016a85a")
"""The version, and the hash of its Pod. A changed Pod needs the next version, here and in `rules.pools.pool_spec`."""


def test_built_pod_changes_only_with_the_template_version() -> None:
    pool = read_pool(
        {
            "metadata": {
                "name": "small",
                "namespace": "runners",
                "uid": "u-1",
                "generation": 1,
                "resourceVersion": "1",
            },
            "spec": {
                "image": "runner:1",
                "runnerLabels": ["self-hosted", "small"],
                "resources": {"cpu": "2", "memory": "4Gi"},
                "replicas": 1,
            },
        }
    )
    assert pool.problem is None
    built = build_pod(
        pool=pool,
        name="small-0",
        attempt="a-1",
        dispatch_url="http://web/",
        audience="ostler",
        service_account_uid="u-2",
    )
    content = (
        json.dumps(built, sort_keys=True)
        .replace(pod_hash(pool, dispatch_url="http://web/", audience="ostler"), "hash")
        .replace(scripts_name(), "scripts")  # its digest is part of the hash of the Pod
    )

    found = (_TEMPLATE_VERSION, hashlib.sha256(content.encode()).hexdigest()[:16])

    assert found == BUILT, "raise _TEMPLATE_VERSION, so that Pods of the version before are rolled, and pin both here"
