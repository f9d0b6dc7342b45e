"""Check that an admission policy in the manifests protects runner Pods from the cluster's garbage collector.

The check reads only the form of the policy: the objects and operations that it matches, its `failurePolicy`, the names
in its text, and its bindings with the action Deny. Only the API server can evaluate the expressions of the policy.
`k8s_adapters.cluster.admission` tests the expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deploys.deploys import Danger, Refusal
from deploys.manifests import OWNER_LABEL, POOL_LABEL, Manifests, Object, title_of
from deploys.network_reach import Network, labels_of_namespace
from deploys.selectors import parse_selector

COLLECTOR = "generic-garbage-collector"
_GROUP = "admissionregistration.k8s.io"


def judge_admission(after: Manifests, namespaces: frozenset[str]) -> Iterable[Refusal]:
    """Yield a refusal if a namespace of runner Pods is not protected by a bound admission policy.

    `namespaces` are the namespaces of the runner Pods. Raises `Malformed` if a selector of a policy or of a binding is
    malformed. The message names the object and the field.
    """
    policies = {
        each.key[2]: each
        for each in after.objects.values()
        if each.key[0] == f"ValidatingAdmissionPolicy.{_GROUP}" and _guards(each)
    }
    bindings = [
        each
        for each in after.objects.values()
        if each.key[0] == f"ValidatingAdmissionPolicyBinding.{_GROUP}" and "Deny" in (_spec(each)["validationActions"])
    ]
    network = Network((), after.namespaces, ())
    missing = sorted(
        name
        for name in namespaces
        if not any(
            (policy := policies.get(str(_spec(each).get("policyName")))) is not None
            and _matches(each, "matchResources", network, name)
            and _matches(policy, "matchConstraints", network, name)
            for each in bindings
        )
    )
    if not missing:
        return
    reason = (
        f"No admission policy and binding with the action Deny cover all runner Pods in {', '.join(missing)}."
        if policies
        else "No ValidatingAdmissionPolicy prevents the garbage collector from deleting Pods with the pool's label."
    )
    yield Refusal(
        Danger.ADMISSION_MISSING,
        tuple(missing),
        (
            f"{reason} If a client such as Argo CD deletes a pool with the propagation policy Foreground, the garbage "
            "collector would also delete the busy Pods of the pool."
        ),
        "Deploy the chart's policy and its binding: set `admissionPolicy.enabled`.",
    )


def _guards(given: Object) -> bool:
    spec = _spec(given)
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or []
    of_deletions = any(
        {"pods", "*", "*/*"} & set(each.get("resources") or []) and {"DELETE", "*"} & set(each.get("operations") or [])
        for each in rules
    )
    named = COLLECTOR in given.text and POOL_LABEL in given.text
    return of_deletions and named and spec.get("failurePolicy", "Fail") == "Fail"


def _matches(given: Object, field: str, network: Network, namespace: str) -> bool:
    """Return whether the selectors of a policy or binding match all runner Pods of a namespace, stamped or not.

    `field` is `matchConstraints` for a policy and `matchResources` for a binding.
    """
    wanted: Mapping[str, Any] = _spec(given).get(field) or {}
    where = f"{title_of(given.key)}: spec.{field}"
    of_namespaces = parse_selector(wanted.get("namespaceSelector") or {}, where=f"{where}.namespaceSelector")
    of_objects = parse_selector(wanted.get("objectSelector") or {}, where=f"{where}.objectSelector")
    return of_namespaces.matches(labels_of_namespace(network, namespace)) and all(
        of_objects.matches(labels) for labels in ({POOL_LABEL: "any"}, {POOL_LABEL: "any", OWNER_LABEL: "1"})
    )


def _spec(given: Object) -> Mapping[str, Any]:
    spec = given.body.get("spec")
    return {"validationActions": (), **(spec if isinstance(spec, Mapping) else {})}
