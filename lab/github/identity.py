"""Who is calling: App JWTs and installation tokens."""

from __future__ import annotations

import secrets
import time
from typing import Any

import jwt

TOKEN_SECONDS = 3600
LONGEST_JWT_SECONDS = 600


class Identity:
    """Checks callers.

    `app_id` and `public_key` are those of the one App that this GitHub knows.
    """

    def __init__(self, *, app_id: str, public_key: str) -> None:
        self.app_id = app_id
        self._public_key = public_key
        self._tokens: dict[str, tuple[int, float]] = {}
        self.given: list[str] = []

    def app_refusal(self, authorization: str) -> str | None:
        """Return why a caller is not the App, or None."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            return "A JSON web token could not be decoded"
        try:
            claims: dict[str, Any] = jwt.decode(
                token, self._public_key, algorithms=["RS256"], options={"require": ["iat", "exp", "iss"]}
            )
        except jwt.PyJWTError:
            return "A JSON web token could not be decoded"
        if str(claims["iss"]) != self.app_id:
            return "Integration not found"
        if claims["exp"] - time.time() > LONGEST_JWT_SECONDS:
            return "'Expiration time' claim ('exp') is too far in the future"
        return None

    def issue(self, installation_id: int) -> tuple[str, float]:
        """Return a new installation token, in the long form, and when it ends (Unix seconds)."""
        token = "ghs_" + secrets.token_urlsafe(390)
        expires = time.time() + TOKEN_SECONDS
        self._tokens[token] = (installation_id, expires)
        self.given.append(token)
        return token, expires

    def revoke_all(self) -> int:
        """Forget every token; return how many there were."""
        count = len(self._tokens)
        self._tokens.clear()
        return count

    def installation_of(self, authorization: str) -> int | None:
        """Return the installation that a token belongs to, or None."""
        scheme, _, token = authorization.partition(" ")
        found = self._tokens.get(token) if scheme.lower() in {"bearer", "token"} else None
        return found[0] if found and found[1] > time.time() else None
