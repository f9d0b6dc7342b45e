"""The project's chart, installed by the real Helm on the real API server, and the output of `check-deploy --live`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient
from k8s_adapters.names import API_VERSION, DRAIN_FINALIZER, PLURAL
from lab.control_plane import ClusterAccess
from lab.helm import CHART, uninstall, upgrade_install
from ostler.errors import Gone
from tests.integration.deploys.operator import Operator

_GUARD = "/apis/admissionregistration.k8s.io/v1"


@dataclass(frozen=True)
class Installed:
    """The installed chart, with two pools."""

    namespace: str
    runners: str
    access: ClusterAccess
    operator: Operator

    def values(self, *pools: str, **more: Any) -> dict[str, Any]:
        specs = {name: {"image": "runner:1", "runnerLabels": [name]} for name in pools}
        return {"runners": {"namespace": self.runners}, "pools": specs, **more}

    def refusals(self, *pools: str, **more: Any) -> list[str]:
        """Return the refusals of check-deploy for an upgrade to these pools and values."""
        new = self.operator.write("new.yaml", CHART, self.namespace, **self.values(*pools, **more))
        done = self.operator.run(
            "check-deploy", new, "--live", "-n", self.namespace, "--kubeconfig", str(self.access.kubeconfig), "--json"
        )
        told = json.loads(done.out)
        assert done.status == (0 if told["safe"] else 1)
        assert told["notes"] == []
        return [f"{each['danger']}: {' '.join(each['subjects'])}" for each in told["refusals"]]


@pytest.fixture
def installed(
    namespace: str, control_plane: ClusterAccess, admin: KubeClient, operator: Operator
) -> Iterator[Installed]:
    found = Installed(namespace, f"{namespace}-r", control_plane, operator)
    upgrade_install(CHART, found.values("linux", "arm"), kubeconfig=control_plane.kubeconfig, namespace=namespace)
    yield found
    uninstall(kubeconfig=control_plane.kubeconfig, namespace=namespace)
    for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
        for each in admin.request("GET", f"{_GUARD}/{kind}")["items"]:
            if each["metadata"]["name"].startswith(namespace):
                admin.request("DELETE", f"{_GUARD}/{kind}/{each['metadata']['name']}")
    admin.request("DELETE", f"/api/v1/namespaces/{found.runners}")


def test_upgrades_are_safe_and_pools_that_go_need_their_finalizer(installed: Installed, admin: KubeClient) -> None:
    deadline = time.monotonic() + 60
    while (found := installed.refusals("linux", "arm")) and time.monotonic() < deadline:  # the policy comes into force
        time.sleep(0.2)
    assert found == []
    assert installed.refusals("linux", "arm", image={"tag": "2"}, web={"replicas": 1}) == []
    gone = f"pool-without-finalizer: RunnerPool {installed.runners}/arm"
    assert installed.refusals("linux") == [gone]
    assert installed.refusals("linux", "arm64") == [gone]
    path = f"/apis/{API_VERSION}/namespaces/{installed.runners}/{PLURAL}/arm"
    admin.request("PATCH", path, body={"metadata": {"finalizers": [DRAIN_FINALIZER]}}, content_type=MERGE_PATCH)
    try:
        assert installed.refusals("linux") == []
        assert installed.refusals("linux", "arm64") == []
        # The upgrade that was found safe is done: what check-deploy read was what Helm does.
        upgrade_install(
            CHART, installed.values("linux"), kubeconfig=installed.access.kubeconfig, namespace=installed.namespace
        )
        assert "deletionTimestamp" in admin.request("GET", path)["metadata"]
        assert installed.refusals("linux") == []
    finally:
        admin.request("PATCH", path, body={"metadata": {"finalizers": []}}, content_type=MERGE_PATCH)
    more = {"networkPolicies": {"runners": {"except": ["198.51.100.0/24"]}}}
    assert any(each.startswith("peers-change:") for each in installed.refusals("linux", **more))


def test_what_guards_busy_pods_stays_when_the_release_goes(installed: Installed, admin: KubeClient) -> None:
    uninstall(kubeconfig=installed.access.kubeconfig, namespace=installed.namespace)
    policies = f"/apis/networking.k8s.io/v1/namespaces/{installed.runners}/networkpolicies"
    assert admin.request("GET", f"{policies}/runners-base")["metadata"]["name"] == "runners-base"
    with pytest.raises(Gone):
        admin.request("GET", f"{policies}/runners-dispatch")
    upgrade_install(
        CHART, installed.values("linux"), kubeconfig=installed.access.kubeconfig, namespace=installed.namespace
    )
    assert admin.request("GET", f"{policies}/runners-dispatch")["metadata"]["name"] == "runners-dispatch"


def test_second_namespace_is_left_after_its_pool_is_deleted(installed: Installed, admin: KubeClient) -> None:
    elevated = f"{installed.runners}-elevated"
    level = {"allowedPodSecurity": "baseline", "elevatedPools": {"sudo": "baseline"}}
    sudo = {"image": "runner:1", "runnerLabels": ["sudo"], "security": {"podSecurity": "baseline"}}
    linux = installed.values("linux")["pools"]
    up = installed.values(runners={"namespace": installed.runners, **level}) | {"pools": {**linux, "sudo": sudo}}
    upgrade_install(CHART, up, kubeconfig=installed.access.kubeconfig, namespace=installed.namespace)
    try:
        assert f"namespace-left: {elevated}" in installed.refusals("linux")
        admin.request("DELETE", f"/apis/{API_VERSION}/namespaces/{elevated}/{PLURAL}/sudo")
        deadline = time.monotonic() + 60
        while (found := installed.refusals("linux")) and time.monotonic() < deadline:  # the policy comes into force
            time.sleep(0.2)
        assert found == []
        values = installed.values("linux")
        upgrade_install(CHART, values, kubeconfig=installed.access.kubeconfig, namespace=installed.namespace)
        assert installed.refusals("linux") == []
    finally:
        admin.request("DELETE", f"/api/v1/namespaces/{elevated}")
