"""Logins to the dashboard through an OpenID provider (authorization code flow with PKCE).

The state of a login that has begun is an encrypted cookie, which lasts ten minutes. Ostler stores nothing before the
provider has named the person. The person's session is then the session of a token without a known secret
(`models.api_tokens.log_in_person`).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from models import api_tokens
from models.api_tokens import Holder
from ostler.clock import utcnow
from ostler.encryption import Undecryptable
from ostler.logging import get_logger
from ostler.secrets import Secret
from ostler.server_words import without_controls
from ostler.settings import Settings
from rules.token_scopes import rights_of
from web.api.database import Database
from web.api.problems import Refusal, unavailable
from web.edge.refused_log import RefusedLog
from web.ui.openid import NotAccepted, Provider, ProviderFailed
from web.ui.sessions import LASTS, Sessions, cipher_for

COOKIE = "ostler_login"
PATH = "/ui/oidc"
BEGUN_FOR = timedelta(minutes=10)
LONGEST_CODE = 4096
LONGEST_NAME = 100
MOST_CALLS = 4
"""Logins that wait for the provider at the same time. A provider that hangs must not occupy more threads."""

T = TypeVar("T")
log = get_logger(__name__)


class Logins:
    """The two routes of a login. `local` returns a path of the dashboard for any address."""

    def __init__(
        self,
        settings: Settings,
        *,
        sessions: Sessions,
        database: Callable[[], Database],
        local: Callable[[str | None], str],
    ) -> None:
        self._settings = settings
        self._provider = Provider(settings)
        self._cipher = cipher_for("login", settings.encryption_keys)
        self._sessions = sessions
        self._database = database
        self._local = local
        self._calls = 0
        self._refused = RefusedLog(log, "ui.login_refused")
        self._failed = RefusedLog(log, "ui.provider_failed")

    async def begin(self, request: Request) -> Response:
        """Send the browser to the provider.

        Another site must not begin a login: with single sign-on, the new session would replace the reader's session.
        """
        if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            return RedirectResponse("/ui/login", HTTPStatus.SEE_OTHER)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = {
            "state": state,
            "nonce": nonce,
            "verifier": verifier,
            "next": self._local(request.query_params.get("next"))[:1000],
            "until": (utcnow() + BEGUN_FOR).timestamp(),
        }
        address = await self._ask(
            partial(self._provider.login_url, state=state, nonce=nonce, verifier=Secret(verifier))
        )
        response = RedirectResponse(address, HTTPStatus.SEE_OTHER)
        # The provider sends the browser back from another site, and `strict` cookies are not sent then.
        response.set_cookie(
            COOKIE,
            self._cipher.encrypt(Secret(json.dumps(begun))).decode(),
            max_age=int(BEGUN_FOR.total_seconds()),
            path=PATH,
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )
        return response

    async def finish(self, request: Request) -> Response:
        """Begin the session of the person whom the provider has sent back."""
        try:
            begun = json.loads(self._cipher.decrypt(request.cookies.get(COOKIE, "").encode()).reveal())
        except Undecryptable:
            raise self._refusal("this browser has not begun a login, or the login took more than 10 minutes") from None
        state = request.query_params.get("state", "")
        if not hmac.compare_digest(state.encode(), begun["state"].encode()):
            raise self._refusal("the answer belongs to another login; log in again")
        if datetime.fromtimestamp(begun["until"], UTC) <= utcnow():
            raise self._refusal("the login took more than 10 minutes")
        if "error" in request.query_params:
            error = without_controls(request.query_params["error"])[:100]
            raise self._refusal(f"the provider refused the login ({error})")
        code = request.query_params.get("code", "")
        if not 0 < len(code) <= LONGEST_CODE:
            raise self._refusal("the answer of the provider has no code")
        holder = await self._log_in(Secret(code), begun["nonce"], Secret(begun["verifier"]))
        response = RedirectResponse(self._local(begun["next"]), HTTPStatus.SEE_OTHER)
        response.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="lax")
        self._sessions.begin(response, holder, secure=self._secure, now=utcnow())
        log.info("ui.logged_in", token_name=holder.name)
        return response

    async def _log_in(self, code: Secret, nonce: str, verifier: Secret) -> Holder:
        person = await self._ask(partial(self._provider.person, code=code, nonce=nonce, verifier=verifier))
        rights = rights_of(person.groups, self._settings.oidc_groups)
        name = without_controls(person.name)[:LONGEST_NAME]
        if rights is None:
            raise self._refusal(
                f"no group of {name} has rights here; an operator can add a group to OSTLER_OIDC_GROUPS"
            )
        now = utcnow()
        holder = await self._database().run(
            lambda db: api_tokens.log_in_person(
                db, subject=person.subject, name=name, rights=rights, expires_at=now + LASTS, now=now
            )
        )
        if holder is None:
            raise self._refusal(f"Ostler knows none of the accounts that {name} may see; it learns them from webhooks")
        return holder

    async def _ask(self, call: Callable[[], T]) -> T:
        if self._calls >= MOST_CALLS:
            raise unavailable()
        self._calls += 1
        try:
            return await asyncio.to_thread(call)
        except NotAccepted as error:
            raise self._refusal(str(error)) from None
        except ProviderFailed as error:
            self._failed.add(error=str(error))
            raise Refusal(
                HTTPStatus.BAD_GATEWAY,
                "provider-failed",
                "The OpenID provider failed",
                "The log of web names the cause. A login with an API token still works.",
            ) from None
        finally:
            self._calls -= 1

    @property
    def _secure(self) -> bool:
        return str(self._settings.oidc_redirect_url).startswith("https://")

    def _refusal(self, why: str) -> Refusal:
        self._refused.add(why=why)
        return Refusal(HTTPStatus.FORBIDDEN, "login", "The login was refused", f"{why[:1].upper()}{why[1:]}.")
