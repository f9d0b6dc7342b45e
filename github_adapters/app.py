"""Reading the App and its installations (GitHub docs, "REST API endpoints for GitHub Apps")."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from github_adapters import fields
from github_adapters.http import Answer
from ostler.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSeen:
    """The App as GitHub shows it."""

    name: str
    slug: str
    organization: bool
    permissions: Mapping[str, str]
    events: tuple[str, ...]
    owner_id: int | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppInstallation:
    """An installation, with what its owner granted: less than the App asks for until a change of it is accepted."""

    id: int
    login: str
    organization: bool
    suspended: bool
    permissions: Mapping[str, str]
    events: tuple[str, ...]


def read_app(answer: Answer) -> AppSeen:
    """Return the App. Raises `Malformed`."""
    content = fields.decode(answer.body)
    owner = fields.section(content, "owner")
    return AppSeen(
        name=fields.optional_text(content, "name") or "",
        slug=fields.optional_text(content, "slug") or "",
        organization=owner.get("type") == "Organization",
        permissions=_permissions(content),
        events=_events(content),
        owner_id=fields.number(owner, "id"),
        owner=fields.optional_text(owner, "login") or "",
    )


def read_installations(answer: Answer) -> list[AppInstallation]:
    """Return a page of installations, without those at enterprises, which are logged. Raises `Malformed`."""
    try:
        listed = json.loads(answer.body)
    except ValueError:
        raise fields.Malformed("installations") from None
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise fields.Malformed("installations")
    found = []
    for each in listed:
        if fields.at_an_enterprise(each):
            log.info("installation.skipped", installation=each.get("id"), why="an enterprise runs no jobs of its own")
        else:
            found.append(_installation(each))
    return found


def _installation(each: Mapping[str, Any]) -> AppInstallation:
    return AppInstallation(
        id=fields.number(each, "id"),
        login=fields.login(fields.section(each, "account"), "login"),
        organization=each.get("target_type") == "Organization",
        suspended=each.get("suspended_at") is not None,
        permissions=_permissions(each),
        events=_events(each),
    )


def _permissions(source: Mapping[str, Any]) -> dict[str, str]:
    found = source.get("permissions")
    if not isinstance(found, dict):
        raise fields.Malformed("permissions")
    return {name: level for name, level in found.items() if isinstance(level, str)}


def _events(source: Mapping[str, Any]) -> tuple[str, ...]:
    found = source.get("events")
    if not isinstance(found, list):
        raise fields.Malformed("events")
    return tuple(event for event in found if isinstance(event, str))


def clock_ahead(answer: Answer, now: datetime) -> timedelta | None:
    """Return by how much `now` is ahead of the answer's date; None when it has none."""
    try:
        there = parsedate_to_datetime(answer.headers.get("date", ""))
    except ValueError:
        return None
    return now - (there if there.tzinfo else there.replace(tzinfo=UTC))
