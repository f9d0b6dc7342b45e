"""A real PgBouncer before a real Postgres: session mode works, and transaction mode is refused with a cure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import extensions
from sqlalchemy import Engine, make_url, text

from cli.doctor.context import Context, Rows
from lab.postgres import Postgres
from lab.processes import Child, free_port
from models.db import channel
from models.db.connections import admit
from models.db.engine import make_engine, transaction
from ostler.errors import ConfigurationError
from ostler.secrets import Secret
from tests.database import Database
from tests.waiting import eventually

_PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = pytest.mark.skipif(_PROGRAM is None, reason="pgbouncer is not installed")
Pooler = Callable[[str], Secret]


@contextmanager
def _running(postgres: Postgres, folder: Path, mode: str, database: str) -> Iterator[Secret]:
    """Run a PgBouncer in this mode, and return the address of the database through it."""
    port = free_port()
    configuration = folder / f"{mode}.ini"
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": 5,
    }
    lines = [f"{name} = {value}" for name, value in settings.items()]
    server = f"{database} = host={postgres.socket} port=5432 user=postgres"
    configuration.write_text("\n".join(["[databases]", server, "[pgbouncer]", *lines, ""]))
    assert _PROGRAM is not None
    as_root = ["-u", postgres.socket.owner()] if os.geteuid() == 0 else []  # it refuses to run as root
    child = Child("pgbouncer", [_PROGRAM, *as_root, str(configuration)], log=folder / "pgbouncer.log")
    child.start()
    url = make_url(postgres.url(database)).set(host="127.0.0.1", port=port, query={})

    def answers() -> bool:
        try:
            psycopg2.connect(host="127.0.0.1", port=port, user="postgres", dbname=database).close()
        except psycopg2.OperationalError:
            return False
        return True

    try:
        child.wait_until(answers, timeout=60)
        yield Secret(url.render_as_string(hide_password=False))
    finally:
        child.stop(timeout=10)


@pytest.fixture
def through(postgres: Postgres, database: Database, tmp_path: Path) -> Iterator[Pooler]:
    """A function that starts a PgBouncer in the given mode, and returns the address of the test's database."""
    name = make_url(database.url.reveal()).database
    assert name is not None
    with ExitStack() as stack:
        yield lambda mode: stack.enter_context(_running(postgres, tmp_path, mode, name))


@contextmanager
def connected(url: Secret) -> Iterator[Engine]:
    engine = make_engine(url, pool_size=3, application="pooler-test")
    yield engine
    engine.dispose()


def admitted(engine: Engine) -> None:
    """Do what web and the workers do at their start."""
    admit(engine, needs=3, share=3, budget=20, within=5)


def doctor(url: Secret, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Read the rows as `ostler doctor` does."""
    monkeypatch.setenv("OSTLER_DATABASE_URL", url.reveal())
    return Context().rows


def test_session_mode_works_with_limits_notices_and_prepared_statements(
    through: Pooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = through("session")
    with connected(url) as engine:
        admitted(engine)
        names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "TimeZone")
        with engine.connect() as db:
            limits = [db.execute(text(f"SHOW {name}")).scalar_one() for name in names]
        assert limits == ["5s", "20s", "30s", "UTC"]
        with closing(channel.listen(url)) as listening:
            transaction(engine, lambda db: db.execute(text("SELECT pg_notify('ostler', 'beat web 1')")))

            def heard() -> list[extensions.Notify]:
                listening.poll()
                return list(listening.notifies)

            assert [notice.payload for notice in eventually(heard)] == ["beat web 1"]
    assert doctor(url, monkeypatch).revision is not None


def test_transaction_mode_is_refused_at_start_and_by_doctor_with_a_cure(
    through: Pooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = through("transaction")
    cure = "a pooler, such as PgBouncer in transaction mode, .*set the pooler to session mode"
    with connected(url) as engine, pytest.raises(ConfigurationError, match=cure):
        admitted(engine)
    with pytest.raises(ConfigurationError, match=cure):
        doctor(url, monkeypatch)
