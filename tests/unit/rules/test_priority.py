"""The priority rules of an account."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.routing.priority import LIMIT, priority_of


def priority(*rules: dict[str, Any], repository: str = "acme/app", branch: str | None = "main") -> int:
    return priority_of(rules, repository=repository, workflow="Deploy", branch=branch)


def test_a_job_that_no_rule_names_has_priority_0() -> None:
    assert priority() == 0
    assert priority({"repository": "acme/other", "priority": 5}) == 0


def test_the_first_rule_that_matches_decides() -> None:
    assert priority({"branch": "main", "priority": 7}, {"repository": "acme/*", "priority": 9}) == 7


def test_every_pattern_of_a_rule_must_match() -> None:
    rule = {"repository": "acme/*", "workflow": "Dep*", "branch": "release/*", "priority": 3}
    assert priority(rule, branch="release/1") == 3
    assert priority(rule, branch="main") == 0


def test_an_absent_or_null_pattern_matches_everything() -> None:
    assert priority({"repository": None, "priority": 4}, branch=None) == 4


def test_repositories_are_compared_without_case_and_branches_with_it() -> None:
    assert priority({"repository": "ACME/App", "priority": 1}) == 1
    assert priority({"branch": "MAIN", "priority": 1}) == 0


def test_a_job_without_a_branch_matches_no_branch_pattern_but_the_star() -> None:
    assert priority({"branch": "m*", "priority": 1}, branch=None) == 0
    assert priority({"branch": "*", "priority": 1}, branch=None) == 1


@pytest.mark.parametrize(
    "rule", [{}, {"priority": "high"}, {"priority": True}, {"priority": None}, {"branch": 7, "priority": 5}]
)
def test_a_malformed_rule_matches_nothing_and_the_next_one_is_asked(rule: dict[str, Any]) -> None:
    assert priority(rule, {"priority": 2}) == 2


def test_a_priority_too_large_for_its_row_is_cut() -> None:
    assert priority({"priority": 10**30}) == LIMIT
    assert priority({"priority": -(10**30)}) == -LIMIT


@given(
    rules=st.lists(
        st.dictionaries(
            st.sampled_from(["repository", "workflow", "branch", "priority"]),
            st.none() | st.integers() | st.text() | st.lists(st.integers(), max_size=1),
        )
    ),
    text=st.text(),
)
def test_no_rule_and_no_name_makes_it_fail(rules: list[dict[str, Any]], text: str) -> None:
    found = priority_of(rules, repository=text, workflow=text, branch=None)
    assert -LIMIT <= found <= LIMIT


def test_a_pattern_of_workflows_is_held_against_the_workflow() -> None:
    assert priority({"workflow": "Dep*", "priority": 3}) == 3
    assert priority({"workflow": "Test", "priority": 3}) == 0
    assert priority_of([{"workflow": "?*", "priority": 3}], repository="a/b", workflow=None, branch="main") == 0
    assert priority_of([{"branch": "?*", "priority": 3}], repository="a/b", workflow="Deploy", branch=None) == 0
