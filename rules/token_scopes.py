"""What an API token may do."""

from __future__ import annotations

from enum import StrEnum


class TokenScope(StrEnum):
    """`read` answers GET, `write` takes changes. Neither includes the other."""

    READ = "read"
    WRITE = "write"


def needed_for(method: str) -> TokenScope:
    """Return the scope that an HTTP method needs."""
    return TokenScope.READ if method in {"GET", "HEAD", "OPTIONS"} else TokenScope.WRITE
