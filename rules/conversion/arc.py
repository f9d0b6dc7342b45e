"""Conversion of objects of actions-runner-controller, and of the values of its scale sets, into pools.

The module is pure: it reads objects and returns a pool for each, with a note for every field that the object sets. A
field without a counterpart gets a note that says what to do.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from rules.conversion.arc_pods import Converted, Json, NotConvertible, Note
from rules.conversion.arc_releases import Release, is_release, read_releases
from rules.conversion.arc_runners import AUTOSCALER, KINDS, convert_runners
from rules.conversion.arc_scale_sets import SCALE_SET, VALUES, convert_scale_set, is_values

_PARTS = ("AutoscalingListener", "EphemeralRunnerSet", "EphemeralRunner")
"""Kinds of objects that the controller makes of a scale set."""
_MADE_BY = ("meta.helm.sh/release-namespace", "meta.helm.sh/release-name")
"""Annotations of an object that Helm made."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Pools that were made, and a note for each object that became no pool."""

    pools: list[Converted]
    skipped: list[Note]


def convert(objects: Iterable[Json]) -> Conversion:
    """Return a pool for each scale set, and for each runner object without an owner.

    An object that another object made, such as the RunnerReplicaSet of a RunnerDeployment, becomes no pool: its owner
    does. Of the revisions of a Helm release, only the deployed one becomes pools. Objects that have nothing to do with
    runners are ignored. Raises `NotConvertible` if an object cannot become a pool, or if there is none.
    """
    given = [each for each in objects if isinstance(each, dict)]
    releases, skipped = _deployed(read_releases(each for each in given if is_release(each)))
    found = [each for each in given if not is_release(each)]
    found += [each for release in releases.values() for each in release.scale_sets]
    scalers = [each for each in found if each.get("kind") == AUTOSCALER]
    present = {_title(each) for each in found}
    pools = []
    for each in found:
        if reason := _skip(each, present, releases):
            skipped.append(reason)
            continue
        if each.get("kind") not in (*KINDS, SCALE_SET) and not is_values(each):
            continue
        name = (each.get("metadata") or {}).get("name")
        if not name and not is_values(each):
            raise NotConvertible(f"a {each['kind']} has no metadata.name")
        try:
            if each.get("kind") in KINDS:
                pools.append(convert_runners(each, Converted(each["kind"], str(name)), scalers))
            else:
                pools.append(convert_scale_set(each))
        except (AttributeError, KeyError, TypeError, ValueError):
            title = VALUES if is_values(each) else _title(each)
            raise NotConvertible(f"{title} does not have the structure of its kind") from None
    if not pools:
        reasons = [f"{note.field}: {note.what}" for note in skipped if note.open]
        kinds = f"there is no object of the kinds {', '.join(KINDS)}, {SCALE_SET}, no {VALUES} and no such Helm release"
        raise NotConvertible("; ".join([kinds, *reasons[:1]]))
    _compare(pools)
    return Conversion(pools, skipped)


def _deployed(releases: Sequence[Release]) -> tuple[dict[tuple[str, str], Release], list[Note]]:
    """Return the deployed releases by namespace and name, and a note for each other revision."""
    newest_first = sorted(releases, key=lambda each: each.revision, reverse=True)
    chosen: dict[tuple[str, str], Release] = {}
    for each in newest_first:
        if each.deployed:
            chosen.setdefault((each.namespace, each.name), each)
    notes = []
    for each in newest_first:
        other = chosen.get((each.namespace, each.name))
        if other is None:
            what = "no pool, because it is not deployed; convert the revision that is, or the values"
            notes.append(Note(each.title, what, open=True))
        elif other is not each:
            notes.append(Note(each.title, f"no pool, because revision {other.revision} is deployed"))
    return chosen, notes


def _title(item: Json) -> str:
    metadata = item.get("metadata")
    return f"{item.get('kind')} {metadata.get('name') if isinstance(metadata, dict) else None}"


def _skip(item: Json, present: Container[str], releases: Container[tuple[str, str]]) -> Note | None:
    """Return a note if the object is about runners and no pool is made of it, or None."""
    kind = item.get("kind")
    if kind not in (*KINDS, SCALE_SET, *_PARTS, AUTOSCALER, "Runner"):
        return None
    metadata = item.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    namespace, release = map((metadata.get("annotations") or {}).get, _MADE_BY)
    if kind == SCALE_SET and (namespace, release) in releases:
        return Note(_title(item), f"no pool, because the pool is made of Helm release {release}")
    owners = metadata.get("ownerReferences")
    for owner in owners or ():
        if owner.get("kind") not in (*KINDS, SCALE_SET, *_PARTS):
            continue
        name = f"{owner['kind']} {owner.get('name')}"
        if name in present:
            return Note(_title(item), f"no pool, because {name} owns it")
        return Note(_title(item), f"no pool, because {name} owns it; convert {name} instead", open=True)
    if kind in _PARTS:
        return Note(_title(item), f"no pool; convert its {SCALE_SET} instead", open=True)
    if kind == "Runner":
        return Note(_title(item), "single runners are not converted; write a pool with replicas 1", open=True)
    if kind == AUTOSCALER:
        target = (item.get("spec") or {}).get("scaleTargetRef") or {}
        name = f"{target.get('kind', KINDS[0])} {target.get('name')}"
        if name not in present:
            return Note(_title(item), f"its target {name} is not in the input; convert both together", open=True)
    return None


def _compare(pools: Sequence[Converted]) -> None:
    """Ask for a decision about pools with equal names, and about pools with equal labels that serve the same jobs."""
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            if other.name == pool.name:
                pool.asks("metadata.name", f"{other.kind} {other.name} becomes a pool of the same name; rename one")
            if pool.labels == other.labels and _overlap(pool.scope, other.scope):
                pool.asks(
                    "runnerLabels",
                    f"{other.kind} {other.name} has the same labels; a job that both pools serve is held until one has "
                    "another label or routingPriority",
                )


def _overlap(one: str | None, other: str | None) -> bool:
    """Return whether two scopes have a repository in common. A scope is `owner/name`, `owner/*`, or None for all."""
    if one is None or other is None:
        return True
    return one == other or (one.split("/")[0] == other.split("/")[0] and "*" in f"{one}{other}")
