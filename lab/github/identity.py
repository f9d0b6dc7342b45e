"""Identity of a caller: App JWTs and installation tokens."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt

from lab.github.payloads import EVENTS, PERMISSIONS

TOKEN_SECONDS = 3600
LONGEST_JWT_SECONDS = 600


@dataclass(kw_only=True)
class App:
    """A GitHub App. `id` is the issuer in its JWTs."""

    id: str
    public_key: str
    name: str
    owner_type: str
    permissions: Mapping[str, str]
    events: Sequence[str]
    public: bool = False


class Identity:
    """Verifies callers.

    `app_id` and `public_key` belong to the first App of this GitHub. Manifests may create more Apps.
    """

    def __init__(self, *, app_id: str, public_key: str) -> None:
        self.app_id = app_id
        self._apps: dict[str, App] = {}
        self.adopt(
            app_id=app_id,
            public_key=public_key,
            name="ostler-lab",
            owner_type="Organization",
            permissions=PERMISSIONS,
            events=EVENTS,
        )
        self._tokens: dict[str, tuple[int, float, App]] = {}
        self.given: list[str] = []

    @property
    def names(self) -> list[str]:
        """Return the unique names of all Apps."""
        return [app.name for app in self._apps.values()]

    @property
    def latest(self) -> App:
        """Return the App that was created last."""
        return list(self._apps.values())[-1]

    def adopt(
        self,
        *,
        app_id: str,
        public_key: str,
        name: str,
        owner_type: str,
        permissions: Mapping[str, str],
        events: Sequence[str],
    ) -> None:
        """Register a further App."""
        self._apps[app_id] = App(
            id=app_id,
            public_key=public_key,
            name=name,
            owner_type=owner_type,
            permissions=dict(permissions),
            events=tuple(events),
        )

    def app_of(self, authorization: str) -> App | str:
        """Return the calling App, or the message that refuses the caller."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            return "A JSON web token could not be decoded"
        try:
            issuer = str(jwt.decode(token, options={"verify_signature": False}).get("iss"))
            app = self._apps.get(issuer)
            if app is None:
                return "Integration not found"
            claims: dict[str, Any] = jwt.decode(
                token, app.public_key, algorithms=["RS256"], options={"require": ["iat", "exp", "iss"]}
            )
        except jwt.PyJWTError:
            return "A JSON web token could not be decoded"
        if claims["exp"] - time.time() > LONGEST_JWT_SECONDS:
            return "'Expiration time' claim ('exp') is too far in the future"
        return app

    def app_refusal(self, authorization: str) -> str | None:
        """Return why a caller is not an App, or None."""
        found = self.app_of(authorization)
        return found if isinstance(found, str) else None

    def issue(self, installation_id: int, app: App) -> tuple[str, float]:
        """Return a new installation token in the long form, and its expiry in Unix seconds."""
        token = "ghs_" + secrets.token_urlsafe(390)
        expires = time.time() + TOKEN_SECONDS
        self._tokens[token] = (installation_id, expires, app)
        self.given.append(token)
        return token, expires

    def revoke_all(self) -> int:
        """Delete every token and return their number."""
        count = len(self._tokens)
        self._tokens.clear()
        return count

    def installation_of(self, authorization: str) -> tuple[int, App] | None:
        """Return the installation and the App of a token, or None."""
        scheme, _, token = authorization.partition(" ")
        found = self._tokens.get(token) if scheme.lower() in {"bearer", "token"} else None
        return (found[0], found[2]) if found and found[1] > time.time() else None
