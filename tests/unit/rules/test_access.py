"""Access of accounts and of API tokens."""

from __future__ import annotations

import pytest

from rules.routing.access import cure_of
from rules.token_scopes import TokenScope, needed_for


def test_the_cure_of_an_account_names_its_login_and_its_id() -> None:
    cure = cure_of(account_id=7, login="ada")
    assert "ostler account allow ada" in cure
    assert "/api/v1/accounts/7/access" in cure


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_method_that_changes_nothing_needs_read(method: str) -> None:
    assert needed_for(method) is TokenScope.READ


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_method_that_changes_something_needs_write(method: str) -> None:
    assert needed_for(method) is TokenScope.WRITE
