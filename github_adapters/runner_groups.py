"""Reading runner groups (GitHub docs, "REST API endpoints for self-hosted runner groups")."""

from __future__ import annotations

from typing import Any

from github_adapters import fields
from rules.routing.runner_groups import GroupSeen


def read_group(source: Any) -> GroupSeen:
    """Return a group of an organisation. Raises `Malformed`."""
    if not isinstance(source, dict):
        raise fields.Malformed("runner group")
    name = fields.optional_text(source, "name")
    if name is None:
        raise fields.Malformed("name")
    return GroupSeen(
        id=fields.number(source, "id"),
        name=name,
        visibility=fields.word(source, "visibility"),
        # An Enterprise Server of before this setting lets none in.
        public=source.get("allows_public_repositories") is True,
    )
