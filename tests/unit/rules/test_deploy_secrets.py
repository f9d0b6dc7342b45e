"""`check-deploy` says which pools read Secrets that the admission policy for creations keeps from their Pods."""

from __future__ import annotations

from typing import Any

import pytest

from lab import helm
from rules.deploy_plan import Deploy, judge
from rules.deploy_secrets import note_secrets
from rules.manifests import read_manifests

SECRETS: list[tuple[dict[str, Any], str]] = [
    ({"volumes": [{"name": "certs", "secret": {"secretName": "s"}}]}, "volume certs"),
    ({"volumes": [{"name": "all", "projected": {"sources": [{"secret": {"name": "s"}}]}}]}, "volume all"),
    ({"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]}, "volume v"),
    ({"containers": [{"name": "runner", "envFrom": [{"secretRef": {"name": "s"}}]}]}, "envFrom of runner"),
    (
        {"initContainers": [{"name": "i", "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"key": "k"}}}]}]},
        "env T of i",
    ),
]
NONE: list[Any] = [
    {"imagePullSecrets": [{"name": "registry"}]},
    {"volumes": [{"name": "work", "emptyDir": {}}, {"name": "c", "projected": {"sources": [{"configMap": {}}]}}]},
    {"containers": [{"name": "runner", "env": [{"name": "A", "value": "b"}], "envFrom": [{"configMapRef": {}}]}]},
    {"containers": "none", "volumes": [3]},
]


def rendered(spec: Any, **runners: Any) -> list[dict[str, Any]]:
    """Return what the chart makes of a pool with this overlay."""
    pool = {"image": "i", "runnerLabels": ["l"], "podTemplate": {"spec": spec}}
    return helm.render(values={"pools": {"small": pool}, "runners": runners})


@pytest.mark.parametrize(("spec", "place"), SECRETS)
def test_pool_that_reads_a_secret_is_noted_while_the_policy_refuses_it(spec: dict[str, Any], place: str) -> None:
    new = read_manifests(rendered(spec), namespace="ostler")
    (note,) = [each for each in judge(Deploy(None, new)).notes if "reads Secrets" in each]
    assert f"pool ostler-runners/small reads Secrets ({place}), and policy " in note
    assert "runners.allowSecrets" in note

    allowed = read_manifests(rendered(spec, allowSecrets=True), namespace="ostler")
    assert list(note_secrets(allowed)) == []


@pytest.mark.parametrize("spec", NONE)
def test_pool_that_reads_no_secret_is_not_noted(spec: Any) -> None:
    pool = {
        "apiVersion": "ostler.dev/v1alpha1", "kind": "RunnerPool",
        "metadata": {"name": "small", "namespace": "ostler-runners"}, "spec": {"podTemplate": {"spec": spec}},
    }  # fmt: skip
    policies = [each for each in rendered({}) if each["kind"] == "ValidatingAdmissionPolicy"]
    assert list(note_secrets(read_manifests([pool, *policies], namespace="ostler"))) == []
