"""A key of an App, a clock that stands still, and a client before an upstream that obeys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from github_adapters.client import GitHub
from ostler.secrets import Secret
from tests.unit.github_adapters.upstream import Call, Reply, Upstream


class Clock:
    """A clock that moves only when told to."""

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


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def upstream(clock: Clock) -> Iterator[Upstream]:
    """An upstream that issues token-1, token-2 … for an hour each."""
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
