"""Migrations: up, down and up again. Their result equals the models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, Table, text

from lab.postgres import Postgres
from models.db import migrate
from models.db.engine import make_engine
from models.schema import metadata
from ostler.errors import ConfigurationError
from ostler.secrets import Secret

_numbers = itertools.count()


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[Engine]:
    """A database without any table."""
    name = f"migrations_{next(_numbers)}"
    postgres.create_database(name)
    engine = make_engine(Secret(postgres.url(name)), pool_size=2, application="migrations")
    yield engine
    engine.dispose()


def _shape(engine: Engine) -> list[tuple[str, ...]]:
    """Return every column, index and constraint of the schema, in Postgres' own form."""
    with engine.connect() as db:
        rows = db.execute(
            text("""
                SELECT 'column', table_name, column_name, data_type, is_nullable, coalesce(column_default, '')
                FROM information_schema.columns WHERE table_schema = 'public'
                UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes
                WHERE schemaname = 'public'
                UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', ''
                FROM pg_constraint WHERE connamespace = 'public'::regnamespace
                UNION ALL SELECT 'table', relname, relpersistence::text, '', '', '' FROM pg_class
                WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                ORDER BY 1, 2, 3, 4
            """)
        )
        return [tuple(row) for row in rows]


def test_up_down_to_nothing_and_up_again_makes_the_same(empty: Engine) -> None:
    migrate.upgrade(empty)
    first = _shape(empty)
    assert migrate.current(empty) == migrate.revisions()[-1]
    migrate.downgrade(empty, "base")
    assert {row[1] for row in _shape(empty)} == {"alembic_version"}
    assert migrate.current(empty) is None
    migrate.upgrade(empty)
    assert _shape(empty) == first


def test_every_single_step_goes_up_down_and_up(empty: Engine) -> None:
    for revision in migrate.revisions():
        migrate.upgrade(empty, revision)
        after = _shape(empty)
        migrate.downgrade(empty, "-1")
        migrate.upgrade(empty, revision)
        assert _shape(empty) == after


def test_the_models_say_what_the_migrations_make(empty: Engine) -> None:
    migrate.upgrade(empty)
    with empty.connect() as db:
        context = MigrationContext.configure(
            db, opts={"compare_type": True, "compare_server_default": True, "target_metadata": metadata}
        )
        assert compare_metadata(context, metadata) == []


def test_what_the_comparison_does_not_see_is_the_same_too(empty: Engine) -> None:
    """The comparison ignores storage and the predicates of indexes. Laws depend on both."""
    migrate.upgrade(empty)
    made = _shape(empty)
    with empty.begin() as db:
        db.execute(text("DROP SCHEMA public CASCADE"))
        db.execute(text("CREATE SCHEMA public"))
        metadata.create_all(db)
    assert [row for row in made if row[1] != "alembic_version"] == _shape(empty)


def test_what_may_be_lost_is_unlogged_and_nothing_else_is(empty: Engine) -> None:
    migrate.upgrade(empty)
    tables: list[Table] = list(metadata.sorted_tables)
    unlogged = {row[1] for row in _shape(empty) if row[0] == "table" and row[2] == "u"}
    expected = {"offers", "pod_lists", "runner_lists"}
    assert unlogged == expected == {table.name for table in tables if "UNLOGGED" in table._prefixes}


@pytest.mark.parametrize(
    ("index", "predicate"),
    [
        ("uq_claims_live_pod", "WHERE (ended_at IS NULL)"),
        ("uq_claims_live_job", "WHERE ((ended_at IS NULL) AND (job_id IS NOT NULL))"),
        ("uq_mint_attempts_one_open", "WHERE (outcome = 'open'::text)"),
        ("uq_pools_live_name", "WHERE (deleted_at IS NULL)"),
        ("uq_runner_pods_present_name", "WHERE ((gone_at IS NULL) OR (uid IS NULL))"),
    ],
)
def test_the_indexes_that_laws_lean_on_are_unique_and_partial(empty: Engine, index: str, predicate: str) -> None:
    migrate.upgrade(empty)
    definition = next(row[3] for row in _shape(empty) if row[:1] == ("index",) and row[2] == index)
    assert definition.startswith("CREATE UNIQUE INDEX")
    assert definition.endswith(predicate)


def test_database_from_before_the_first_release_is_refused(empty: Engine) -> None:
    migrate.upgrade(empty)
    with empty.begin() as db:
        db.execute(text("UPDATE alembic_version SET version_num = '0046'"))
    assert not migrate.fits("0046", migrate.revisions())
    with pytest.raises(ConfigurationError, match="found revision 0046, which was never released; create an empty"):
        migrate.upgrade(empty)


def test_newer_revision_fits_and_an_older_one_of_a_release_does_not() -> None:
    known = ["0100", "0101"]
    assert [migrate.fits(each, known) for each in (None, "0046", "0100", "0101", "0102")] == [
        False,
        False,
        False,
        True,
        True,
    ]
