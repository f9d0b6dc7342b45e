"""Comparison of the answers of two API servers to the same probe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import jwt

from tests.contract.k8s.both.ignored import ADDED, IGNORED, Added, Ignored
from tests.contract.k8s.both.recording import Exchange

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_JWT = re.compile(r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+")
_SHORTEST_MODULUS = 300  # characters; what a JWK calls n
_RECORD = re.compile(r"(?<=in record \()\d+(?=\))")


def differences(
    real: Sequence[Exchange],
    embedded: Sequence[Exchange],
    *,
    ignored: Sequence[Ignored] = IGNORED,
    added: Sequence[Added] = ADDED,
) -> list[str]:
    """Return one line for each difference, or no line if the servers answered alike."""
    found: list[str] = []
    ours, theirs = _Values(), _Values()
    for expected, got in zip(real, embedded, strict=False):
        where = expected.question[:160]
        if (expected.status, expected.media_type) != (got.status, got.media_type):
            found.append(
                f"{where}: {expected.status} {expected.media_type}, embedded {got.status} {got.media_type} {got.body}"
            )
            continue
        rules = _Rules(ignored, added)
        left, right = theirs.plain(expected.body), ours.plain(got.body)
        found += [f"{where}: {line}" for line in _unlike(left, right, kind=_kind(left), path=(), rules=rules)]
    if len(real) != len(embedded):
        found.append(f"{len(real)} answers, embedded {len(embedded)}")
    return found


class _Values:
    """Replacement of the values of one server that always differ, over a whole probe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def plain(self, value: Any, key: str = "") -> Any:
        """Return the value with UIDs, revisions, times and tokens replaced by their order of appearance."""
        if isinstance(value, dict):
            if _counts_others(value):
                value = {**value, "metadata": {**value["metadata"], "resourceVersion": "<any>"}}
            inner = {name: self.plain(each, name) for name, each in value.items()}
            if {"iat", "exp"} <= inner.keys():
                inner |= {name: inner[name] - value["iat"] for name in ("exp", "nbf", "iat") if name in inner}
            return inner
        if isinstance(value, list):
            if key == "causes":
                # The real server validates a change twice, tells of schemas without a field, and checks what the
                # scale subresource reads once more, by paths that begin with a dot.
                told = (each for each in value if each["field"] != "<nil>" and not each["field"].startswith("."))
                pairs = {(each["field"], each["reason"]): each for each in told}
                return [self.plain(each) for _, each in sorted(pairs.items())]
            if key == "managedFields":  # sorted by times, which have the resolution of a second
                value = sorted(value, key=lambda each: (each["manager"], each.get("subresource", "")))
            return [self.plain(each) for each in value]
        return self._text(value, key) if isinstance(value, str) else value

    def _text(self, text: str, key: str) -> Any:
        if _JWT.fullmatch(text):
            header, claims = jwt.get_unverified_header(text), jwt.decode(text, options={"verify_signature": False})
            return {"header": self.plain(header), "claims": self.plain(claims)}
        if key == "kid" or (key == "n" and len(text) > _SHORTEST_MODULUS):
            return self._numbered("key", text)
        if key == "resourceVersion" and text != "<any>":
            return self._numbered("revision", text)
        if key == "jwks_uri":
            return re.sub(r":\d+/", ":<port>/", text)
        if _is_time(text):
            return "<time>"
        text = _UUID.sub(lambda match: self._numbered("uid", match.group()), text)
        return _RECORD.sub(lambda match: self._numbered("revision", match.group()), text)

    def _numbered(self, sort: str, text: str) -> str:
        number = 1 + sum(1 for known in self._known if known[0] == sort)
        return self._known.setdefault((sort, text), f"<{sort} {number}>")


class _Rules:
    def __init__(self, ignored: Sequence[Ignored], added: Sequence[Added]) -> None:
        self._ignored = ignored
        self._added = added

    def ignores(self, kind: str, path: tuple[str, ...]) -> bool:
        """Return whether a place is not compared."""
        return any(fnmatchcase(kind, rule.kind) and _matches(path, rule.path) for rule in self._ignored)

    def may_be_missing(self, kind: str, path: tuple[str, ...]) -> bool:
        """Return whether the embedded server may lack a member that the real server has."""
        return any(
            fnmatchcase(kind, rule.kind) and any(_matches(path[:end], rule.path) for end in range(1, len(path)))
            for rule in self._added
        )


def _unlike(left: Any, right: Any, *, kind: str, path: tuple[str, ...], rules: _Rules) -> list[str]:
    if rules.ignores(kind, path):
        return []
    if isinstance(left, dict) and isinstance(right, dict):
        return _unlike_objects(left, right, kind=kind, path=path, rules=rules)
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        found = []
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            if path == ("items",):
                found += _unlike(one, other, kind=kind.removesuffix("List"), path=(), rules=rules)
            else:
                found += _unlike(one, other, kind=kind, path=(*path, str(number)), rules=rules)
        return found
    return [] if type(left) is type(right) and left == right else [_line(path, left, right)]


def _unlike_objects(left: Any, right: Any, *, kind: str, path: tuple[str, ...], rules: _Rules) -> list[str]:
    found: list[str] = []
    for key in [*left, *(each for each in right if each not in left)]:
        inner, of_kind = (*path, key), kind
        if key == "object" and "type" in left:  # of a watch's event
            inner, of_kind = (), _kind(left[key])
        if key in left and key in right:
            found += _unlike(left[key], right[key], kind=of_kind, path=inner, rules=rules)
        elif not (rules.ignores(of_kind, inner) or (key in left and rules.may_be_missing(of_kind, inner))):
            found.append(_line(inner, left.get(key, "nothing"), right.get(key, "nothing")))
    return found


def _line(path: tuple[str, ...], left: Any, right: Any) -> str:
    return f"{'.'.join(path) or 'body'}: {str(left)[:300]!r}, embedded {str(right)[:300]!r}"


def _kind(body: Any) -> str:
    if not isinstance(body, dict):
        return ""
    if body.get("kind") == "Status":
        return f"Status:{body.get('reason', '')}"
    return str(body.get("kind") or ("version" if "gitVersion" in body else ""))


def _matches(path: tuple[str, ...], pattern: str) -> bool:
    steps = pattern.split(".")
    return len(steps) == len(path) and all(fnmatchcase(step, wanted) for step, wanted in zip(path, steps, strict=True))


def _counts_others(value: Any) -> bool:
    """Return whether a resourceVersion also counts writes to other objects, or writes that no client sees."""
    if "metadata" not in value or "resourceVersion" not in value["metadata"]:
        return False
    return "items" in value or value.get("kind") == "CustomResourceDefinition" or "uid" not in value["metadata"]


def _is_time(text: str) -> bool:
    if not re.match(r"\d{4}-\d\d-\d\dT", text):
        return False
    datetime.fromisoformat(text)
    return True
