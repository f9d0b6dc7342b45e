"""A node that loses its control plane keeps its busy Pods (laws L3 and L12)."""

from __future__ import annotations

import pytest

from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import kept


@pytest.mark.xfail(strict=True, reason="admission adds tolerations of 300 s, then the taint manager deletes the Pod")
def test_runner_pods_tolerate_an_unreachable_node_without_end(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    (name,) = stage.pods()
    pod = stage.kube.request("GET", f"/api/v1/namespaces/{stage.namespace}/pods/{name}")
    tolerations = {each["key"]: each for each in pod["spec"]["tolerations"]}
    for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"):
        assert tolerations[key] == {"key": key, "operator": "Exists", "effect": "NoExecute"}
