"""Scopes of an API token, and the rights of people who log in by their groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class TokenScope(StrEnum):
    """Permission of a token. `read` allows GET, `write` allows changes. `write` does not include `read`."""

    READ = "read"
    WRITE = "write"


def needed_for(method: str) -> TokenScope:
    """Return the scope that an HTTP method needs."""
    return TokenScope.READ if method in {"GET", "HEAD", "OPTIONS"} else TokenScope.WRITE


GroupRights = Literal["read", "write"] | tuple[str | int, ...]
"""Rights of a group: read everything, read and change everything, or read these accounts (logins or ids)."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Scopes of a person, and the logins or ids of the accounts that the person may see. None means all accounts."""

    scopes: frozenset[TokenScope]
    accounts: frozenset[str | int] | None


def rights_of(groups: Collection[str], granted: Mapping[str, GroupRights]) -> Rights | None:
    """Return the rights that a person has by all of their groups, or None if no group has any right."""
    rights = [granted[group] for group in groups if group in granted]
    if not rights:
        return None
    if "write" in rights:
        return Rights(frozenset(TokenScope), None)
    if "read" in rights:
        return Rights(frozenset({TokenScope.READ}), None)
    return Rights(frozenset({TokenScope.READ}), frozenset(account for each in rights for account in each))
