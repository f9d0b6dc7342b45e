"""The OpenAPI schema of a custom resource: defaults, unknown fields and validation.

It supports the features that the RunnerPool's definition uses: types, required, bounds, enums, patterns, int-or-string
and unknown fields. CEL rules (`x-kubernetes-validations`) and formats are not checked. Only the real control plane
checks CEL rules and formats.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from lab.apiserver.kinds import Json
from lab.apiserver.refusals import bad_value, cause, required

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
_INT_OR_STRING = "x-kubernetes-int-or-string"
_KEEP_UNKNOWN = "x-kubernetes-preserve-unknown-fields"


def shape(schema: Json, value: Any) -> Any:
    """Return `value` without the fields that the schema does not know, and with the schema's defaults."""
    if isinstance(value, dict) and not schema.get(_KEEP_UNKNOWN):
        return _shape_object(schema, value)
    if isinstance(value, list) and "items" in schema:
        return [shape(schema["items"], each) for each in value]
    return value


def _shape_object(schema: Json, value: Json) -> Json:
    known: Json = schema.get("properties", {})
    rest = schema.get("additionalProperties")
    shaped: Json = {}
    for key, inner in value.items():
        if key in known:
            if inner is not None or known[key].get("nullable") or "default" not in known[key]:
                shaped[key] = shape(known[key], inner)
        elif isinstance(rest, dict):
            shaped[key] = shape(rest, inner)
        elif rest:
            shaped[key] = inner
    for key, of_key in known.items():
        if key not in shaped and "default" in of_key:
            shaped[key] = shape(of_key, copy.deepcopy(of_key["default"]))
    return shaped


def problems(schema: Json, value: Any, field: str) -> Iterator[Json]:
    """Yield a cause for each place in `value` that violates the schema."""
    if not _fits(schema, value):
        wanted = "integer,string" if schema.get(_INT_OR_STRING) else schema["type"]
        found = f'"{_name(value)}"'
        text = f"Invalid value: {found}: {field} in body must be of type {wanted}: {found}"
        yield cause(field, "TypeInvalid", text)
        return
    if "enum" in schema and value not in schema["enum"]:
        listed = ", ".join(f'"{each}"' for each in schema["enum"])
        yield cause(field, "NotSupported", f'Unsupported value: "{value}": supported values: {listed}')
    yield from _bounds(schema, value, field)
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from problems(schema.get("items", {}), each, f"{field}[{number}]")
    elif isinstance(value, dict):
        prefix = f"{field}." if field else ""
        yield from (required(prefix + key) for key in schema.get("required", ()) if key not in value)
        for key, of_key in schema.get("properties", {}).items():
            if key in value:
                yield from problems(of_key, value[key], prefix + key)


def _fits(schema: Json, value: Any) -> bool:
    if schema.get(_INT_OR_STRING):
        return isinstance(value, int | str) and not isinstance(value, bool)
    if "type" not in schema or (value is None and schema.get("nullable")):
        return True
    if isinstance(value, bool):
        return bool(schema["type"] == "boolean")
    return isinstance(value, _TYPES[schema["type"]])


def _bounds(schema: Json, value: Any, field: str) -> Iterator[Json]:
    body = f"{field} in body should"
    if isinstance(value, str):
        yield from _bounds_of_text(schema, value, field)
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield bad_value(field, len(value), f"{body} have at least {schema['minItems']} items")
        if len(value) > schema.get("maxItems", len(value)):
            most = schema["maxItems"]
            yield cause(field, "TooMany", f"Too many: {len(value)}: must have at most {most} items")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield bad_value(field, value, f"{body} be greater than or equal to {schema['minimum']}")
        if value > schema.get("maximum", value):
            yield bad_value(field, value, f"{body} be less than or equal to {schema['maximum']}")


def _bounds_of_text(schema: Json, value: str, field: str) -> Iterator[Json]:
    if len(value) < schema.get("minLength", 0):
        yield bad_value(field, value, f"{field} in body should be at least {schema['minLength']} chars long")
    if len(value) > schema.get("maxLength", len(value)):
        yield cause(field, "TooLong", f"Too long: may not be more than {schema['maxLength']} bytes")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield bad_value(field, value, f"{field} in body should match '{schema['pattern']}'")


def _name(value: Any) -> str:
    """Return the JSON name of a value's type."""
    if isinstance(value, bool):
        return "boolean"
    names = {dict: "object", list: "array", str: "string", int: "integer", float: "number"}
    return names.get(type(value), "null")
