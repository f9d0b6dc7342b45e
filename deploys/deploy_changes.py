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
from deploys.manifests import DEFINITION, POOL_KIND, Key, Object, title_of

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


@dataclass(frozen=True, slots=True)
class Left:
    """A namespace that a process of Ostler reads before the deploy, and no process reads after it.

    `pools` are the names of the pools in the namespace. `pods` is the number of its runner Pods, or None if the Pods
    were not listed.
    """

    namespace: str
    pools: tuple[str, ...]
    pods: int | None

    @property
    def is_empty(self) -> bool:
        """Return whether the namespace contains neither pools nor runner Pods. Unlisted Pods count as present."""
        return self.pods == 0 and not self.pools


def judge_namespaces(left: Iterable[Left]) -> Iterable[Refusal]:
    """Yield a refusal for each left namespace that is not empty.

    A pool without Pods is refused because it can get a Pod during the deploy. Even if the deploy deletes the pool, no
    process would remove the pool's finalizer.
    """
    for each in left:
        if each.is_empty:
            continue
        pools = [f"{_count(len(each.pools), 'pool')} ({', '.join(each.pools)})"] if each.pools else []
        pods = [_count(each.pods, "runner Pod")] if each.pods else []
        there = "its Pods were not listed" if each.pods is None else f"it contains {' and '.join(pools + pods)}"
        after = "check the deploy again with --live" if each.pods is None else "deploy then"
        yield Refusal(
            Danger.NAMESPACE_LEFT,
            (each.namespace,),
            (
                f"After the deploy, no process of Ostler reads namespace {each.namespace}, and {there}. No "
                "process would watch the jobs there, or delete pools and Pods there."
            ),
            (
                f"Drain the pools in {each.namespace} with `ostler pool drain NAME`, wait until they and their Pods "
                f"are gone, and {after}."
            ),
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


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
