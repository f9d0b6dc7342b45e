"""Selectors as the API server parses them, and the selectors that it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from deploys.selectors import Malformed, Operator, Requirement, Selector, parse_selector


def parsed(given: Any) -> Selector:
    return parse_selector(given, where="spec")


def test_labels_and_expressions_have_to_hold_together() -> None:
    found = parsed({"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]})
    assert found.requirements == (
        Requirement("a", Operator.IN, frozenset({"1"})),
        Requirement("b", Operator.IN, frozenset({"2"})),
        Requirement("c", Operator.EXISTS),
    )
    assert found.matches({"a": "1", "b": "2", "c": ""})
    assert not found.matches({"a": "1", "b": "2"})
    assert not found.matches({"a": "1", "c": ""})
    assert parsed({}).matches({})


@pytest.mark.parametrize(
    ("operator", "values", "held"),
    [
        ("In", ["x", "y"], [True, False, False]),
        ("NotIn", ["x", "y"], [False, True, True]),
        ("Exists", None, [True, True, False]),
        ("DoesNotExist", None, [False, False, True]),
    ],
)
def test_operator_compares_the_value_of_its_key(operator: str, values: list[str] | None, held: list[bool]) -> None:
    found = parsed({"matchExpressions": [{"key": "k", "operator": operator, "values": values}]})
    assert [found.matches(labels) for labels in ({"k": "x"}, {"k": "z"}, {"other": "x"})] == held


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "^spec is not an object"),
        ([], "^spec is not an object"),
        ({"matchLabels": []}, None),
        ({"matchLabels": ["a"]}, "^spec: matchLabels must be an object"),
        ({"matchExpressions": {"a": 1}}, "^spec: matchLabels must be an object and matchExpressions a list"),
        ({"matchNames": {}, "a": 1}, "^spec has the unknown field 'a'"),
        ({"matchLabels": {"a": 1}}, "^spec: the value 1 is not a string"),
        ({"matchExpressions": [7]}, r"^spec.matchExpressions\[0\] has no key"),
        ({"matchExpressions": [{"key": ""}]}, r"^spec.matchExpressions\[0\] has no key"),
        ({"matchExpressions": [{"key": 7}]}, r"^spec.matchExpressions\[0\] has no key"),
        (
            {"matchExpressions": [{"key": "a", "operator": "in"}]},
            r"\[0\].operator is 'in', not one of In, NotIn, Exists, Doe",
        ),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": "x"}]}, r"\[0\].values is not a list"),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, r"\[0\]: In needs values"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}, r"\[0\]: Exists needs no values"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": [True]}]}, r"\[0\]: the value True is no"),
    ],
)
def test_what_the_api_server_refuses_is_named_with_its_place(given: Any, message: str | None) -> None:
    if message is None:
        assert parsed(given) == Selector()
        return
    with pytest.raises(Malformed, match=message):
        parsed(given)
