"""Sessions of the dashboard. A session is an encrypted cookie, and its token is verified again for each request.

While a page has a stream, the token is verified every few seconds (`web.ui.streams`).

The cookie contains the key id of the API token, a digest of the token's rights, and the end of the session. Ostler
stores no session. A session therefore ends if its token is revoked, expires or gets other rights, and otherwise after
`LASTS`. A logout deletes the cookie in the browser.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from models import api_tokens
from models.api_tokens import Holder, Refused
from ostler.encryption import Cipher, Undecryptable
from ostler.secrets import Secret

COOKIE = "ostler_session"
SESSION = "ostler.ui.session"
"""Key in the scope of a request. Its value is the session, which was verified."""

PATH = "/ui"
LASTS = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class Session:
    """The content of a valid cookie. `rights` is the digest of the rights that the token had at the login."""

    key_id: str
    rights: str
    until: datetime


class Sessions:
    """Makes and opens the cookies of sessions.

    The keys are derived from the encryption keys, so that no stored JIT is valid as a session. The newest key encrypts,
    and every key decrypts.
    """

    def __init__(self, keys: Sequence[Secret]) -> None:
        self._cipher = cipher_for("session", keys)
        self._form_keys = [_derived("form", key) for key in keys]

    def begin(self, response: Response, holder: Holder, *, secure: bool, now: datetime) -> None:
        """Add the cookie of a new session to an answer. `secure` must be True if the browser uses HTTPS."""
        content = {"key": holder.key_id, "rights": rights_of(holder), "until": (now + LASTS).timestamp()}
        response.set_cookie(
            COOKIE,
            self._cipher.encrypt(Secret(json.dumps(content))).decode(),
            max_age=int(LASTS.total_seconds()),
            path=PATH,
            secure=secure,
            httponly=True,
            samesite="strict",
        )

    def form_token(self, request: Request) -> str:
        """Return the value that the forms of this session contain. Another session has another value."""
        return self._form_tokens(request)[0]

    def is_own_form(self, request: Request, given: str) -> bool:
        """Return True if `given` is the value of a form of this session."""
        values = [hmac.compare_digest(each.encode(), given.encode()) for each in self._form_tokens(request)]
        return any(values)

    def _form_tokens(self, request: Request) -> list[str]:
        cookie = request.cookies.get(COOKIE, "").encode()
        return [hmac.digest(key, cookie, hashlib.sha256).hex() for key in self._form_keys]

    def read(self, request: Request, *, now: datetime) -> Session | None:
        """Return the session of a request, or None if the cookie is absent, expired or not made with our keys."""
        try:
            content = json.loads(self._cipher.decrypt(request.cookies.get(COOKIE, "").encode()).reveal())
        except Undecryptable:
            return None
        found = Session(content["key"], content["rights"], datetime.fromtimestamp(content["until"], UTC))
        return found if found.until > now else None


def holder_of(db: Connection, session: Session, *, now: datetime) -> Holder | None:
    """Return the holder of the token of a session, or None if the session has ended."""
    if session.until <= now:
        return None
    found = api_tokens.verify_again(db, session.key_id, now=now)
    return None if isinstance(found, Refused) or not hmac.compare_digest(rights_of(found), session.rights) else found


def still_valid(db: Connection, sessions: Collection[Session], *, now: datetime) -> frozenset[Session]:
    """Return the sessions that have not ended."""
    holders = api_tokens.verify_all_again(db, {each.key_id for each in sessions}, now=now)
    rights = {key_id: rights_of(holder) for key_id, holder in holders.items()}
    return frozenset(
        each
        for each in sessions
        if each.until > now and each.key_id in rights and hmac.compare_digest(rights[each.key_id], each.rights)
    )


def cipher_for(purpose: str, keys: Sequence[Secret]) -> Cipher:
    """Return the cipher of one kind of cookie. Its keys are derived from `keys`, and differ for each purpose."""
    return Cipher([Secret(base64.urlsafe_b64encode(_derived(purpose, key)).decode()) for key in keys])


def _derived(purpose: str, key: Secret) -> bytes:
    return hmac.digest(key.reveal().encode(), f"ostler dashboard {purpose}".encode(), hashlib.sha256)


def end(response: Response) -> None:
    """Delete the cookie of the session in the browser."""
    response.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="strict")


def rights_of(holder: Holder) -> str:
    """Return a digest of the scopes and the accounts of a token."""
    rights = [sorted(holder.scopes), None if holder.accounts is None else sorted(holder.accounts)]
    return hashlib.sha256(json.dumps(rights).encode()).hexdigest()


def is_from_own_page(request: Request) -> bool:
    """Return True if a page of this origin sent the request; False if another site might have sent it.

    Browsers send `Sec-Fetch-Site` over HTTPS and on localhost, and `Origin` with every POST. A request with neither
    header is refused.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return _origin(request)[1] == request.headers.get("host", "-")


def is_https(request: Request) -> bool:
    """Return True if the browser uses HTTPS, even if a proxy ends the TLS connection before `web`."""
    return "https" in {request.url.scheme, _origin(request)[0]}


def _origin(request: Request) -> tuple[str, str]:
    """Return scheme and host of the header `Origin`, or two empty texts if it has none."""
    try:
        parts = urlsplit(request.headers.get("origin", ""))
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc
