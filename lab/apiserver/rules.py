"""Validation of the metadata of every object."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lab.apiserver.kinds import Json
from lab.apiserver.refusals import bad_value, cause

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LONGEST_NAME = 253
_LABEL = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_LONGEST_LABEL = 63
_NAME_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_NAME}')"
)
_LABEL_WORDS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{_LABEL}')"
)


def of_metadata(metadata: Json) -> Iterator[Json]:
    """Yield the problems of an object's metadata."""
    name = metadata.get("name") or ""
    if not name:
        yield cause("metadata.name", "Required", "Required value: name or generateName is required")
    elif len(name) > _LONGEST_NAME:
        yield bad_value("metadata.name", name, f"must be no more than {_LONGEST_NAME} characters")
    elif not re.fullmatch(_NAME, name):
        yield bad_value("metadata.name", name, _NAME_WORDS)
    for value in (metadata.get("labels") or {}).values():
        if not isinstance(value, str):
            yield bad_value("patch", value, "json: cannot unmarshal into Go struct field of type string")
        elif len(value.encode()) > _LONGEST_LABEL:
            yield bad_value("metadata.labels", value, f"must be no more than {_LONGEST_LABEL} bytes")
        elif not re.fullmatch(_LABEL, value):
            yield bad_value("metadata.labels", value, _LABEL_WORDS)


def of_change(old: Json, new: Json) -> Iterator[Json]:
    """Yield the problems of a change of metadata."""
    if new.get("uid") != old["uid"]:
        yield bad_value("metadata.uid", new.get("uid"), "field is immutable")
    fresh = [each for each in new.get("finalizers") or () if each not in (old.get("finalizers") or ())]
    if "deletionTimestamp" in old and fresh:
        listed = ", ".join(f'"{each}"' for each in fresh)
        why = (
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
        )
        yield cause("metadata.finalizers", "Forbidden", f"Forbidden: {why}")
    yield from of_metadata(new)
