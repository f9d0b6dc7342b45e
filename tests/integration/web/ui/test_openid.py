"""Logins through an OpenID provider: a real one on this machine, and one whose answers are hostile."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from structlog.testing import capture_logs

from lab.processes import Child, free_port
from ostler.clock import utcnow
from ostler.secrets import Secret
from ostler.settings import Settings
from tests.database import Database
from tests.integration.web.api.conftest import Client, make_settings
from tests.outbox import PublisherOutbox
from tests.rows import insert_account, run_sql
from tests.served import served
from tests.waiting import eventually
from web.api.database import Database as ApiDatabase
from web.ui import logins, openid
from web.ui.app import mount_ui
from web.ui.streams import Streams

CALLBACK = "http://ostler/ui/oidc/callback"
GROUPS = {"platform": "write", "support": "read", "shop": ["Acme"], "zoo": ["zoo"], "lost": ["nobody"], "nine": [9]}
PEOPLE = {
    "pia": ["platform"],
    "sam": ["support"],
    "ann": ["shop", "unknown"],
    "ida": ["nine"],
    "leo": ["lost"],
    "max": ["other"],
}


@dataclass
class Browser:
    """A browser with its cookies, at a dashboard whose people log in at `issuer`."""

    client: Client
    issuer: str
    cookies: dict[str, str] = field(default_factory=dict)

    def see(self, path: str = "/ui/") -> httpx.Response:
        self.client._client.cookies.clear()
        header = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = self.client.call("GET", path, headers={"Cookie": header} if header else {})
        for each in answer.headers.get_list("set-cookie"):
            name, _, rest = each.partition("=")
            self.cookies[name] = rest.split(";")[0].strip('"')
        return answer

    def begin(self, after: str = "/ui/jobs") -> str:
        """Return the address at the provider."""
        answer = self.see(f"/ui/oidc/login?next={after}")
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def allow(self, address: str, person: str) -> str:
        """Let the provider name a person, and return the path of the callback."""
        answer = httpx.post(address, data={"sub": person})
        assert answer.headers["location"].startswith(CALLBACK), answer.text
        return answer.headers["location"].removeprefix("http://ostler")

    def log_in(self, person: str, after: str = "/ui/jobs") -> httpx.Response:
        return self.see(self.allow(self.begin(after), person))


@contextmanager
def browsing(database: Database, issuer: str, **more: Any) -> Iterator[Callable[[], Browser]]:
    pool, app = ApiDatabase(database.engine), FastAPI()
    provider = {
        "oidc_issuer": issuer,
        "oidc_client_id": "ostler",
        "oidc_client_secret": Secret("of these tests: alone"),
        "oidc_redirect_url": CALLBACK,
        "oidc_groups": GROUPS,
    }
    values = {name: getattr(make_settings(database), name) for name in Settings.model_fields}
    streams = Streams(pool)
    mount_ui(
        app,
        Settings(**values | provider | more),
        database=lambda: pool,
        streams=lambda: streams,
        publisher=PublisherOutbox,
    )
    client = Client(app)
    insert_account(database.engine, 7, "acme", count=1)
    insert_account(database.engine, 8, "zoo", count=1)
    yield lambda: Browser(client, issuer)
    client.close()
    pool.stop()


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the issuer of a provider that knows `PEOPLE`."""
    port = free_port()
    people = [
        json.dumps({"sub": name, "preferred_username": name, "groups": groups}) for name, groups in PEOPLE.items()
    ]
    command = [str(Path(sys.executable).parent / "oidc-provider-mock"), "--port", str(port), "--require-nonce", "true"]
    for each in people:
        command += ["--user-claims", each]
    child = Child("provider", command, log=tmp_path_factory.mktemp("provider") / "log")
    child.start()
    issuer = f"http://127.0.0.1:{port}"
    eventually(lambda: _answers(f"{issuer}/.well-known/openid-configuration"), "the provider does not start", within=60)
    yield httpx.get(f"{issuer}/.well-known/openid-configuration").json()["issuer"]
    child.stop()


def _people(database: Database) -> int:
    return len(run_sql(database.engine, "SELECT id FROM api_tokens WHERE subject IS NOT NULL"))


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def browser(database: Database, provider: str) -> Iterator[Browser]:
    with browsing(database, provider) as new:
        yield new()


def test_person_logs_in_and_returns_to_the_page(browser: Browser) -> None:
    assert "Log in with" in browser.see("/ui/login").text
    answer = browser.log_in("sam", after="/ui/jobs?state=queued")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs?state=queued")
    assert "sam" in browser.see("/ui/jobs").text


def test_cookies_of_a_login_are_not_for_scripts(browser: Browser) -> None:
    begun = browser.see("/ui/oidc/login").headers["set-cookie"].lower()
    assert {"httponly", "samesite=lax", "path=/ui/oidc", "max-age=600"} <= {each.strip() for each in begun.split(";")}
    assert set(parse_qs(urlsplit(browser.begin()).query)) >= {"state", "nonce", "code_challenge"}


@pytest.mark.parametrize(
    ("person", "scopes", "accounts"),
    [("pia", ["read", "write"], None), ("sam", ["read"], None), ("ann", ["read"], [7])],
)
def test_groups_give_the_rights(
    browser: Browser, database: Database, person: str, scopes: list[str], accounts: list[int] | None
) -> None:
    browser.log_in(person)
    row = run_sql(
        database.engine, "SELECT scopes, accounts FROM api_tokens WHERE subject LIKE :like", like=f"% {person}"
    )[0]
    assert (row.scopes, row.accounts) == (scopes, accounts)


@pytest.mark.parametrize(("person", "why"), [("max", "OSTLER_OIDC_GROUPS"), ("leo", "none of the accounts")])
def test_person_without_rights_gets_no_session(browser: Browser, person: str, why: str) -> None:
    answer = browser.log_in(person)
    assert (answer.status_code, "ostler_session" in browser.cookies) == (403, False)
    assert why in answer.text


def test_limited_person_sees_only_own_accounts(browser: Browser) -> None:
    browser.log_in("ann")
    assert browser.see("/ui/accounts/7").status_code == 200
    assert {browser.see(each).status_code for each in ("/ui/accounts/8", "/ui/sweeps")} <= {403, 404}


def test_login_of_two_accounts_gives_no_rights(browser: Browser, database: Database) -> None:
    insert_account(database.engine, 9, "ACME", count=1)
    answer = browser.log_in("ann")
    assert (answer.status_code, "none of the accounts" in answer.text) == (403, True)


def test_account_can_be_named_by_its_id(browser: Browser, database: Database) -> None:
    insert_account(database.engine, 9, "ACME", count=1)
    browser.log_in("ida")
    (row,) = run_sql(database.engine, "SELECT accounts FROM api_tokens WHERE subject IS NOT NULL")
    assert row.accounts == [9]


def test_rights_that_a_login_gives_are_a_change(browser: Browser, database: Database) -> None:
    for _ in range(2):
        browser.log_in("sam")
    rows = run_sql(database.engine, "SELECT kind, name, who, via, new FROM changes ORDER BY id")
    assert [(row.kind, row.name, row.who, row.via) for row in rows] == [("token", "sam", "sam", "dashboard")]
    assert rows[0].new == {"scopes": ["read"]}


def test_another_site_cannot_begin_a_login(browser: Browser) -> None:
    answer = browser.client.call("GET", "/ui/oidc/login", headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.headers["location"], "set-cookie" in answer.headers) == ("/ui/login", False)


def test_refused_logins_write_one_line_a_second(browser: Browser) -> None:
    with capture_logs() as lines:
        for _ in range(20):
            browser.see("/ui/oidc/callback?error=x")
    assert len([line for line in lines if line["event"] == "ui.login_refused"]) <= 2


def test_page_of_a_failed_login_is_not_loaded_again(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = browser.allow(browser.begin(), "sam")
    monkeypatch.setattr(logins, "MOST_CALLS", 0)
    answer = browser.see(callback)
    assert (answer.status_code, "http-equiv" in answer.text) == (503, False)


def test_revoked_person_is_out_until_the_next_login(browser: Browser, database: Database) -> None:
    browser.log_in("sam")
    run_sql(database.engine, "UPDATE api_tokens SET revoked_at = now()")
    assert browser.see().status_code == 303
    browser.log_in("sam")
    assert browser.see().status_code == 200
    assert _people(database) == 2


def test_second_login_keeps_the_row_of_the_person(browser: Browser, database: Database) -> None:
    browser.log_in("sam")
    browser.log_in("sam")
    assert _people(database) == 1


def test_new_rights_end_the_sessions_with_old_rights(browser: Browser, database: Database) -> None:
    browser.log_in("sam")
    run_sql(database.engine, "UPDATE api_tokens SET scopes = ARRAY['read', 'write'] WHERE subject IS NOT NULL")
    assert browser.see().status_code == 303


def test_answer_is_good_for_one_login(browser: Browser) -> None:
    callback = browser.allow(browser.begin(), "sam")
    begun = dict(browser.cookies)
    assert browser.see(callback).status_code == 303
    browser.cookies = begun
    assert browser.see(callback).status_code == 403


def test_answer_to_another_browser_is_refused(browser: Browser) -> None:
    other = Browser(browser.client, browser.issuer)
    callback = browser.allow(browser.begin(), "sam")
    assert other.see(callback).status_code == 403
    other.begin()
    assert other.see(callback).status_code == 403
    assert "ostler_session" not in other.cookies


def test_code_of_another_login_is_refused_by_the_provider(browser: Browser) -> None:
    stolen = parse_qs(urlsplit(browser.allow(browser.begin(), "pia")).query)["code"][0]
    other = Browser(browser.client, browser.issuer)
    state = parse_qs(urlsplit(other.begin()).query)["state"][0]
    answer = other.see(f"/ui/oidc/callback?code={stolen}&state={state}")
    assert (answer.status_code, "ostler_session" in other.cookies) == (403, False)


def test_person_may_refuse(browser: Browser) -> None:
    answer = httpx.post(browser.begin(), data={"sub": "sam", "action": "deny"})
    assert "error=access_denied" in answer.headers["location"]
    state = parse_qs(urlsplit(browser.begin()).query)["state"][0]
    shown = browser.see(f"/ui/oidc/callback?error=access_denied&state={state}")
    assert (shown.status_code, "access_denied" in shown.text) == (403, True)


def test_login_that_took_too_long_is_refused(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = browser.allow(browser.begin(), "sam")
    monkeypatch.setattr(logins, "utcnow", lambda: utcnow() + timedelta(minutes=11))
    assert browser.see(callback).status_code == 403


@pytest.mark.parametrize("after", ["https://evil.example", "//evil.example", "/ui/oidc/login", "/api/v1/jobs"])
def test_login_leads_to_a_page_of_the_dashboard(browser: Browser, after: str) -> None:
    assert browser.log_in("sam", after=after).headers["location"] == "/ui/"


# Hostile and broken providers


@dataclass
class Hostile:
    """A provider that answers with `token` and `configuration`."""

    keys: dict[str, rsa.RSAPrivateKey]
    published: list[str]
    configuration: dict[str, Any] = field(default_factory=dict)
    token: Callable[[dict[str, Any]], str] | None = None
    nonce: str = ""
    issuer: str = ""
    bare: bool = False
    """True if the published keys have neither a name nor an algorithm."""

    def answer(self, url: str) -> FastAPI:
        app = FastAPI()
        self.issuer = url

        @app.get("/.well-known/openid-configuration")
        def configuration() -> dict[str, Any]:
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            return {"issuer": self.issuer, **{k: f"{self.issuer}/{v}" for k, v in names.items()}} | self.configuration

        @app.get("/keys")
        def keys() -> dict[str, Any]:
            return {"keys": [self.published_key(name) for name in self.published]}

        @app.post("/token")
        async def token(request: Request) -> Response:
            del request
            claims = self.claims()
            made = self.signed(claims) if self.token is None else self.token(claims)
            return JSONResponse({"id_token": made, "access_token": "x", "token_type": "Bearer"})

        return app

    def claims(self) -> dict[str, Any]:
        now = utcnow().timestamp()
        return {
            "iss": self.issuer,
            "sub": "eve",
            "aud": "ostler",
            "iat": now,
            "exp": now + 300,
            "nonce": self.nonce,
            "groups": ["platform"],
        }

    def signed(self, claims: dict[str, Any], *, by: str = "first", named: str | None = None) -> str:
        return jwt.encode(claims, self.keys[by], algorithm="RS256", headers={"kid": named or by})

    def published_key(self, name: str) -> dict[str, Any]:
        key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.keys[name].public_key()))
        return key if self.bare else {**key, "kid": name, "use": "sig", "alg": "RS256"}

    def pem(self, name: str) -> bytes:
        public = self.keys[name].public_key()
        return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


KEYS = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in ("first", "second", "other")}


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    found = Hostile(KEYS, published=["first"])
    app = FastAPI()
    with served(app) as url:
        app.router.routes.extend(found.answer(url).router.routes)
        yield found


def log_in_at(browser: Browser, hostile: Hostile) -> httpx.Response:
    query = parse_qs(urlsplit(browser.begin()).query)
    hostile.nonce = hostile.nonce or query["nonce"][0]
    return browser.see(f"/ui/oidc/callback?code=any&state={query['state'][0]}")


def test_honest_answer_begins_a_session(database: Database, hostile: Hostile) -> None:
    with browsing(database, hostile.issuer) as new:
        browser = new()
        assert log_in_at(browser, hostile).status_code == 303
        assert browser.see().status_code == 200


def _public_key_as_secret(hostile: Hostile, claims: dict[str, Any]) -> str:
    parts = [{"alg": "HS256", "typ": "JWT", "kid": "first"}, claims]
    text = ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts)
    digest = hmac.digest(hostile.pem("first"), text.encode(), hashlib.sha256)
    return f"{text}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


FORGED: dict[str, Callable[[Hostile, dict[str, Any]], str]] = {
    "no signature": lambda _, claims: jwt.encode(claims, "", algorithm="none", headers={"kid": "first"}),
    "public key as secret": _public_key_as_secret,
    "key that is not published": lambda it, claims: it.signed(claims, by="other"),
    "other key under a published name": lambda it, claims: it.signed(claims, by="other", named="first"),
    "other issuer": lambda it, claims: it.signed(claims | {"iss": "https://evil.example"}),
    "other client": lambda it, claims: it.signed(claims | {"aud": "another"}),
    "authorized for another client": lambda it, claims: it.signed(claims | {"azp": "another"}),
    "expired": lambda it, claims: it.signed(claims | {"exp": claims["iat"] - 120}),
    "issued in the future": lambda it, claims: it.signed(claims | {"iat": claims["iat"] + 600}),
    "nonce of another login": lambda it, claims: it.signed(claims | {"nonce": "other"}),
    "without a nonce": lambda it, claims: it.signed({k: v for k, v in claims.items() if k != "nonce"}),
    "without an end": lambda it, claims: it.signed({k: v for k, v in claims.items() if k != "exp"}),
    "without a subject": lambda it, claims: it.signed({k: v for k, v in claims.items() if k != "sub"}),
    "without groups": lambda it, claims: it.signed({k: v for k, v in claims.items() if k != "groups"}),
    "no token at all": lambda _it, _claims: "no token",
}


@pytest.mark.parametrize("forgery", FORGED)
def test_forged_id_token_begins_no_session(database: Database, hostile: Hostile, forgery: str) -> None:
    hostile.token = lambda claims: FORGED[forgery](hostile, claims)
    with browsing(database, hostile.issuer) as new:
        browser = new()
        answer = log_in_at(browser, hostile)
        assert (answer.status_code, "ostler_session" in browser.cookies) == (403, False)


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_key_without_a_name_and_an_algorithm_is_tried(database: Database, hostile: Hostile, algorithm: str) -> None:
    hostile.published, hostile.bare = ["other", "first"], True
    hostile.token = lambda claims: jwt.encode(claims, hostile.keys["first"], algorithm=algorithm)
    with browsing(database, hostile.issuer) as new:
        assert log_in_at(new(), hostile).status_code == 303


def test_new_key_of_the_provider_is_read(database: Database, hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openid, "REREAD_KEYS_AFTER", 0.0)
    with browsing(database, hostile.issuer) as new:
        assert log_in_at(new(), hostile).status_code == 303
        hostile.published = ["second"]
        hostile.token = lambda claims: hostile.signed(claims, by="second")
        hostile.nonce = ""
        assert log_in_at(new(), hostile).status_code == 303


@pytest.mark.parametrize(
    "configuration",
    [
        {"issuer": "https://other.example"},
        {"authorization_endpoint": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "x" * openid.MOST_BYTES},
    ],
)
def test_unusable_provider_is_named_in_the_log(
    database: Database, hostile: Hostile, configuration: dict[str, Any]
) -> None:
    hostile.configuration = configuration
    with browsing(database, hostile.issuer) as new:
        answer = new().see("/ui/oidc/login")
    assert (answer.status_code, "The OpenID provider failed" in answer.text) == (502, True)


def test_provider_that_is_away_leaves_the_login_by_token(database: Database) -> None:
    with browsing(database, f"http://127.0.0.1:{free_port()}") as new:
        browser = new()
        assert browser.see("/ui/oidc/login").status_code == 502
        assert browser.see("/ui/login").status_code == 200


def test_without_a_provider_there_is_no_such_login(database: Database) -> None:
    none: dict[str, Any] = {"oidc_issuer": None, "oidc_client_id": None, "oidc_redirect_url": None, "oidc_groups": {}}
    with browsing(database, "unused", **none) as new:
        browser = new()
        leads_to = [browser.see(f"/ui/oidc/{each}").headers["location"] for each in ("login", "callback")]
        assert {each.split("?")[0] for each in leads_to} == {"/ui/login"}
        assert "Log in with" not in browser.see("/ui/login").text
