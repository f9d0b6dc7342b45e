"""Label selectors of Kubernetes (Kubernetes documentation, "Labels and Selectors")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Malformed(ValueError):
    """A manifest is malformed, so that the API server would refuse an object or ignore one of its fields.

    The message names the object and, if the module that raises the error knows it, the field.
    """


class Operator(StrEnum):
    """Comparison between a label and the values of a requirement."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    """Condition on the label `key`. If the operator is neither `In` nor `NotIn`, `values` is empty."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that an object must all fulfil. A selector without requirements selects every object."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels fulfil every requirement. `NotIn` is also fulfilled if the labels lack the key."""
        return all(_holds(each, labels) for each in self.requirements)


def parse_selector(given: Any, *, where: str) -> Selector:
    """Return a selector from its JSON. `where` names the object and the field of the selector in error messages.

    Raises `Malformed` if the selector is malformed.
    """
    if not isinstance(given, Mapping):
        raise Malformed(f"{where} is not an object")
    labels, expressions = given.get("matchLabels") or {}, given.get("matchExpressions") or []
    if not isinstance(labels, Mapping) or not isinstance(expressions, list):
        raise Malformed(f"{where}: matchLabels must be an object and matchExpressions a list")
    unknown = set(given) - {"matchLabels", "matchExpressions"}
    if unknown:
        raise Malformed(f"{where} has the unknown field {min(unknown)!r}")
    found = [Requirement(str(key), Operator.IN, frozenset((_text(labels[key], where),))) for key in sorted(labels)]
    found += [_requirement(each, f"{where}.matchExpressions[{index}]") for index, each in enumerate(expressions)]
    return Selector(tuple(found))


def _requirement(given: Any, where: str) -> Requirement:
    if not isinstance(given, Mapping) or not isinstance(given.get("key"), str) or not given["key"]:
        raise Malformed(f"{where} has no key; it must be an object with `key`, `operator` and, if needed, `values`")
    try:
        operator = Operator(str(given.get("operator")))
    except ValueError:
        raise Malformed(f"{where}.operator is {given.get('operator')!r}, not one of {', '.join(Operator)}") from None
    values = given.get("values") or []
    if not isinstance(values, list):
        raise Malformed(f"{where}.values is not a list")
    if bool(values) != (operator in {Operator.IN, Operator.NOT_IN}):
        raise Malformed(f"{where}: {operator} needs {'no values' if values else 'values'}")
    return Requirement(given["key"], operator, frozenset(_text(value, where) for value in values))


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{where}: the value {value!r} is not a string; put it in quotes")
    return value


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case Operator.IN:
            return value in requirement.values
        case Operator.NOT_IN:
            return value not in requirement.values
        case Operator.EXISTS:
            return value is not None
        case Operator.DOES_NOT_EXIST:
            return value is None
