"""Rights of people by their groups."""

from __future__ import annotations

import pytest

from rules.token_scopes import GroupRights, Rights, TokenScope, rights_of

READ, WRITE = TokenScope.READ, TokenScope.WRITE
GRANTED: dict[str, GroupRights] = {"all": "write", "see": "read", "shop": ("acme", "Zoo"), "zoo": ("zoo",)}


@pytest.mark.parametrize(
    ("groups", "rights"),
    [
        ((), None),
        (("unknown", "ALL"), None),
        (("see",), Rights(frozenset({READ}), None)),
        (("all", "zoo"), Rights(frozenset({READ, WRITE}), None)),
        (("see", "zoo"), Rights(frozenset({READ}), None)),
        (("shop", "zoo"), Rights(frozenset({READ}), frozenset({"acme", "Zoo", "zoo"}))),
    ],
)
def test_person_has_the_rights_of_all_groups(groups: tuple[str, ...], rights: Rights | None) -> None:
    assert rights_of(groups, GRANTED) == rights
