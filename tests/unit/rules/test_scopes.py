"""Scopes in text, parsed, and in paths. An invalid name is refused."""

from __future__ import annotations

import pytest

from ostler.errors import Invalid
from rules.routing.scopes import Scope


def test_a_scope_is_written_and_read_with_its_id() -> None:
    named = Scope("ada", "app", 5)
    assert str(named) == "repos/ada/app#5"
    read = Scope.parse("repos/ada/app#5")
    assert (read.login, read.repository_name, read.repository_id) == ("ada", "app", 5)
    assert Scope.parse("repos/ada/app").repository_id is None
    assert Scope.parse("orgs/acme") == Scope.organization("acme") == Scope("acme")
    assert str(Scope.parse("orgs/acme")) == "orgs/acme"


def test_the_path_of_a_repository_with_an_id_is_that_of_the_id() -> None:
    assert Scope("ada", "app", 5).path == "/repositories/5"
    assert Scope.repository("ada/app").path == "/repos/ada/app"
    assert Scope.organization("acme").path == "/orgs/acme"


@pytest.mark.parametrize(
    ("scope", "covered", "others"),
    [
        ("orgs/Acme", ["acme/app", "ACME/tools"], ["acme-labs/app", "zoo/acme", "acm/app"]),
        ("repos/Acme/App#5", ["acme/app"], ["acme/app-2", "acme/ap", "zoo/app", "acme"]),
    ],
)
def test_a_scope_covers_the_repositories_whose_jobs_its_runners_get(
    scope: str, covered: list[str], others: list[str]
) -> None:
    assert [name for name in covered + others if Scope.parse(scope).covers(name)] == covered


def test_only_the_name_of_a_repository_may_be_that_of_another_by_now() -> None:
    assert Scope.organization("acme").certain
    assert Scope("ada", "app", 5).certain
    assert not Scope.repository("ada/app").certain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("teams/acme", "must begin with .*: found 'teams/acme'"),
        ("repos/ada", "owner/name"),
        ("repos/ada/app#", "number"),
        ("repos/ada/app#x", "number"),
        ("repos/ada/app#5#6", "number"),
        ("repos/ada/..", "must not be . or ..: found '..'"),
        ("orgs/a b", "login"),
    ],
)
def test_what_is_no_scope_is_refused_with_what_it_needs(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Scope.parse(text)
