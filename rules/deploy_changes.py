"""What a deploy deletes or renames, and which of that it must not.

Deleting a pool is no danger by itself: its drain finalizer keeps it until its busy Pods have ended. A namespace has no
such thing: its Pods go with it, and neither a finalizer nor the admission policy stops that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rules.deploys import Danger, Refusal
from rules.manifests import DEFINITION, POOL_KIND, POOL_LABEL, Key, Manifests, Object, told
from rules.network_reach import Network, labels_of_namespace
from rules.selectors import parse_selector

DRAIN_FINALIZER = "ostler.dev/drain"
COLLECTOR = "generic-garbage-collector"


class Action(StrEnum):
    """What becomes of an object that NEW does not have."""

    DELETED = "deleted"
    RENAMED = "renamed"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Change:
    """One object that NEW does not have; `to` is what has its content there, of one that was renamed."""

    action: Action
    key: Key
    to: Key | None = None


def changes_of(old: Mapping[Key, Object], new: Mapping[Key, Object]) -> tuple[Change, ...]:
    """Return what is in `old` and not in `new`; hooks come and go by themselves and are left out."""
    added = [each for key, each in new.items() if key not in old and not each.hook]
    found: list[Change] = []
    for key in sorted(key for key, each in old.items() if key not in new and not each.hook):
        mine = old[key]
        if mine.kept:
            found.append(Change(Action.KEPT, key))
            continue
        heir = next((each for each in added if each.key[0] == key[0] and _same(mine, each)), None)
        if heir is not None:
            added.remove(heir)
        found.append(Change(Action.RENAMED if heir else Action.DELETED, key, heir.key if heir else None))
    return tuple(found)


def _same(one: Object, other: Object) -> bool:
    """Return whether two objects are one with another name; of a pool its image may be new too."""
    if one.key[0] == POOL_KIND:
        labels = [(each.body.get("spec") or {}).get("runnerLabels") for each in (one, other)]
        return labels[0] == labels[1]
    return one.text == other.text


def judge_changes(
    changes: Iterable[Change], *, live: Mapping[Key, Object] | None, namespaces: frozenset[str]
) -> Iterable[Refusal]:
    """Yield what must not go. `live`: what the cluster has, None when it was not asked.

    `namespaces` are the runners'.
    """
    for change in changes:
        if change.action is Action.KEPT:
            continue
        kind, _, name = change.key
        if kind == "Namespace." and name in namespaces:
            yield Refusal(
                Danger.NAMESPACE_DELETED,
                (told(change.key),),
                f"The runners' namespace {name} goes, and with it every Pod in it, busy or not: nothing stops that.",
                "Keep it, by the annotation `helm.sh/resource-policy: keep`; delete it when its pools are gone.",
            )
        if change.key == DEFINITION:
            yield Refusal(
                Danger.DEFINITION_DELETED,
                (told(change.key),),
                "The definition of RunnerPool goes, and with it every pool of the cluster.",
                "Keep it, by the annotation `helm.sh/resource-policy: keep`; delete it when all pools are gone.",
            )
        if kind == POOL_KIND and live is not None and change.key in live:
            finalizers = (live[change.key].body.get("metadata") or {}).get("finalizers") or []
            if DRAIN_FINALIZER not in finalizers:
                yield Refusal(
                    Danger.POOL_WITHOUT_FINALIZER,
                    (told(change.key),),
                    f"{told(change.key)} is {change.action}, and its live object lacks the finalizer "
                    f"{DRAIN_FINALIZER}: its busy Pods would go with it.",
                    "The controller puts the finalizer on: see that workers on the queue `pools` run, and deploy then.",
                )


def judge_admission(after: Manifests, namespaces: frozenset[str]) -> Iterable[Refusal]:
    """Yield a refusal where no admission policy keeps the garbage collector from runner Pods, by what is written.

    What the expressions come to is the API server's to say: `--live` tries it.
    """
    policies = [each for each in after.objects.values() if _guards(each)]
    bound = [
        each.body.get("spec") or {}
        for each in after.objects.values()
        if each.key[0] == "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io"
        and (each.body.get("spec") or {}).get("policyName") in {policy.key[2] for policy in policies}
        and "Deny" in ((each.body.get("spec") or {}).get("validationActions") or [])
    ]
    network = Network((), after.namespaces, ())
    missing = sorted(name for name in namespaces if not any(_covers(each, network, name) for each in bound))
    if not policies or missing:
        reason = (
            "No ValidatingAdmissionPolicy keeps the garbage collector from deleting Pods with the pool's label."
            if not policies
            else f"The admission policy is not bound, with the action Deny, to {', '.join(missing)}."
        )
        yield Refusal(
            Danger.ADMISSION_MISSING,
            tuple(missing),
            f"{reason} A pool that is deleted in the foreground, as Argo CD does, would take its busy Pods with it.",
            "Deploy the policy and its binding of the chart: `admissionPolicy.enabled`.",
        )


def _guards(given: Object) -> bool:
    if given.key[0] != "ValidatingAdmissionPolicy.admissionregistration.k8s.io":
        return False
    spec: Mapping[str, Any] = given.body.get("spec") or {}
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or []
    of_deletions = any(
        {"pods", "*"} & set(each.get("resources") or []) and {"DELETE", "*"} & set(each.get("operations") or [])
        for each in rules
    )
    return (
        of_deletions
        and spec.get("failurePolicy", "Fail") == "Fail"
        and COLLECTOR in given.text
        and POOL_LABEL in given.text
    )


def _covers(binding: Mapping[str, Any], network: Network, namespace: str) -> bool:
    selector = (binding.get("matchResources") or {}).get("namespaceSelector")
    if not selector:
        return True
    return parse_selector(selector, where="namespaceSelector").matches(labels_of_namespace(network, namespace))
