"""`check-deploy` names the pools whose overlays read Secrets, which the admission policy for creations refuses."""

from __future__ import annotations

from typing import Any

import pytest

from deploys.deploy_plan import Deploy, judge
from deploys.deploy_secrets import note_secrets
from deploys.manifests import read_manifests
from lab import helm

pytestmark = pytest.mark.cluster

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
    """Return the manifests of the chart for a pool with this overlay."""
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
        "apiVersion": "ostler.dev/v1alpha1",
        "kind": "RunnerPool",
        "metadata": {"name": "small", "namespace": "ostler-runners"},
        "spec": {"podTemplate": {"spec": spec}},
    }
    policies = [each for each in rendered({}) if each["kind"] == "ValidatingAdmissionPolicy"]
    assert list(note_secrets(read_manifests([pool, *policies], namespace="ostler"))) == []


def policy(
    name: str = "ostler-creations", namespace: Any = "runners", expression: str = "secretKeyRef"
) -> dict[str, Any]:
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"namespaceSelector": selector}, "validations": [{"expression": expression}]},
    }


def reading(spec: Any, namespace: str = "runners") -> dict[str, Any]:
    metadata = {"name": "small", "namespace": namespace}
    spec = {"podTemplate": {"spec": spec}}
    return {"apiVersion": "ostler.dev/v1alpha1", "kind": "RunnerPool", "metadata": metadata, "spec": spec}


def noted(*bodies: dict[str, Any]) -> list[str]:
    return list(note_secrets(read_manifests(bodies, namespace="ostler")))


VOLUME = {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}


@pytest.mark.parametrize(("spec", "place"), SECRETS)
def test_each_way_to_a_secret_is_named_with_its_place(spec: dict[str, Any], place: str) -> None:
    (note,) = noted(policy(), reading(spec))
    assert note.startswith(f"pool runners/small reads Secrets ({place}), and policy ostler-creations refuses its Pods")


def test_several_secrets_are_named_once_each_and_in_order() -> None:
    twice = {"containers": [{"name": "r", "envFrom": [{"secretRef": {}}, {"configMapRef": {}}, {"secretRef": {}}]}]}
    (note,) = noted(policy(), reading(VOLUME | twice))
    assert "reads Secrets (envFrom of r, volume v), and" in note


@pytest.mark.parametrize(("namespace", "count"), [("runners", 1), (None, 1), (7, 1), ("others", 0)])
def test_a_policy_refuses_pods_of_the_namespaces_that_it_names(namespace: Any, count: int) -> None:
    assert len(noted(policy(namespace=namespace), reading(VOLUME))) == count
    any_namespace = policy()
    any_namespace["spec"] = {"validations": any_namespace["spec"]["validations"]}
    assert len(noted(any_namespace, reading(VOLUME))) == 1


@pytest.mark.parametrize(
    "other", [policy("ostler-deletions"), policy(expression="true"), {**policy(), "kind": "Secret"}]
)
def test_other_policies_refuse_no_secret(other: dict[str, Any]) -> None:
    assert noted(other, reading(VOLUME)) == []


@pytest.mark.parametrize("spec", NONE)
def test_a_pool_without_secrets_has_no_note_under_the_policy(spec: Any) -> None:
    assert noted(policy(), reading(spec)) == []


def test_every_pool_and_every_policy_has_its_note() -> None:
    more = reading(VOLUME) | {"metadata": {"name": "large", "namespace": "runners"}}
    notes = noted(reading(VOLUME), policy("b-creations"), policy("a-creations", None), more)
    assert [("small" in note, "a-creations" in note) for note in notes] == [
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    ]
