"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lab.apiserver.kinds import EVENT, NODE, POD, Kind
from lab.apiserver.refusals import bad_request
from lab.apiserver.store import Stored

Test = Callable[[Stored], bool]
_Labels = Mapping[str, str]

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*")
_EQUAL = re.compile(rf"\s*({_KEY})\s*(==?|!=)\s*({_VALUE})\s*")
_EXISTS = re.compile(rf"\s*(!?)\s*({_KEY})\s*")
_FIELDS = {
    POD: ("spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase"),
    NODE: ("spec.unschedulable",),
    EVENT: (
        *(
            f"regarding.{each}"
            for each in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        ),
        "reason",
        "reportingController",
        "type",
    ),
}


def selected(kind: Kind, *, labels: str, fields: str) -> Test:
    """Return a test whether both selectors select an object. Raises `Refused` for an invalid selector."""
    tests = [_label(each) for each in _split(labels)] + [_field(kind, each) for each in _split(fields)]
    return lambda stored: all(test(stored) for test in tests)


def _split(selector: str) -> list[str]:
    """Split a selector at the commas outside of parentheses."""
    return re.split(r",(?![^(]*\))", selector) if selector.strip() else []


def _label(text: str) -> Test:
    if match := _SET.fullmatch(text):
        key, operator, listed = match.groups()
        values = {each.strip() for each in listed.split(",")}
        if operator == "in":
            return lambda stored: _labels(stored).get(key) in values
        return lambda stored: _labels(stored).get(key) not in values
    if match := _EQUAL.fullmatch(text):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda stored: _labels(stored).get(key) != value
        return lambda stored: _labels(stored).get(key) == value
    if match := _EXISTS.fullmatch(text):
        absent, key = match.groups()
        return lambda stored: (key in _labels(stored)) != bool(absent)
    raise bad_request(f"unable to parse requirement: {text!r}")


def _labels(stored: Stored) -> _Labels:
    return stored.metadata.get("labels") or {}


def _field(kind: Kind, text: str) -> Test:
    match = re.fullmatch(r"([A-Za-z.]+)(==?|!=)(.*)", text)
    if match is None:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    path, operator, value = match.groups()
    if path not in {"metadata.name", "metadata.namespace", *_FIELDS.get(kind, ())}:
        raise bad_request(f"field label not supported: {path}")

    def test(stored: Stored) -> bool:
        found: Any = stored.content
        for step in path.split("."):
            found = (found or {}).get(step)
        if path == "spec.unschedulable":
            found = "true" if found else "false"
        return ((found or "") == value) == (operator != "!=")

    return test
