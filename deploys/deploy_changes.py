"""Deletions and renames of objects in a deploy, and the refusals of dangerous deletions and renames.

A deletion of a pool with the drain finalizer is safe, because the finalizer delays the deletion until the busy Pods
have ended. A deletion of a namespace also deletes the Pods in the namespace. Neither the drain finalizer nor the
admission policy prevents this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from deploys.deploys import Danger, Refusal
from deploys.manifests import DEFINITION, POOL_KIND, Key, Manifests, Object, title_of

DRAIN_FINALIZER = "ostler.dev/drain"


class Action(StrEnum):
    """Effect of the deploy on an object that is missing from the new manifests."""

    DELETED = "deleted"
    RENAMED = "renamed"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Change:
    """One object that is missing from the new manifests.

    If the object was renamed, `to` is the key of the new object with the same content, or of the new pool with the same
    runner labels. Otherwise `to` is None.
    """

    action: Action
    key: Key
    to: Key | None = None


def changes_of(old: Mapping[Key, Object], new: Mapping[Key, Object]) -> tuple[Change, ...]:
    """Return a change for each object that is in `old` and not in `new`.

    Objects of Helm hooks are left out, because Helm creates and deletes hooks apart from the release.
    """
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
    """Return whether two objects differ at most in their metadata and status.

    Two pools count as the same if their runner labels are equal.
    """
    if one.key[0] == POOL_KIND:
        labels = [(each.body.get("spec") or {}).get("runnerLabels") for each in (one, other)]
        return labels[0] == labels[1]
    return one.text == other.text


def judge_namespaces(old: Manifests, new: Manifests, *, runner_pods: Mapping[str, int]) -> Iterable[Refusal]:
    """Yield a refusal for each namespace that processes of Ostler read before the deploy, but not after the deploy.

    `runner_pods` has a number for each namespace whose Pods were listed. The number is 0 if the namespace has no runner
    Pods. Such a namespace is not refused. A namespace whose Pods were not listed is refused. Nothing is yielded if no
    process in the new manifests names a namespace, because another release then has the processes.
    """
    if not new.read_namespaces:
        return
    for name in sorted(old.read_namespaces - new.read_namespaces):
        count = runner_pods.get(name)
        if count == 0:
            continue
        steps = f"delete the pools in {name}, wait until they are drained, and deploy then."
        if count is None:
            there = "its Pods were not listed"
            cure = f"Use --live, so that its Pods are listed. If it contains runner Pods, {steps}"
        else:
            there, cure = "it contains runner Pods", f"{steps[0].upper()}{steps[1:]}"
        yield Refusal(
            Danger.NAMESPACE_LEFT,
            (name,),
            f"After the deploy, no process of Ostler reads namespace {name}, and {there}. Ostler would not notice "
            "when the jobs of such Pods end, and would not delete the Pods.",
            cure,
        )


def judge_changes(
    changes: Iterable[Change], *, live: Mapping[Key, Object] | None, namespaces: frozenset[str]
) -> Iterable[Refusal]:
    """Yield a refusal for each deletion or rename that would end running jobs.

    `live` contains the objects in the cluster, or is None if the cluster was not read. `namespaces` are the namespaces
    of the runner Pods.
    """
    for change in changes:
        if change.action is Action.KEPT:
            continue
        kind, _, name = change.key
        if kind == "Namespace." and name in namespaces:
            yield Refusal(
                Danger.NAMESPACE_DELETED,
                (title_of(change.key),),
                f"Namespace {name} is deleted, and with it every runner Pod in it, busy or not. Neither the drain "
                "finalizer nor the admission policy prevents this.",
                (
                    "Keep the namespace with the annotation `helm.sh/resource-policy: keep`. Delete the namespace "
                    "after all pools in it are deleted."
                ),
            )
        if change.key == DEFINITION:
            yield Refusal(
                Danger.DEFINITION_DELETED,
                (title_of(change.key),),
                "The CustomResourceDefinition of RunnerPool is deleted, and with it every pool of the cluster.",
                (
                    "Keep the definition with the annotation `helm.sh/resource-policy: keep`. Delete the definition "
                    "after all pools are deleted."
                ),
            )
        if kind == POOL_KIND and live is not None and change.key in live:
            finalizers = (live[change.key].body.get("metadata") or {}).get("finalizers") or []
            if DRAIN_FINALIZER not in finalizers:
                yield Refusal(
                    Danger.POOL_WITHOUT_FINALIZER,
                    (title_of(change.key),),
                    f"{title_of(change.key)} is {change.action}, and its live object lacks the finalizer "
                    f"{DRAIN_FINALIZER}: the busy Pods of the pool might be deleted too.",
                    "Workers on the queue `pools` add the finalizer: check that they run, and deploy again.",
                )
