"""Patches, applied as the API server applies them.

The server's JSON patch differs from RFC 6902, and from libraries, in three ways. `replace` adds a member that does not
exist. `test` of a member that does not exist succeeds against null. Numbers are equal only if they have the same type:
1 does not equal 1.0.
"""

from __future__ import annotations

import copy
from typing import Any

from lab.apiserver.kinds import Json
from lab.apiserver.refusals import bad_request, patch_rejected


def merge(target: Any, patch: Any) -> Any:
    """Return `target` after a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def apply_operations(target: Json, operations: Any) -> Json:
    """Return `target` after a JSON patch. Either all operations are applied or none. Raises `Refused`."""
    if not isinstance(operations, list) or not all(isinstance(each, dict) for each in operations):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )
    document = copy.deepcopy(target)
    for operation in operations:
        try:
            _apply(document, operation)
        except (KeyError, IndexError, ValueError, TypeError):
            raise patch_rejected() from None
    return document


def _apply(document: Json, operation: Json) -> None:
    """Apply one operation to the document.

    Raises LookupError, ValueError or TypeError if the operation cannot be applied.
    """
    kind, path = operation["op"], operation["path"]
    if kind in {"add", "replace"}:
        _put(document, path, operation["value"], insert=kind == "add")
    elif kind == "remove":
        _take(document, path)
    elif kind == "test":
        if not holds(document, path, operation.get("value")):
            raise ValueError(path)
    elif kind == "copy":
        _put(document, path, copy.deepcopy(_read(document, operation["from"])), insert=True)
    elif kind == "move":
        _put(document, path, _take(document, operation["from"]), insert=True)
    else:
        raise ValueError(kind)


def holds(document: Json, path: str, value: Any) -> bool:
    """Return whether the value at `path` equals `value`. A missing member of an object counts as null."""
    parent, last = _parent(document, path)
    found = parent.get(last) if isinstance(parent, dict) else parent[int(last)]
    return _same(found, value)


def _read(document: Json, path: str) -> Any:
    parent, last = _parent(document, path)
    return parent[last] if isinstance(parent, dict) else parent[int(last)]


def _put(document: Json, path: str, value: Any, *, insert: bool) -> None:
    parent, last = _parent(document, path)
    if isinstance(parent, dict):
        parent[last] = value
    elif insert:
        place = len(parent) if last == "-" else int(last)
        if not 0 <= place <= len(parent):
            raise IndexError(path)
        parent.insert(place, value)
    else:
        parent[int(last)] = value


def _take(document: Json, path: str) -> Any:
    parent, last = _parent(document, path)
    return parent.pop(last if isinstance(parent, dict) else int(last))


def _parent(document: Json, path: str) -> tuple[Any, str]:
    """Return the dict or list that contains the place `path`, and the key of the place in it."""
    first, *steps = path.split("/")
    if first or not steps:
        raise ValueError(path)
    *way, last = (step.replace("~1", "/").replace("~0", "~") for step in steps)
    place: Any = document
    for step in way:
        place = place[step] if isinstance(place, dict) else place[int(step)]
    if not isinstance(place, dict | list):
        raise TypeError(path)
    return place, last


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
