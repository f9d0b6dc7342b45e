"""What goes with a deploy, and what must not; what of an admission policy is seen in its text."""

from __future__ import annotations

from typing import Any

import pytest

from rules.deploy_admission import judge_admission
from rules.deploy_changes import DRAIN_FINALIZER, Action, changes_of, judge_changes
from rules.deploy_plan import Deploy, judge
from rules.deploys import Danger
from rules.manifests import Manifests, read_manifests, told

RUNNERS = frozenset({"runners"})
KEPT = {"helm.sh/resource-policy": "keep"}
HOOK = {"helm.sh/hook": "pre-upgrade"}


def thing(kind: str, name: str, *, group: str = "v1", spec: Any = None, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec or {}}


def pool(name: str, label: str = "linux", image: str = "r:1", **metadata: Any) -> dict[str, Any]:
    spec = {"image": image, "runnerLabels": [label]}
    return thing("RunnerPool", name, group="ostler.dev/v1alpha1", spec=spec, namespace="runners", **metadata)


def read(*bodies: dict[str, Any]) -> Manifests:
    return read_manifests(bodies, namespace="ostler")


def changes(old: Manifests, new: Manifests) -> list[tuple[str, str, str | None]]:
    return [
        (each.action, told(each.key), told(each.to) if each.to else None)
        for each in changes_of(old.objects, new.objects)
    ]


def dangers(old: Manifests, new: Manifests, live: Manifests | None = None) -> list[Danger]:
    found = changes_of(old.objects, new.objects)
    return [e.danger for e in judge_changes(found, live=live.objects if live else None, namespaces=RUNNERS)]


def test_what_goes_is_told_apart_from_what_is_renamed_kept_or_a_hook() -> None:
    old = read(
        pool("a"), pool("b", label="windows"), thing("ConfigMap", "stays"), thing("Secret", "gone"),
        thing("Job", "hook", annotations=HOOK), thing("Namespace", "runners", annotations=KEPT),
    )  # fmt: skip
    new = read(pool("a2", image="r:2"), thing("ConfigMap", "stays"), thing("Secret", "new", spec={"other": 1}))
    assert changes(old, new) == [
        (Action.KEPT, "Namespace runners", None),
        (Action.RENAMED, "RunnerPool runners/a", "RunnerPool runners/a2"),
        (Action.DELETED, "RunnerPool runners/b", None),
        (Action.DELETED, "Secret ostler/gone", None),
    ]


def test_a_pool_may_go_when_its_live_object_has_the_finalizer() -> None:
    old, new = read(pool("a"), pool("b", label="windows")), read(pool("a"))
    assert dangers(old, new) == []  # nobody asked the cluster
    assert dangers(old, new, old) == [Danger.POOL_WITHOUT_FINALIZER]
    assert dangers(old, new, read(pool("b", finalizers=["other"]))) == [Danger.POOL_WITHOUT_FINALIZER]
    assert dangers(old, new, read(pool("b", finalizers=["other", DRAIN_FINALIZER]))) == []
    assert dangers(old, new, read(pool("a"))) == []  # it is gone already


def test_a_pool_that_moves_to_another_namespace_is_renamed_too() -> None:
    moved = pool("a")
    moved["metadata"] = {"name": "a", "namespace": "elsewhere"}
    assert dangers(read(pool("a")), read(moved), read(pool("a"))) == [Danger.POOL_WITHOUT_FINALIZER]


def test_only_the_runners_namespace_must_stay() -> None:
    old = read(thing("Namespace", "runners"), thing("Namespace", "others"))
    assert dangers(old, read()) == [Danger.NAMESPACE_DELETED]


def guard(*, spec: dict[str, Any] | None = None, binding: dict[str, Any] | None = None) -> Manifests:
    """Return an admission policy that guards, but for what is said otherwise."""
    group = "admissionregistration.k8s.io/v1"
    rules = {"resourceRules": [{"operations": ["DELETE"], "resources": ["pods"]}]}
    expression = "!(request.userInfo.username.endsWith('generic-garbage-collector') && 'ostler.dev/pool' in labels)"
    policy = {"matchConstraints": rules, "validations": [{"expression": expression}], **(spec or {})}
    bound = {"policyName": "guard", "validationActions": ["Deny"], **(binding or {})}
    return read(
        thing("ValidatingAdmissionPolicy", "guard", group=group, spec=policy),
        thing("ValidatingAdmissionPolicyBinding", "any", group=group, spec=bound),
    )


def of(namespace: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}


_CREATIONS = [{"operations": ["CREATE"], "resources": ["pods"]}]
_ALL = [{"operations": ["*"], "resources": ["*"]}]


@pytest.mark.parametrize(
    ("manifests", "refused"),
    [
        (guard(), False),
        (guard(binding={"matchResources": of("runners")}), False),
        (guard(binding={"matchResources": of("others")}), True),
        (guard(binding={"validationActions": ["Audit"]}), True),
        (guard(binding={"policyName": "other"}), True),
        (guard(spec={"failurePolicy": "Ignore"}), True),
        (guard(spec={"validations": [{"expression": "true"}]}), True),
        (guard(spec={"matchConstraints": {"resourceRules": _CREATIONS}}), True),
        (guard(spec={"matchConstraints": {"resourceRules": _ALL}}), False),
        (guard(spec={"matchConstraints": {"resourceRules": _ALL, **of("others")}}), True),
        (guard(binding={"matchResources": {"objectSelector": {"matchExpressions": [
            {"key": "ostler.dev/runner-pool-owner", "operator": "DoesNotExist"}]}}}), True),
        (read(), True),
    ],
)  # fmt: skip
def test_an_admission_policy_guards_or_it_is_missing(manifests: Manifests, *, refused: bool) -> None:
    assert bool(list(judge_admission(manifests, RUNNERS))) is refused


def test_what_the_cluster_was_not_asked_and_what_is_not_evaluated_is_noted() -> None:
    theirs = thing("CiliumNetworkPolicy", "theirs", group="cilium.io/v2")
    verdict = judge(Deploy(read(pool("a")), read(theirs), runners=RUNNERS))
    notes = "\n".join(verdict.notes)
    assert "CiliumNetworkPolicy ostler/theirs" in notes
    assert "only with --live" in notes
    assert "no Pods of web" in notes


def test_what_helm_keeps_is_in_force_after_the_deploy() -> None:
    """Uninstalling the policies does not take away the one that is kept, for the Pods that are busy then."""
    rule = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    base = thing("NetworkPolicy", "base", group="networking.k8s.io/v1", spec=rule, namespace="runners")

    def found(old: Manifests) -> set[Danger]:
        return {each.danger for each in judge(Deploy(old, read(pool("a")), runners=RUNNERS)).refusals}

    without_guard = {Danger.ADMISSION_MISSING}
    assert found(read(base, pool("a"))) == {Danger.NOT_RULED, Danger.PEERS_CHANGE} | without_guard
    base["metadata"]["annotations"] = KEPT
    assert found(read(base, pool("a"))) == without_guard
