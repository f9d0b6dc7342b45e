"""Field managers of custom resources: which client wrote which field last, as `metadata.managedFields` shows it.

Ostler reads the managed fields of RunnerPools only. The server records none for built-in kinds, whose objects would be
three times as large. Every write counts as an update. The server has no server-side apply.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from lab.apiserver.kinds import Json, Kind

Path = tuple[str, ...]

CONTROLLER = "kube-controller-manager"
"""Manager of the changes that the server itself makes, for example as the garbage collector."""

LONGEST = 128
_OF_METADATA: Json = {"labels": {}, "annotations": {}, "finalizers": {"x-kubernetes-list-type": "set"}}
"""Fields of the metadata that clients write. The server writes the others, and owner references are left out."""


def manager_of(asked: str | None, user_agent: str) -> str:
    """Return the field manager of a request: the parameter `fieldManager`, or the first word of the User-Agent."""
    return asked or "".join(each for each in user_agent.partition("/")[0] if each.isprintable())[:LONGEST]


def recorded(before: Json | None, after: Json, *, kind: Kind, manager: str, status: bool, now: str) -> list[Json]:
    """Return the managed fields of an object after a write that changed it.

    `before` is None for a new object. `status` is True for a write of the subresource `status`.
    """
    old = {} if before is None else dict(_fields(before, kind.schema))
    new = dict(_fields(after, kind.schema))
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    removed = old.keys() - new.keys()
    entries = {} if before is None else {_key(each): each for each in before["metadata"].get("managedFields") or ()}
    subresource = "status" if status else ""
    entries.setdefault((manager, subresource), _entry(manager, kind.api_version, subresource))
    found = []
    for key, entry in entries.items():
        own = set(_paths(entry["fieldsV1"]))
        kept = (own | changed) - removed if key == (manager, subresource) else own - changed - removed
        is_new = kept != own or (key == (manager, subresource) and changed)
        if kept:
            found.append({**entry, "time": now, "fieldsV1": _tree(kept)} if is_new else entry)
    return sorted(found, key=lambda each: (each["time"], each["manager"]))


def _entry(manager: str, api_version: str, subresource: str) -> Json:
    entry = {"manager": manager, "operation": "Update", "apiVersion": api_version, "fieldsType": "FieldsV1"}
    return {**entry, "fieldsV1": {}, **({"subresource": subresource} if subresource else {})}


def _key(entry: Json) -> tuple[str, str]:
    return entry["manager"], entry.get("subresource", "")


def _fields(content: Json, schema: Json) -> Iterator[tuple[Path, Any]]:
    """Yield the fields of an object that have owners, with their values.

    The value of a map or list whose members have owners of their own is None.
    """
    for key, of_key in _OF_METADATA.items():
        if value := content["metadata"].get(key):
            yield from _below(("f:metadata", f"f:{key}"), value, of_key)
    for key, value in content.items():
        if key != "metadata":
            yield from _below((f"f:{key}",), value, schema["properties"].get(key) or {})


def _below(path: Path, value: Any, schema: Json) -> Iterator[tuple[Path, Any]]:
    sort = schema.get("x-kubernetes-list-type")
    if isinstance(value, dict) and value:
        inner = [(f"f:{key}", each, (schema.get("properties") or {}).get(key) or {}) for key, each in value.items()]
    elif sort == "set" and value:
        inner = [(f"v:{_compact(each)}", None, {}) for each in value]
    elif sort == "map" and value:
        keys = schema["x-kubernetes-list-map-keys"]
        inner = [(f"k:{_compact({key: each[key] for key in keys})}", each, schema["items"]) for each in value]
    else:
        yield path, value
        return
    yield path, None
    for step, each, of_each in inner:
        yield from _below((*path, step), each, of_each)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _paths(tree: Json, path: Path = ()) -> Iterator[Path]:
    """Yield the fields of an entry. A map with the member `.`, or without members, is itself a field."""
    for key, inner in tree.items():
        if key == ".":
            yield path
        elif inner:
            yield from _paths(inner, (*path, key))
        else:
            yield (*path, key)


def _tree(paths: Collection[Path]) -> Json:
    tree: Json = {}
    parents = {path[:end] for path in paths for end in range(len(path))}
    for path in sorted(paths):
        place = tree
        for step in (*path, ".") if path in parents else path:
            place = place.setdefault(step, {})
    return tree
