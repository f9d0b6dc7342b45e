"""A real API server, which refuses unknown fields, accepts every object that the chart renders."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient
from k8s_adapters.calls.retry import answer_of
from lab import helm
from lab.manifests import Kinds
from ostler.errors import Forbidden, Invalid, UpstreamError
from tests.contract.chart.values import MATRIX

PRODUCT = ("web", "worker", "beat", "watch", "flower", "migrate", "uninstall")


def merged(values: dict[str, Any], runners: str) -> dict[str, Any]:
    """Return the values with this namespace for the runners."""
    return values | {"runners": {"create": True, **values.get("runners", {}), "namespace": runners}}


def rendered(values: dict[str, Any], namespace: str, runners: str) -> list[helm.Manifest]:
    return helm.render(values=merged(values, runners), namespace=namespace, crds=True)


def pods(objects: list[helm.Manifest]) -> dict[str, dict[str, Any]]:
    """Return the Pod templates by the name of the object that contains them."""
    return {
        each["metadata"]["name"]: each["spec"]["template"] for each in objects if each["kind"] in {"Deployment", "Job"}
    }


def refusal(meaning: type[UpstreamError], kinds: Kinds, manifest: helm.Manifest) -> str:
    """Return why the server refuses an object."""
    with pytest.raises(meaning) as caught:
        kinds.check(manifest)
    answer = answer_of(caught.value)
    assert answer is not None
    return answer.message


@pytest.mark.parametrize("which", MATRIX)
def test_the_api_server_takes_every_object(kinds: Kinds, namespace: str, runners: str, which: str) -> None:
    for each in rendered(MATRIX[which], namespace, runners):
        if each["kind"] == "Namespace" or each["metadata"]["name"] == "runnerpools.ostler.dev":
            continue  # there already; the next test and test_definition.py check them
        kinds.check(each)


def test_the_namespace_of_the_runners_enforces_the_restricted_level_and_stays(
    kinds: Kinds, namespace: str, runners: str
) -> None:
    (found,) = [each for each in rendered({}, namespace, f"{runners}-new") if each["kind"] == "Namespace"]

    kinds.check(found)

    assert found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    existing = {"runners": {"create": False}}
    assert "Namespace" not in {each["kind"] for each in rendered(existing, namespace, runners)}


@pytest.mark.parametrize("which", MATRIX)
def test_every_pod_of_the_control_plane_is_taken_under_the_restricted_level(
    admin: KubeClient, kinds: Kinds, namespace: str, runners: str, which: str
) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    admin.request("PATCH", f"/api/v1/namespaces/{namespace}", body=label, content_type=MERGE_PATCH)
    objects = rendered(MATRIX[which], namespace, runners)
    for each in objects:
        if each["kind"] == "ServiceAccount":
            kinds.apply(each)

    for name, template in pods(objects).items():
        body = {"apiVersion": "v1", "kind": "Pod", **template}
        body["metadata"] = {**template["metadata"], "name": name, "namespace": namespace}
        kinds.check(body)
        for container in template["spec"]["containers"]:
            container["securityContext"] = {}
        assert "restricted" in refusal(Forbidden, kinds, body)


def test_beat_and_flower_have_no_token_and_each_process_an_identity_of_its_own(namespace: str, runners: str) -> None:
    found = pods(rendered({}, namespace, runners))

    tokens = {
        template["metadata"]["labels"]["app.kubernetes.io/component"]: template["spec"]["automountServiceAccountToken"]
        for template in found.values()
    }
    assert tokens == {
        "web": True,
        "worker": True,
        "watch": True,
        "beat": False,
        "flower": False,
        "migrate": False,
        "uninstall": True,
    }
    accounts = [template["spec"]["serviceAccountName"] for template in found.values()]
    assert len(set(accounts)) == len(accounts) == len(PRODUCT)


def test_an_object_with_a_misspelt_field_is_refused(kinds: Kinds, namespace: str, runners: str) -> None:
    objects = rendered(MATRIX["everything"], namespace, runners)
    for kind in ("Deployment", "ScaledObject", "PodMonitor", "PrometheusRule"):
        each = next(each for each in objects if each["kind"] == kind)
        each["spec"]["replica"] = 2
        assert 'unknown field "spec.replica"' in refusal(Invalid, kinds, each)
