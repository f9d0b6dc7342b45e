"""A key of an App, a clock of the test, and a client whose upstream the test controls."""

from __future__ import annotations

import functools
import itertools
import ssl
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from github_adapters.calls import auth
from github_adapters.client import GitHub
from ostler import egress
from ostler.secrets import Secret
from tests.unit.github_adapters.upstream import Call, Reply, Upstream


class Clock:
    """A clock that moves only on command."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 10, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **by: float) -> None:
        """Let time pass."""
        self.now += timedelta(**by)


@pytest.fixture(scope="session")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="session")
def pem(key: rsa.RSAPrivateKey) -> Secret:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    return Secret(key.private_bytes(encoding, form, serialization.NoEncryption()).decode())


@pytest.fixture(scope="session")
def loaded_once() -> tuple[Callable[[Mapping[str, str]], ssl.SSLContext], Callable[[Secret], rsa.RSAPrivateKey]]:
    """Return the functions that load certificates and keys. Both of them read a file once."""
    contexts: dict[tuple[str | None, ...], ssl.SSLContext] = {}
    load = egress.trust

    def trust(environment: Mapping[str, str]) -> ssl.SSLContext:
        files = (environment.get(egress.SYSTEM_CA), egress.ca_bundle(environment))
        if files not in contexts:
            contexts[files] = load(environment)
        return contexts[files]

    return trust, functools.cache(auth._load)


@pytest.fixture(autouse=True)
def _load_once(
    monkeypatch: pytest.MonkeyPatch,
    loaded_once: tuple[Callable[[Mapping[str, str]], ssl.SSLContext], Callable[[Secret], rsa.RSAPrivateKey]],
) -> None:
    """Load certificates and keys once. This takes a quarter of a second, and each test has its own client."""
    trust, load = loaded_once
    monkeypatch.setattr(egress, "trust", trust)
    monkeypatch.setattr(auth, "_load", load)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def upstream(clock: Clock) -> Iterator[Upstream]:
    """An upstream that issues token-1, token-2 and so on, for an hour each."""
    numbers = itertools.count(1)

    def issue(_: Call) -> Reply:
        expires = (clock.now + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Reply(status=201, body={"token": f"token-{next(numbers)}", "expires_at": expires})

    with Upstream() as server:
        server.tokens = issue
        yield server


@pytest.fixture
def github(upstream: Upstream, pem: Secret, clock: Clock) -> Iterator[GitHub]:
    client = GitHub(api_url=upstream.url + "/api/v3/", app_id="7", private_key=pem, clock=clock, timeout=5)
    yield client
    client.close()
