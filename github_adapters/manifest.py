"""The manifest flow: GitHub creates an App from a manifest, and Ostler exchanges a code for the App's secrets.

GitHub describes the flow in "Registering a GitHub App from a manifest". The operator's browser sends the manifest to
GitHub. GitHub then redirects the browser to a URL that contains the code. The code is valid for an hour, and can be
exchanged once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from github_adapters import fields
from github_adapters.calls.answers import refusal
from github_adapters.calls.http import Deadline, Http
from github_adapters.permissions import WANTED_EVENTS, wanted
from ostler.clock import utcnow
from ostler.errors import Gone, Invalid, Retryable
from ostler.secrets import Secret
from rules.routing.scopes import Scope

LONGEST_NAME = 34
"""Most characters of an App's name."""

_CODE = re.compile(r"[A-Za-z0-9]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppMade:
    """A new App with its secrets, which GitHub shows only once."""

    client_id: str
    slug: str
    name: str
    owner: str
    html_url: str
    private_key: Secret
    webhook_secret: Secret


def manifest(
    *, name: str, homepage: str, webhook_url: str, redirect_url: str, organization: bool, check_runs: bool = False
) -> str:
    """Return the manifest as indented JSON.

    Raises `Invalid` if the name is empty or too long, or if the homepage or the webhook has no valid URL.
    """
    if not 0 < len(name) <= LONGEST_NAME:
        raise Invalid(f"the name of a GitHub App has 1 to {LONGEST_NAME} characters, but {name!r} has {len(name)}")
    for what, url in (("homepage", homepage), ("webhook", webhook_url)):
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
            raise Invalid(f"the URL of the {what} must begin with https:// or http:// and name a host, not {url!r}")
    content: Mapping[str, Any] = {
        "name": name,
        "url": homepage,
        "hook_attributes": {"url": webhook_url, "active": True},
        "redirect_url": redirect_url,
        "public": False,
        "default_permissions": dict(wanted(organization=organization, check_runs=check_runs)),
        "default_events": list(WANTED_EVENTS),
    }
    return json.dumps(content, indent=2)


def registration_url(github_url: str, *, organization: str | None, state: str) -> str:
    """Return the URL for the manifest. The operator's browser posts the manifest to this URL.

    `organization` is the login of the organisation that will own the App. If it is None, the user who is logged in will
    own the App. Raises `Invalid` if `organization` cannot be a login.
    """
    owner = "" if organization is None else f"/organizations/{Scope.organization(organization).login}"
    return f"{github_url.rstrip('/')}{owner}/settings/apps/new?state={quote(state, safe='')}"


def exchange(*, api_url: str, code: str, deadline_seconds: float = 20) -> AppMade:
    """Return the new App in exchange for a code.

    GitHub accepts a code only once. If the answer is lost, the operator has to create another App. Raises `Gone` if the
    code is unknown, already used or older than an hour. Raises `Invalid` if the code is malformed. For any other
    failure, raises the error that a call of the API would raise.
    """
    if not _CODE.fullmatch(code):
        raise Invalid("GitHub sent back a value that is not a code; begin the setup again")
    http = Http(api_url=api_url, timeout=deadline_seconds)
    try:
        answer = http.request(
            method="POST",
            path=f"/app-manifests/{code}/conversions",
            authorization=None,
            deadline=Deadline(deadline_seconds),
        )
    finally:
        http.close()
    if answer.status == HTTPStatus.NOT_FOUND:
        raise Gone("GitHub does not know this code: it was already used, or it is older than an hour")
    if answer.status != HTTPStatus.CREATED:
        raise refusal(answer, what="exchange of the code", now=utcnow())
    try:
        content = fields.decode(answer.body)
        return AppMade(
            client_id=fields.word(content, "client_id"),
            slug=fields.word(content, "slug"),
            name=fields.optional_text(content, "name") or "",
            owner=fields.login(fields.section(content, "owner"), "login"),
            html_url=fields.optional_text(content, "html_url") or "",
            private_key=_secret(content, "pem"),
            webhook_secret=_secret(content, "webhook_secret"),
        )
    except fields.Malformed as error:
        raise Retryable(
            f"GitHub's answer to the exchange of the code does not have the expected form: {error}"
        ) from None


def _secret(source: Mapping[str, Any], key: str) -> Secret:
    value = source.get(key)
    if not isinstance(value, str) or not value:
        raise fields.Malformed(f"{key} is missing")
    return Secret(value)
