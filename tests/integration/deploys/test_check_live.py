"""`ostler check-deploy --live` on the real API server, with a release that the real Helm installed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploys.deploy_changes import DRAIN_FINALIZER
from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, object_path
from k8s_adapters.names import API_VERSION, PLURAL
from lab.control_plane import ClusterAccess
from lab.helm import uninstall, upgrade_install
from ostler.errors import Gone
from tests.integration.deploys.charts import SMALL, broken_chart
from tests.integration.deploys.operator import Done, Operator


@dataclass(frozen=True)
class Release:
    """The installed small chart: the control plane in one namespace, runners in another."""

    namespace: str
    runners: str
    access: ClusterAccess
    operator: Operator
    admin: KubeClient

    def write(self, name: str, chart: Path = SMALL, **values: Any) -> str:
        return self.operator.write(name, chart, self.namespace, runners=self.runners, **values)

    def check(self, *arguments: str) -> Done:
        kubeconfig = ("--kubeconfig", str(self.access.kubeconfig))
        return self.operator.run("check-deploy", *arguments, "--live", "-n", self.namespace, *kubeconfig)

    def dangers(self, *arguments: str) -> set[str]:
        return {each["danger"] for each in json.loads(self.check(*arguments, "--json").out)["refusals"]}

    def patch_pool(self, name: str, metadata: dict[str, Any]) -> None:
        path = f"/apis/{API_VERSION}/namespaces/{self.runners}/{PLURAL}/{name}"
        self.admin.request("PATCH", path, body={"metadata": metadata}, content_type=MERGE_PATCH)

    def create_pod(self, name: str, labels: dict[str, str]) -> None:
        _until_there(self.admin, object_path("serviceaccounts", namespace=self.runners, name="default"))
        pod = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [{"name": "runner", "image": "r"}]},
        }
        self.admin.request("POST", object_path("pods", namespace=self.runners), body=pod)


@pytest.fixture
def release(namespace: str, control_plane: ClusterAccess, admin: KubeClient, operator: Operator) -> Iterator[Release]:
    runners = f"{namespace}-runners"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": runners}})
    values = {"runners": runners}
    upgrade_install(SMALL, values, kubeconfig=control_plane.kubeconfig, namespace=namespace)
    found = Release(namespace, runners, control_plane, operator, admin)
    new = found.write("first.yaml")
    deadline = time.monotonic() + 60
    while "admission-off" in found.dangers(new) and time.monotonic() < deadline:
        time.sleep(0.2)
    yield found
    uninstall(kubeconfig=control_plane.kubeconfig, namespace=namespace)
    admin.request("DELETE", f"/api/v1/namespaces/{runners}")


def test_a_new_image_is_safe_with_and_without_old(release: Release) -> None:
    new = release.write("new.yaml", tag="2")
    for arguments in ((new,), (release.write("old.yaml", tag="1"), new)):
        done = release.check(*arguments)
        assert (done.status, done.err) == (0, ""), done.out
        assert "note:" not in done.out
        assert f"{release.runners}/linux" in done.out


def test_a_pool_that_goes_needs_its_finalizer(release: Release) -> None:
    new = release.write("new.yaml", pools=["linux"])
    done = release.check(new)
    assert done.status == 1
    assert f"REFUSED pool-without-finalizer (RunnerPool {release.runners}/windows)" in done.out
    release.patch_pool("windows", {"finalizers": [DRAIN_FINALIZER]})
    try:
        assert release.check(new).status == 0
        assert release.check(release.write("old.yaml"), new).status == 0
    finally:
        release.patch_pool("windows", {"finalizers": []})


def test_an_admission_policy_that_is_not_in_force_is_refused_though_new_has_it(release: Release) -> None:
    new = release.write("new.yaml", tag="2")
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    release.admin.request("DELETE", f"{path}/{release.namespace}-guard")
    deadline = time.monotonic() + 60
    while not (found := release.dangers(new)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert found == {"admission-off"}


def test_policies_of_others_and_marks_of_tools_are_taken_as_they_are(release: Release) -> None:
    policies = f"/apis/networking.k8s.io/v1/namespaces/{release.runners}/networkpolicies"
    mark = {"metadata": {"annotations": {"argocd.argoproj.io/tracking-id": "x", "meta.helm.sh/more": "y"}}}
    release.admin.request("PATCH", f"{policies}/runners-base", body=mark, content_type=MERGE_PATCH)
    old, new = release.write("old.yaml", tag="1"), release.write("new.yaml", tag="2")
    assert release.check(new).status == release.check(old, new).status == 0
    theirs = {
        "metadata": {"name": "theirs"},
        "spec": {"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "192.168.0.0/16"}}]}]},
    }
    release.admin.request("POST", policies, body=theirs)
    assert release.dangers(new) == {"private-egress"}


def test_a_deploy_of_the_original_fault_is_refused(release: Release, tmp_path: Path) -> None:
    broken = broken_chart("the_original_fault", tmp_path)
    assert release.dangers(release.write("new.yaml", broken, tag="2")) >= {"rolling-peer", "peers-change"}


def test_labels_of_runner_pods_that_are_there_count_too(release: Release) -> None:
    labels = {"ostler.dev/pool": "linux", "ostler.dev/runner-pool-owner": "7", "app.kubernetes.io/component": "web"}
    release.create_pod("odd", labels)
    theirs = {
        "metadata": {"name": "odd"},
        "spec": {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "web"}}, "ingress": [{}]},
    }
    policies = f"/apis/networking.k8s.io/v1/namespaces/{release.runners}/networkpolicies"
    release.admin.request("POST", policies, body=theirs)
    assert release.dangers(release.write("new.yaml", tag="2")) == {"open-ingress"}


def test_refusal_of_a_left_namespace_counts_pods_whatever_the_options(release: Release) -> None:
    for name in ("one", "two"):
        release.create_pod(name, {"ostler.dev/pool": "linux"})
    new = release.operator.write("new.yaml", SMALL, release.namespace, runners=f"{release.namespace}-other", pools=[])
    for arguments in ((), ("--runners-namespace", f"{release.namespace}-other")):
        told = json.loads(release.check(new, *arguments, "--json").out)["refusals"]
        (left,) = (each["reason"] for each in told if each["danger"] == "namespace-left")
        assert f"reads namespace {release.runners}" in left
        assert "it contains 2 pools (linux, windows) and 2 runner Pods." in left


def test_a_cluster_that_cannot_be_read_is_no_verdict(release: Release, tmp_path: Path) -> None:
    text = release.access.kubeconfig.read_text().replace(release.access.token, "wrong")
    (tmp_path / "wrong").write_text(text)
    new = release.write("new.yaml")
    done = release.operator.run("check-deploy", new, "--live", "--kubeconfig", str(tmp_path / "wrong"))
    assert done.status == 2
    assert "the cluster refuses the request: Unauthorized" in done.err
    assert done.err.count("\n") == 1


def _until_there(admin: KubeClient, path: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            admin.request("GET", path)
        except Gone:
            time.sleep(0.1)
        else:
            return
