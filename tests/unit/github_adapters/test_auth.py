from __future__ import annotations

import threading
from datetime import UTC, datetime

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from github_adapters.calls.auth import AppAuth, Token
from github_adapters.calls.governor import Ungoverned
from github_adapters.calls.http import Deadline, Http
from ostler.errors import ConfigurationError, Forbidden, RateLimited, Retryable, UpstreamError
from ostler.secrets import Secret
from tests.unit.github_adapters.conftest import Clock
from tests.unit.github_adapters.upstream import Call, Reply, Upstream


def make(upstream: Upstream, key: Secret, clock: Clock) -> AppAuth:
    http = Http(api_url=upstream.url, timeout=5)
    return AppAuth(http=http, app_id="7", private_key=key, clock=clock, governor=Ungoverned())


@pytest.fixture
def auth(upstream: Upstream, pem: Secret, clock: Clock) -> AppAuth:
    return make(upstream, pem, clock)


def token(auth: AppAuth) -> Token:
    return auth.installation_token(installation_id=1, deadline=Deadline(5))


def test_the_jwt_is_backdated_and_ends_within_ten_minutes(auth: AppAuth, key: rsa.RSAPrivateKey, clock: Clock) -> None:
    text = auth.app_token().reveal()

    claims = jwt.decode(
        text, key.public_key(), algorithms=["RS256"], options={"verify_exp": False, "verify_iat": False}
    )
    now = int(clock.now.timestamp())
    assert claims["iss"] == "7"
    assert claims["iat"] == now - 60
    assert now < claims["exp"] <= now + 600
    assert claims["exp"] - claims["iat"] <= 600


def test_a_key_on_one_line_is_understood(upstream: Upstream, pem: Secret, clock: Clock) -> None:
    flat = Secret(pem.reveal().replace("\n", "\\n"))

    assert make(upstream, flat, clock).app_token()


def test_a_key_of_another_kind_is_a_configuration_error_that_hides_it(upstream: Upstream, clock: Clock) -> None:
    form = serialization.PrivateFormat.PKCS8
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, form, serialization.NoEncryption()
    )
    http = Http(api_url=upstream.url, timeout=5)

    for text in (other.decode(), "nonsense", ""):
        with pytest.raises(ConfigurationError, match="OSTLER_GITHUB_PRIVATE_KEY") as caught:
            AppAuth(http=http, app_id="7", private_key=Secret(text), clock=clock, governor=Ungoverned())
        assert not text or text not in str(caught.value)


def test_a_token_is_kept_until_five_minutes_before_its_end(auth: AppAuth, clock: Clock) -> None:
    first = token(auth)
    clock.forward(minutes=54)
    still = token(auth)
    clock.forward(minutes=1.1)

    renewed = token(auth)

    assert still is first
    assert renewed.secret == Secret("token-2")
    assert token(auth) is renewed


def test_a_token_of_any_length_is_kept_whole(auth: AppAuth, upstream: Upstream) -> None:
    long = "ghs_" + "x" * 4000
    upstream.tokens = lambda _: Reply(status=201, body={"token": long, "expires_at": "2026-03-01T11:00:00Z"})

    assert token(auth).secret.reveal() == long


@pytest.mark.parametrize("reply", [Reply(status=502), Reply(status=429), Reply(status=201, body={})])
def test_a_failed_renewal_hurts_nobody_while_the_old_token_lives(
    auth: AppAuth, upstream: Upstream, clock: Clock, reply: Reply
) -> None:
    first, issue = token(auth), upstream.tokens
    upstream.tokens = lambda _: reply
    clock.forward(minutes=56)

    assert token(auth) is first
    assert token(auth) is first
    assert len(upstream.calls) == 2, "the renewal is not tried again at once"

    clock.forward(seconds=31)
    upstream.tokens = issue
    assert token(auth) is not first


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        (Reply(status=502), Retryable),
        (Reply(status=429), RateLimited),
        (Reply(status=401), Forbidden),
        (Reply(status=201, body={"token": "", "expires_at": "2026-03-01T11:00:00Z"}), Retryable),
        (Reply(status=201, body={"token": "a\nb", "expires_at": "2026-03-01T11:00:00Z"}), Retryable),
        (Reply(status=201, body={"token": "ok", "expires_at": "soon"}), Retryable),
    ],
)
def test_without_a_token_there_is_an_error_that_says_why(
    auth: AppAuth, upstream: Upstream, reply: Reply, meaning: type[UpstreamError]
) -> None:
    upstream.tokens = lambda _: reply

    with pytest.raises(meaning):
        token(auth)


def test_others_go_on_with_the_old_token_while_one_renews(auth: AppAuth, upstream: Upstream, clock: Clock) -> None:
    first = token(auth)
    clock.forward(minutes=56)
    asked, answered = threading.Event(), threading.Event()

    def slow(_: Call) -> Reply:
        asked.set()
        answered.wait(30)
        return Reply(status=201, body={"token": "token-2", "expires_at": "2026-03-01T11:56:00Z"})

    upstream.tokens = slow
    renewing = threading.Thread(target=token, args=(auth,))
    renewing.start()
    assert asked.wait(10)

    meanwhile = token(auth)

    answered.set()
    renewing.join()
    assert meanwhile is first
    assert token(auth).secret == Secret("token-2")


def test_an_ended_token_is_never_used(auth: AppAuth, upstream: Upstream, clock: Clock) -> None:
    token(auth)
    clock.forward(hours=2)
    upstream.tokens = lambda _: Reply(status=502)

    with pytest.raises(Retryable):
        token(auth)


def test_dropping_an_old_token_keeps_its_successor(auth: AppAuth, clock: Clock) -> None:
    first = token(auth)
    clock.forward(minutes=56)
    second = token(auth)

    auth.drop(installation_id=1, token=first)

    assert token(auth) is second


def test_a_token_prints_as_stars() -> None:
    shown = repr(Token(secret=Secret("ghs_x"), expires_at=datetime(2026, 3, 1, tzinfo=UTC)))

    assert "ghs_x" not in shown
