"""Pools that serve jobs without labels: one for each account."""

from __future__ import annotations

import pytest

from rules.routing.unlabelled import Declared, earlier_pool

FIRST = Declared(3, "first", frozenset({7}), frozenset({"Acme/app"}))
EVERY = Declared(1, "every", frozenset(), frozenset())


@pytest.mark.parametrize(
    ("other", "own_id", "accounts", "repositories", "found"),
    [
        (EVERY, None, (), (), "every"),
        (EVERY, None, (7,), ("acme/*",), "every"),
        (FIRST, None, (), (), "first"),
        (FIRST, None, (7, 8), (), "first"),
        (FIRST, None, (8,), (), None),
        (FIRST, None, (7,), ("acme/*",), "first"),
        (FIRST, None, (), ("globex/*", "globex/app"), None),
        (FIRST, 4, (), (), "first"),
        (FIRST, 2, (), (), None),
    ],
)
def test_the_later_pool_of_an_account_is_refused(
    other: Declared, own_id: int | None, accounts: tuple[int, ...], repositories: tuple[str, ...], found: str | None
) -> None:
    assert earlier_pool([other], own_id=own_id, accounts=accounts, repositories=repositories) == found
