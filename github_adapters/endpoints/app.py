"""Calls of GitHub's page "REST API endpoints for GitHub Apps"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from github_adapters import fields
from github_adapters.calls.governor import CallClass
from github_adapters.calls.http import Answer, Deadline
from github_adapters.calls.session import Session
from github_adapters.endpoints.pages import PAGE
from ostler.errors import NotInstalled
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
    """An installation, with the permissions that its owner granted.

    The App might request more permissions than the owner has accepted.
    """

    id: int
    login: str
    organization: bool
    suspended: bool
    permissions: Mapping[str, str]
    events: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationSeen:
    """An installation of the App as GitHub shows it."""

    account_id: int
    login: str
    suspended: bool


class App:
    """The App itself, and its installations."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_app(self, *, deadline_seconds: float | None = None) -> AppSeen:
        """Return the App itself.

        A successful answer proves that the App's id and key are right, and that the clocks agree.
        """
        answer = self._session.call_as_app(
            call_class=CallClass.READ, method="GET", path="/app", deadline=Deadline(deadline_seconds)
        )
        return self._session.read(answer, read_app, what="look-up of the App")

    def is_public(self, *, slug: str, deadline_seconds: float | None = None) -> bool | None:
        """Return True if anybody may install the App with this slug; False if only its owner may.

        Return None if GitHub's answer does not show this. GitHub shows an App to an unauthenticated caller only if the
        App is public ("Get an app").
        """
        answer = self._session.call_as_nobody(path=f"/apps/{quote(slug, safe='')}", deadline=Deadline(deadline_seconds))
        return {200: True, 404: False}.get(answer.status)

    def clock_ahead(self, *, deadline_seconds: float | None = None) -> timedelta | None:
        """Return the time of this machine's clock minus the time of GitHub's clock.

        The result is negative if this machine's clock is behind. It is None if the answer has no date.
        """
        answer = self._session.call_as_nobody(path="/", deadline=Deadline(deadline_seconds))
        return clock_ahead(answer, self._session.now())

    def get_installation(self, *, installation_id: int, deadline_seconds: float | None = None) -> InstallationSeen:
        """Return an installation of the App, with the present login of its account.

        Raises `NotInstalled` if the installation does not exist.
        """
        answer = self._session.call_as_app(
            call_class=CallClass.READ,
            method="GET",
            path=f"/app/installations/{installation_id}",
            deadline=Deadline(deadline_seconds),
        )
        if answer.status == HTTPStatus.NOT_FOUND:
            raise NotInstalled("the App is no longer installed for this account or repository")
        return self._session.read(answer, _installation_seen, what="look-up of an installation")

    def list_installations(self, *, deadline_seconds: float | None = None) -> list[AppInstallation]:
        """Return up to 100 installations of the App, with the permissions granted to each installation."""
        answer = self._session.call_as_app(
            call_class=CallClass.READ,
            method="GET",
            path=f"/app/installations?per_page={PAGE}",
            deadline=Deadline(deadline_seconds),
        )
        return self._session.read(answer, read_installations, what="list of installations")


def _installation_seen(answer: Answer) -> InstallationSeen:
    content = fields.decode(answer.body)
    account = fields.section(content, "account")
    return InstallationSeen(
        account_id=fields.number(account, "id"),
        login=fields.login(account, "login"),
        suspended=content.get("suspended_at") is not None,
    )


def read_app(answer: Answer) -> AppSeen:
    """Return the App from an answer. Raises `Malformed` if the answer does not have the expected form."""
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
    """Return the installations from a page of an answer. Installations at enterprises are logged and left out.

    Raises `Malformed` if the answer does not have the expected form.
    """
    try:
        listed = json.loads(answer.body)
    except ValueError:
        raise fields.Malformed("the body is not JSON") from None
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise fields.Malformed("the body is not a list of objects")
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
        raise fields.Malformed("permissions is not an object")
    return {name: level for name, level in found.items() if isinstance(level, str)}


def _events(source: Mapping[str, Any]) -> tuple[str, ...]:
    found = source.get("events")
    if not isinstance(found, list):
        raise fields.Malformed("events is not a list")
    return tuple(event for event in found if isinstance(event, str))


def clock_ahead(answer: Answer, now: datetime) -> timedelta | None:
    """Return `now` minus the date of the answer.

    The result is negative if `now` is earlier. It is None if the answer has no date.
    """
    try:
        there = parsedate_to_datetime(answer.headers.get("date", ""))
    except ValueError:
        return None
    return now - (there if there.tzinfo else there.replace(tzinfo=UTC))
