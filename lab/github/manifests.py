"""Apps created from manifests: the pages that a person clicks through, and the exchange of the code.

The flow is that of the real GitHub: the manifest is checked when it is posted, and the code can be exchanged once
within an hour. Only the answer to that exchange contains the secrets. The new App's webhook gets a ping.
"""

from __future__ import annotations

import html
import json
import secrets
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from lab.github.entities import Account, now, stamp
from lab.github.identity import Identity
from lab.github.payloads import SITE, user
from lab.github.sender import Sender
from lab.github.world import World

CODE_SECONDS = 3600
LONGEST_NAME = 34
NEEDS = {
    "workflow_job": "actions",
    "workflow_run": "actions",
    "repository": "metadata",
    "check_run": "checks",
    "organization": "members",
    "push": "contents",
}
"""Permission that an App needs to subscribe to an event. Other events cannot be subscribed to."""


@dataclass(kw_only=True)
class Draft:
    """A confirmed App whose code has not been exchanged yet."""

    app_id: int
    manifest: dict[str, Any]
    owner: Account
    made: float


class Manifests:
    """The routes. A new App is added to the existing ones, and webhooks go to the new App from then on."""

    def __init__(self, *, world: World, sender: Sender, identity: Identity) -> None:
        self._world = world
        self._sender = sender
        self._identity = identity
        self._posted: dict[str, tuple[dict[str, Any], Account, str]] = {}
        self._codes: dict[str, Draft] = {}
        self._last_id = 4000

    def routes(self) -> list[Route]:
        """Return every route."""
        return [
            Route("/organizations/{org}/settings/apps/new", self.ask, methods=["POST"]),
            Route("/settings/apps/new", self.ask, methods=["POST"]),
            Route("/settings/apps/confirm/{ticket}", self.confirm, methods=["POST"]),
            Route("/app-manifests/{code}/conversions", self.convert, methods=["POST"]),
        ]

    async def ask(self, request: Request) -> Response:
        """Show the App of a manifest with a button that creates it, or the reasons for a refusal."""
        owner = self._owner(request.path_params.get("org"))
        if owner is None:
            return HTMLResponse(_page("Not Found"), status_code=HTTPStatus.NOT_FOUND)
        posted = parse_qs((await request.body()).decode())
        try:
            manifest = json.loads(posted.get("manifest", [""])[0])
        except ValueError:
            manifest = None
        problems = _problems(manifest, {app.lower() for app in self._identity.names})
        if problems or not isinstance(manifest, dict):
            content = "<h1>Invalid GitHub App configuration</h1>" + "".join(
                f"<p>Error: {html.escape(problem)}</p>" for problem in problems
            )
            return HTMLResponse(_page(content), status_code=HTTPStatus.UNPROCESSABLE_ENTITY)
        ticket = secrets.token_hex(8)
        self._posted[ticket] = (manifest, owner, request.query_params.get("state", ""))
        listed = "".join(
            f"<li>{html.escape(name)}: {html.escape(level)}</li>"
            for name, level in sorted(manifest["default_permissions"].items())
        )
        return HTMLResponse(
            _page(
                f"<h1>Create GitHub App for {html.escape(owner.login)}</h1><p>{html.escape(manifest['name'])}</p>"
                f"<ul>{listed}</ul><form action='/settings/apps/confirm/{ticket}' method='post'>"
                f"<button type='submit'>Create GitHub App for {html.escape(owner.login)}</button></form>"
            )
        )

    async def confirm(self, request: Request) -> Response:
        """Create a code for the App, and redirect the browser with it."""
        posted = self._posted.pop(request.path_params["ticket"], None)
        if posted is None:
            return HTMLResponse(_page("Not Found"), status_code=HTTPStatus.NOT_FOUND)
        manifest, owner, state = posted
        self._last_id += 1
        code = secrets.token_hex(20)
        self._codes[code] = Draft(app_id=self._last_id, manifest=manifest, owner=owner, made=time.monotonic())
        back = f"{manifest['redirect_url']}?{urlencode({'code': code, 'state': state})}"
        return RedirectResponse(back, status_code=HTTPStatus.FOUND)

    async def convert(self, request: Request) -> Response:
        """Exchange a code for the App and its secrets. A code can be exchanged once."""
        draft = self._codes.pop(request.path_params["code"], None)
        if draft is None or time.monotonic() - draft.made > CODE_SECONDS:
            return JSONResponse({"message": "Not Found"}, status_code=HTTPStatus.NOT_FOUND)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        ).decode()
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        client_id, webhook_secret = f"Iv23li{secrets.token_hex(7)}", secrets.token_hex(20)
        manifest, owner = draft.manifest, draft.owner
        slug = manifest["name"].lower().replace(" ", "-")
        self._identity.adopt(
            app_id=client_id,
            public_key=public.decode(),
            name=manifest["name"],
            owner_type=owner.type,
            permissions=manifest["default_permissions"],
            events=manifest["default_events"],
        )
        self._sender.adopt(url=manifest["hook_attributes"]["url"], secret=webhook_secret, app_id=client_id)
        moment = stamp(now())
        body = {
            "id": draft.app_id,
            "slug": slug,
            "node_id": "A_lab",
            "client_id": client_id,
            "owner": user(user_id=owner.id, login=owner.login, kind=owner.type),
            "name": manifest["name"],
            "description": None,
            "external_url": manifest["url"],
            "html_url": f"{SITE}/apps/{slug}",
            "created_at": moment,
            "updated_at": moment,
            "permissions": manifest["default_permissions"],
            "events": manifest["default_events"],
            "client_secret": secrets.token_hex(20),
            "webhook_secret": webhook_secret,
            "pem": pem,
        }
        self._sender.ping(app_id=draft.app_id, body={"zen": "Keep it logically awesome.", "hook_id": draft.app_id})
        return JSONResponse(body, status_code=HTTPStatus.CREATED)

    def _owner(self, login: str | None) -> Account | None:
        """Return the organisation `login`. Without a login, return the first user, who counts as logged in."""
        accounts = self._world.accounts.values()
        if login is not None:
            return next((a for a in accounts if a.login.lower() == login.lower() and a.type == "Organization"), None)
        return next((each for each in accounts if each.type == "User"), None)


def _problems(manifest: Any, taken: set[str]) -> list[str]:
    """Return the reasons why a manifest is refused, in the real GitHub's words if they are known."""
    if not isinstance(manifest, dict):
        return ["The configuration does not appear to be a valid GitHub App manifest."]
    found = []
    name = manifest.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        found.append("Name is too long (maximum is 34 characters)" if name else "Name can't be blank")
    elif name.lower() in taken:
        found.append("Name is already taken")
    found += [
        f"{key} must be a valid URL"
        for key in ("url", "redirect_url")
        if not urlsplit(str(manifest.get(key, ""))).netloc
    ]
    if not urlsplit(str((manifest.get("hook_attributes") or {}).get("url", ""))).netloc:
        found.append("Hook url must be a valid URL")
    permissions, events = manifest.get("default_permissions") or {}, manifest.get("default_events") or []
    if unknown := [event for event in events if event not in NEEDS]:
        found.append(f"Default events unsupported: {' and '.join(unknown)}")
    if bare := [event for event in events if NEEDS.get(event) not in permissions]:
        found.append(f"Default events are not supported by permissions: {' and '.join(bare)}")
    return found


def _page(content: str) -> str:
    return f"<!doctype html><html lang='en'><meta charset='utf-8'><title>GitHub</title><body>{content}</body></html>"
