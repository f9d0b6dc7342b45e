"""The connection budget: a process that fits starts, and any other ends at its start with one line of advice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import OperationalError

from lab.postgres import Postgres
from models.db import connections
from models.db.connections import RESERVE, admit, worker_pool
from models.db.engine import assert_isolation, make_engine
from ostler.errors import ConfigurationError, StoreUnreachable
from ostler.secrets import Secret
from tests.database import Database

ROOT = Path(__file__).parents[3]


@pytest.fixture
def most(database: Database) -> int:
    """Return the connection limit of the real server."""
    with database.engine.connect() as db:
        return int(db.exec_driver_sql("SHOW max_connections").scalar_one())


@pytest.mark.parametrize(
    ("queues", "taken"),
    [
        (["dispatch", "github", "pools", "sweeps"], 16),
        (["dispatch"], 16),
        (["sweeps", "github"], 16),
        (["github"], 8),
        (["pools"], 8),
        (["github", "pools"], 8),
    ],
)
def test_a_worker_takes_one_per_thread_and_half_where_it_waits_for_others(queues: list[str], taken: int) -> None:
    assert worker_pool(threads=16, queues=queues) == taken
    assert worker_pool(threads=1, queues=queues) == 1


def test_a_budget_that_leaves_the_reserve_is_let_in_and_one_more_is_not(database: Database, most: int) -> None:
    admit(database.engine, needs=16, share=16, budget=most - RESERVE)

    with pytest.raises(ConfigurationError) as error:
        admit(database.engine, needs=16, share=16, budget=most - RESERVE + 1)

    assert str(error.value).startswith(f"OSTLER_CONNECTION_BUDGET: found {most - RESERVE + 1}, but Postgres has")
    assert f"the budget must be {most - RESERVE} at most" in str(error.value)


def test_a_pool_greater_than_its_share_is_refused_before_anything_is_opened(database: Database) -> None:
    with pytest.raises(ConfigurationError, match="OSTLER_CONNECTION_SHARE: found 15, but this process needs 16"):
        admit(database.engine, needs=16, share=15, budget=25)
    assert database.engine.pool.checkedin() == 0  # type: ignore[attr-defined]


def test_a_share_greater_than_the_budget_is_refused(database: Database) -> None:
    with pytest.raises(ConfigurationError, match=r"BUDGET: found 20, less than OSTLER_CONNECTION_SHARE \(21\)"):
        admit(database.engine, needs=9, share=21, budget=20)


def test_another_isolation_level_is_refused(database: Database, most: int) -> None:
    strict = create_engine(
        database.engine.url, connect_args={"options": "-c default_transaction_isolation=serializable"}
    )
    with pytest.raises(ConfigurationError, match="default_transaction_isolation is 'serializable'"):
        admit(strict, needs=1, share=1, budget=most - RESERVE)
    strict.dispose()


def test_a_postgres_that_is_slow_at_either_question_is_asked_again(
    database: Database, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def answer(db: Connection) -> None:
        if not waits:
            raise OperationalError("SHOW transaction_isolation", {}, Exception("no answer in time"))
        assert_isolation(db)

    monkeypatch.setattr(connections, "assert_isolation", answer)
    admit(database.engine, needs=1, share=1, budget=most - RESERVE, sleep=waits.append)

    assert len(waits) == 1


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[Engine]:
    """An engine whose server does not exist."""
    engine = make_engine(Secret(f"postgresql+psycopg2://ostler@/ostler?host={tmp_path}"), pool_size=1, application="x")
    yield engine
    engine.dispose()


def test_a_postgres_that_does_not_come_ends_the_start_with_one_line(nobody: Engine) -> None:
    waits: list[float] = []

    with pytest.raises(StoreUnreachable) as error:
        admit(nobody, needs=1, share=1, budget=1, within=5, sleep=waits.append, monotonic=lambda: sum(waits))

    assert str(error.value).startswith("Postgres was not available for 5 s: ")
    assert "\n" not in str(error.value)
    assert sum(waits) == 5


def run(postgres: Postgres, database: Database, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a process of Ostler until it ends."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))}
    environment |= {
        "OSTLER_DATABASE_URL": database.url.reveal(),
        "OSTLER_REDIS_URL": "redis://127.0.0.1:1/0",
        "OSTLER_GITHUB_APP_ID": "1",
        "OSTLER_GITHUB_PRIVATE_KEY": "unused",
        "OSTLER_WEBHOOK_SECRETS": "of-these-tests-alone",
        "OSTLER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "OSTLER_WEB_HOST": "127.0.0.1",
        "OSTLER_WEB_PORT": "0",
        "OSTLER_WEB_POLLS_PORT": "0",
        "OSTLER_WEB_PRIVATE_PORT": "0",
    }
    assert postgres.answers()
    return subprocess.run(
        [sys.executable, "-m", "ostler", *arguments],
        env=environment | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "settings", "line"),
    [
        (["web"], {"OSTLER_CONNECTION_BUDGET": "1000"}, "OSTLER_CONNECTION_BUDGET: found 1000, but Postgres has"),
        (
            ["worker", "--queues=github,pools"],
            {"OSTLER_WORKER_THREADS": "34"},
            "OSTLER_CONNECTION_SHARE: found 16, but this process needs 17 connections",
        ),
    ],
    ids=["web, budget", "worker on the network's queues, share"],
)
def test_a_process_that_does_not_fit_ends_with_one_line_and_status_2(
    postgres: Postgres, database: Database, arguments: list[str], settings: dict[str, str], line: str
) -> None:
    done = run(postgres, database, *arguments, **settings)

    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"ostler: {line}")
    assert done.stderr.count("\n") == 1
