"""Scopes of an API token."""

from __future__ import annotations

from enum import StrEnum


class TokenScope(StrEnum):
    """Permission of a token. `read` allows GET, `write` allows changes. `write` does not include `read`."""

    READ = "read"
    WRITE = "write"


def needed_for(method: str) -> TokenScope:
    """Return the scope that an HTTP method needs."""
    return TokenScope.READ if method in {"GET", "HEAD", "OPTIONS"} else TokenScope.WRITE
