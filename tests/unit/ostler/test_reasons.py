"""Reasons are words for people instead of the errors of client libraries."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import urllib3
from kombu.exceptions import OperationalError
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from lab.processes import free_port
from ostler.errors import Conflict, Forbidden, NotInstalled, Retryable, UpstreamError
from ostler.reasons import UNKNOWN, endpoint, meaning_of, reason_of, words_of


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg2://u:hunter2@db.example:6543/x", "db.example:6543"),
        ("postgres://u:hunter2@db.example/x", "db.example:5432"),
        ("rediss://:hunter2@cache/0", "cache:6379"),
        ("https://api.github.com", "api.github.com:443"),
        ("http://[::1]:8080/x", "[::1]:8080"),
        ("redis:///0", "localhost:6379"),
        ("redis://u:hunter2@host:port", "an invalid address"),
    ],
)
def test_endpoint_is_host_and_port_without_credentials(url: str, shown: str) -> None:
    assert endpoint(url) == shown


@contextmanager
def silent_server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def ask_redis(port: int) -> None:
    with Redis(port=port, socket_timeout=0.2, socket_connect_timeout=0.2, retry=Retry(NoBackoff(), 0)) as redis:
        redis.ping()


def ask_over_http(port: int) -> None:
    urllib3.PoolManager().request("GET", f"http://127.0.0.1:{port}/", timeout=0.2, retries=False)


def ask_by_name(_: int) -> None:
    urllib3.PoolManager().request("GET", "http://nope.invalid/", timeout=1, retries=0)


def raised(call: Callable[[int], None], port: int) -> Exception:
    try:
        call(port)
    except Exception as error:  # noqa: BLE001  whatever the library raises
        return error
    raise AssertionError("it answered")


@pytest.mark.parametrize("call", [ask_redis, ask_over_http])
def test_refused_connection_is_said(call: Callable[[int], None]) -> None:
    assert reason_of(raised(call, free_port())) == "connection refused"


@pytest.mark.parametrize("call", [ask_redis, ask_over_http])
def test_silence_is_said(call: Callable[[int], None]) -> None:
    with silent_server() as port:
        assert reason_of(raised(call, port)) == "no answer in time"


def test_unknown_name_is_said() -> None:
    assert reason_of(raised(ask_by_name, 0)) == "the host name cannot be resolved"


def wrap(cause: Exception) -> None:
    raise OperationalError("hunter2") from cause


def test_cause_inside_the_error_of_another_library_is_found() -> None:
    refused = raised(ask_redis, free_port())
    assert reason_of(raised(lambda _: wrap(refused), 0)) == "connection refused"
    assert reason_of(KeyError("hunter2")) == UNKNOWN


def test_failure_of_a_repair_is_not_explained_by_what_it_repairs() -> None:
    failure = ConnectionRefusedError()
    failure.__context__ = TimeoutError()
    assert reason_of(failure) == "connection refused"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotInstalled("x"), "the App is not installed in the account or repository"),
        (Forbidden("x"), "access is refused"),
        (Conflict("x"), "another client changed the object at the same time"),
        (Retryable("x", status=502), "the server answered 502"),
        (Retryable("x"), "the server did not answer"),
    ],
)
def test_meaning_of_a_refusal_is_words(error: UpstreamError, words: str) -> None:
    assert meaning_of(error) == words


class Refusal(Exception):
    """An error of psycopg2. Only the server creates one with a code."""

    def __init__(self, pgcode: str) -> None:
        self.pgcode = pgcode


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("55P03", "another session has locked the same rows"),
        ("57P01", "Postgres is shutting down or starting"),
        ("23505", "Postgres refuses the row: it breaks a constraint"),
        ("22012", "Postgres refuses the statement (SQLSTATE 22012)"),
    ],
)
def test_refusal_of_postgres_is_words(code: str, words: str) -> None:
    error = DBAPIError("SELECT 1", {}, Refusal(code))
    error.__cause__ = error.orig
    assert words_of(error) == words


@pytest.mark.parametrize(
    ("in_recovery", "words"),
    [
        (True, "Postgres is a read-only standby"),
        (False, "Postgres refuses writes (default_transaction_read_only)"),
        (None, "Postgres refuses writes (it is a standby, or default_transaction_read_only is set)"),
    ],
)
def test_standby_is_named_only_if_postgres_is_in_recovery(in_recovery: bool | None, words: str) -> None:
    refused = Refusal("25006")
    if in_recovery is not None:
        refused.in_recovery = in_recovery  # type: ignore[attr-defined]
    assert reason_of(refused) == words


def test_silence_of_postgres_is_words() -> None:
    with pytest.raises(DBAPIError) as caught:
        create_engine(f"postgresql+psycopg2://u:p@127.0.0.1:{free_port()}/x").connect()
    assert words_of(caught.value) == "Postgres does not answer"
    assert words_of(Conflict("x")) == meaning_of(Conflict("x"))
