"""The admission check refuses the garbage collector, on the real API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, make_client, object_path
from k8s_adapters.cluster.admission import COLLECTORS, PolicyAnswer, refuses_the_collector
from k8s_adapters.cluster.probe_pods import delete_probe
from lab.control_plane import ClusterAccess, write_kubeconfig
from tests.contract.k8s.test_client import service_account_token

pytestmark = pytest.mark.cluster

_PATH = "/apis/admissionregistration.k8s.io/v1"


def policy(name: str, namespace: str, *, users: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the policy and its binding to one namespace."""
    yield (
        "validatingadmissionpolicies",
        {
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {
                    "resourceRules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
                    ]
                },
                "validations": [
                    {
                        "expression": f"!(request.userInfo.username in {list(users)}) || "
                        "!('ostler.dev/pool' in oldObject.metadata.labels)",
                        "message": "not by the collector",
                    }
                ],
            },
        },
    )
    yield (
        "validatingadmissionpolicybindings",
        {
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
            },
        },
    )


def until(admin: KubeClient, namespace: str, *, refused: bool) -> PolicyAnswer:
    """Wait until the policy is in force, about a second after its creation, and return the answer."""
    deadline = time.monotonic() + 60
    while (found := refuses_the_collector(admin, namespace)).refused is not refused and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def pods(admin: KubeClient, namespace: str) -> list[Any]:
    return list(admin.request("GET", object_path("pods", namespace=namespace))["items"])


def test_without_a_policy_the_collector_may_and_with_it_not(admin: KubeClient, namespace: str) -> None:
    found = refuses_the_collector(admin, namespace)
    assert found.refused is False
    assert COLLECTORS[0] in found.why
    assert "ValidatingAdmissionPolicy" in (found.cure or "")
    for kind, body in policy(namespace, namespace, users=COLLECTORS):
        admin.request("POST", f"{_PATH}/{kind}", body=body)
    try:
        found = until(admin, namespace, refused=True)
        assert found.refused is True
        assert "not by the collector" in found.why
        assert found.cure is None
        assert pods(admin, namespace) == []
    finally:
        for kind, body in policy(namespace, namespace, users=COLLECTORS):
            admin.request("DELETE", f"{_PATH}/{kind}/{body['metadata']['name']}")


def test_a_namespace_that_is_not_there_is_said(admin: KubeClient) -> None:
    found = refuses_the_collector(admin, "nowhere-at-all")
    assert found.refused is None
    assert "nowhere-at-all" in found.why


def test_who_may_not_impersonate_or_make_pods_is_told_so(
    control_plane: ClusterAccess, admin: KubeClient, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    token = service_account_token(admin, namespace, "operator")
    write_kubeconfig(kubeconfig, url=control_plane.url, ca_file=control_plane.ca_file, token=token)
    client = make_client(kubeconfig=str(kubeconfig))
    found = refuses_the_collector(client, namespace)
    assert found.refused is None
    assert "could not be created" in found.why
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    verbs = ["create", "delete", "list"]
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
    admin.request("POST", f"{roles}/roles", body={"metadata": {"name": "pods"}, "rules": rules})
    binding = {
        "metadata": {"name": "pods"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pods"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}],
    }
    admin.request("POST", f"{roles}/rolebindings", body=binding)
    deadline = time.monotonic() + 60
    while "could not be created" in found.why and time.monotonic() < deadline:
        found = refuses_the_collector(client, namespace)
    assert (found.refused, found.cure and "impersonate" in found.cure) == (None, True)
    assert pods(admin, namespace) == []
    client.close()


def test_a_probe_fits_the_restricted_level(admin: KubeClient, namespace: str) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    admin.request("PATCH", f"/api/v1/namespaces/{namespace}", body=label, content_type=MERGE_PATCH)
    assert refuses_the_collector(admin, namespace).refused is False


def test_no_other_pod_is_taken_for_a_probe(admin: KubeClient, namespace: str) -> None:
    runner = {
        "metadata": {"name": "linux-1", "namespace": namespace, "uid": "1", "labels": {"ostler.dev/pool": "linux"}}
    }
    with pytest.raises(ValueError, match="is not a probe Pod"):
        delete_probe(admin, runner)
