"""Postgres and Redis over TLS with certificates of a private authority."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery
from flower.utils.broker import Broker
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from redbeat.schedulers import get_redis
from sqlalchemy import text
from sqlalchemy.exc import OperationalError as DatabaseError

from lab.postgres import Postgres
from lab.redis import Redis
from models.db.engine import make_engine, why_away
from ostler.secrets import Secret
from ostler.settings import Stores
from tasks.worker.flower import tls_options
from tests.database import Database
from tests.private_ca import PrivateCa
from tests.tls_front import tls_front

ELSEWHERE = "redis.elsewhere.example"


@pytest.fixture
def ca(tmp_path: Path) -> PrivateCa:
    return PrivateCa(tmp_path / "ca")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch, ca: PrivateCa) -> pytest.MonkeyPatch:
    """An environment with the private authority and without Redis."""
    monkeypatch.setenv("OSTLER_DATABASE_URL", "postgresql://db.example/ostler")
    monkeypatch.setenv("OSTLER_CA_BUNDLE", str(ca.bundle))
    return monkeypatch


@pytest.fixture
def secure_redis(redis_server: Redis, ca: PrivateCa) -> Iterator[str]:
    """A `rediss://` address of a Redis whose certificate is for 127.0.0.1."""
    issued = ca.issue("127.0.0.1")
    with tls_front(issued.context(), lambda: socket.create_connection(("127.0.0.1", redis_server.port))) as port:
        yield f"rediss://127.0.0.1:{port}/0"


def by_celery(url: str) -> None:
    with Connection(url, transport_options={"socket_connect_timeout": 5}) as broker:  # type: ignore[no-untyped-call]
        broker.ensure_connection(max_retries=1, timeout=5)
        broker.default_channel.client.ping()


def by_redis(url: str) -> None:
    with redis.Redis.from_url(url, socket_timeout=5) as client:
        client.ping()


def by_redbeat(url: str) -> None:
    app = Celery("of-a-test", broker=url, set_as_current=False)
    app.conf.update(redbeat_redis_url=url, redbeat_redis_options={})
    with get_redis(app) as client:
        client.ping()


Way = Callable[[str], None]


def by_flower(url: str) -> None:
    broker = Broker(url, broker_options={}, broker_use_ssl=tls_options(url))
    asyncio.run(broker.queues(["dispatch"]))


WAYS: list[Way] = [by_celery, by_redis, by_redbeat, by_flower]


def address(monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    """Return the address of Redis that the settings derive from a URL."""
    monkeypatch.setenv("OSTLER_REDIS_URL", url)
    found = Stores().redis_url
    assert found is not None
    return found.reveal()


@pytest.mark.parametrize("way", WAYS)
def test_redis_with_a_certificate_of_the_bundle_is_accepted(
    way: Way, secure_redis: str, stores: pytest.MonkeyPatch
) -> None:
    way(address(stores, secure_redis))


@pytest.mark.parametrize("way", WAYS)
def test_redis_with_a_certificate_of_an_unknown_authority_is_refused(
    way: Way, secure_redis: str, stores: pytest.MonkeyPatch
) -> None:
    stores.delenv("OSTLER_CA_BUNDLE")
    with pytest.raises((redis.ConnectionError, OperationalError), match="CERTIFICATE_VERIFY_FAILED"):
        way(address(stores, secure_redis))


@pytest.mark.parametrize("way", WAYS)
def test_redis_with_a_certificate_for_another_name_is_refused(
    way: Way, redis_server: Redis, ca: PrivateCa, stores: pytest.MonkeyPatch
) -> None:
    issued = ca.issue(ELSEWHERE)
    with (
        tls_front(issued.context(), lambda: socket.create_connection(("127.0.0.1", redis_server.port))) as port,
        pytest.raises((redis.ConnectionError, OperationalError), match="IP address mismatch"),
    ):
        way(address(stores, f"rediss://127.0.0.1:{port}/0"))


def test_options_of_tls_in_the_address_of_redis_are_kept(stores: pytest.MonkeyPatch) -> None:
    own = "rediss://:p%40ss@cache:6379/0?ssl_ca_certs=/own.pem&ssl_cert_reqs=none"
    assert address(stores, own) == own
    assert address(stores, "redis://cache:6379/0") == "redis://cache:6379/0"


@pytest.fixture
def secure_postgres(postgres: Postgres, database: Database, ca: PrivateCa) -> Iterator[str]:
    """The address of a Postgres whose certificate is only for `localhost`."""

    def dial() -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(postgres.socket / ".s.PGSQL.5432"))
        return link

    with tls_front(ca.issue("localhost").context(), dial, postgres=True) as port:
        name = urlsplit(database.url.reveal()).path
        yield f"postgresql+psycopg2://postgres@localhost:{port}{name}"


def ask_postgres(url: str) -> str:
    engine = make_engine(Secret(url), pool_size=1, application="tls-test")
    try:
        with engine.connect() as db:
            return str(db.execute(text("SHOW server_version")).scalar_one())
    finally:
        engine.dispose()


def refusal(url: str) -> str:
    with pytest.raises(DatabaseError) as error:
        ask_postgres(url)
    told = why_away(error.value)
    assert told is not None
    return told


def test_postgres_is_verified_with_the_authority_of_its_address(secure_postgres: str, ca: PrivateCa) -> None:
    verified = f"{secure_postgres}?sslmode=verify-full&sslrootcert="
    assert ask_postgres(f"{verified}{ca.bundle}")

    stranger = PrivateCa(ca.bundle.parent / "other", "other").bundle
    assert "certificate verify failed; add sslmode=verify-full&sslrootcert=FILE" in refusal(f"{verified}{stranger}")
    assert "sslrootcert=FILE to OSTLER_DATABASE_URL" in refusal(f"{verified}/does/not/exist.pem")
    other_name = f"{verified}{ca.bundle}".replace("@localhost", "@127.0.0.1")
    assert 'does not match host name "127.0.0.1"' in refusal(other_name)
