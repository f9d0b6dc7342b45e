"""Identity of the App: the JWT of the App, and one cached token per installation.

One thread renews a token before it expires, while the other threads still use the old token. Tokens may have any
length, because GitHub is introducing a longer, stateless form. The tokens are stored in memory only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from github_adapters import fields
from github_adapters.calls.answers import refused_token
from github_adapters.calls.governor import CallClass, Governs
from github_adapters.calls.http import Deadline, Http
from ostler.errors import ConfigurationError, NotInstalled, RateLimited, Retryable
from ostler.secrets import Secret

# The lifetime follows "Generating a JSON Web Token (JWT) for a GitHub App". The JWT is dated 60 s back, because clocks
# differ. GitHub accepts a lifetime of at most ten minutes, so the JWT expires nine minutes from now.
BACKDATED = timedelta(seconds=60)
LIFETIME = timedelta(minutes=9)
RENEW_AHEAD = timedelta(minutes=5)
# A token with less time left might expire during the call.
TOO_LATE = timedelta(seconds=20)
RENEW_PAUSE = timedelta(seconds=30)
LONGEST_WAIT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An installation token and the time at which it expires."""

    secret: Secret
    expires_at: datetime


@dataclass(slots=True)
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    token: Token | None = None
    not_before: datetime | None = None


class AppAuth:
    """Issues JWTs and caches installation tokens. Threads may share it.

    If GitHub's answer to the request for a token shows that the installation does not exist, `left` is called with the
    id of the installation.
    """

    def __init__(
        self,
        *,
        http: Http,
        app_id: str,
        private_key: Secret,
        clock: Callable[[], datetime],
        governor: Governs,
        left: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._http = http
        self._governor = governor
        self._left = left
        self._app_id = app_id
        self._key = _load(private_key)
        self._clock = clock
        self._slots: dict[int, _Slot] = {}
        self._slots_lock = threading.Lock()

    def app_token(self) -> Secret:
        """Return a fresh JWT of the App, valid for nine minutes."""
        now = self._clock()
        claims = {
            "iat": int((now - BACKDATED).timestamp()),
            "exp": int((now + LIFETIME).timestamp()),
            "iss": self._app_id,
        }
        return Secret(jwt.encode(claims, self._key, algorithm="RS256"))

    def installation_token(self, *, installation_id: int, deadline: Deadline) -> Token:
        """Return a token of the installation that is valid for at least 20 more seconds.

        Raises `NotInstalled`, `Suspended` or `Forbidden` if GitHub refuses to issue a new token. Raises `RateLimited`
        or `Retryable` if no new token can be issued now and the cache has no such token.
        """
        slot = self._slot(installation_id)
        token, now = slot.token, self._clock()
        if token and now < token.expires_at - RENEW_AHEAD:
            return token
        usable = token if token and now < token.expires_at - TOO_LATE else None
        if usable and slot.not_before and now < slot.not_before:
            return usable
        if usable:
            if not slot.lock.acquire(blocking=False):
                return usable
        elif not slot.lock.acquire(timeout=deadline.left(LONGEST_WAIT)):
            raise Retryable(
                f"another thread still requests the token of installation {installation_id}; try again later"
            )
        try:
            if slot.token is not None and slot.token is not token:
                return slot.token
            try:
                slot.token, slot.not_before = self._issue(installation_id, deadline), None
            except (Retryable, RateLimited):
                if usable is None:
                    raise
                slot.not_before = now + RENEW_PAUSE
                return usable
            return slot.token
        finally:
            slot.lock.release()

    def drop(self, *, installation_id: int, token: Token) -> None:
        """Delete from the cache a token that GitHub refused.

        If another thread has renewed the token in the meantime, the new token stays in the cache.
        """
        slot = self._slot(installation_id)
        # No lock is taken, so that no thread waits here for a renewal. In the worst case, a token is
        # renewed once more than needed.
        if slot.token is token:
            slot.token = None

    def _slot(self, installation_id: int) -> _Slot:
        with self._slots_lock:
            return self._slots.setdefault(installation_id, _Slot())

    def _issue(self, installation_id: int, deadline: Deadline) -> Token:
        with self._governor.call(installation_id, CallClass.TOKEN) as ticket:
            answer = ticket.answer = self._http.request(
                method="POST",
                path=f"/app/installations/{installation_id}/access_tokens",
                authorization=f"Bearer {self.app_token().reveal()}",
                deadline=deadline,
            )
        if answer.status != HTTPStatus.CREATED:
            error = refused_token(answer, now=self._clock())
            if isinstance(error, NotInstalled):
                self._left(installation_id)
            raise error
        try:
            body = fields.decode(answer.body)
            secret, expires_at = body.get("token"), fields.moment(body, "expires_at")
        except fields.Malformed:
            secret = None
        if not isinstance(secret, str) or not secret or not secret.isascii() or not secret.isprintable():
            raise Retryable("GitHub answered without an installation token", status=answer.status)
        return Token(secret=Secret(secret), expires_at=expires_at)


def _load(private_key: Secret) -> RSAPrivateKey:
    pem = private_key.reveal().replace("\\n", "\n").encode()
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise ConfigurationError(
            "OSTLER_GITHUB_PRIVATE_KEY: found a value that is not an RSA private key in PEM (hidden); set it to the "
            "content of the .pem file that the App's page on GitHub generates"
        )
    return key
