from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostler.errors import Invalid
from rules.routing.scopes import Scope


def test_a_scope_is_written_and_has_a_path() -> None:
    assert str(Scope.organization("acme")) == "orgs/acme"
    assert str(Scope.repository("ada/app.js")) == "repos/ada/app.js"
    assert Scope.organization("acme").path == "/orgs/acme"
    assert Scope.repository("ada/app").path == "/repos/ada/app"


@pytest.mark.parametrize("scope", [Scope.organization("octo_corp"), Scope.repository("a-b/.github")], ids=str)
def test_a_scope_is_read_as_it_was_written(scope: Scope) -> None:
    assert Scope.parse(str(scope)) == scope


@pytest.mark.parametrize(
    "text",
    [
        "",
        "acme",
        "orgs/",
        "orgs/a/b",
        "orgs/..",
        "repos/a",
        "repos/a/",
        "repos/a/..",
        "repos/a/b/c",
        "repos/a/b?x",
        "x/a",
    ],
)
def test_what_is_no_scope_is_invalid(text: str) -> None:
    with pytest.raises(Invalid):
        Scope.parse(text)


@given(st.text())
def test_nothing_but_a_name_gets_into_a_path(text: str) -> None:
    for make in (Scope.organization, Scope.repository, Scope.parse):
        try:
            scope = make(text)
        except Invalid:
            continue
        assert not set(scope.path) & set("?#%\\ \n") and ".." not in scope.path.split("/")  # noqa: PT018
