"""Migrations from code: upgrade, downgrade, and what revision a database is at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from ostler.errors import ConfigurationError

EMPTY_DATABASE = "create an empty database, set OSTLER_DATABASE_URL to it, and run `ostler migrate`"
"""The cure for a database that predates the first release."""

_SCRIPTS = Path(__file__).parents[1] / "migrations"


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    return config


def revisions() -> list[str]:
    """Return every revision that this program knows, oldest first."""
    scripts = ScriptDirectory.from_config(_config())
    return [script.revision for script in scripts.walk_revisions()][::-1]


def fits(revision: str | None, known: Sequence[str]) -> bool:
    """Return whether a program that knows these revisions can work on a database that is at `revision`.

    An unknown revision is a newer one, because migrations go before a deploy, unless it `predates` the first release.
    """
    return revision is not None and not predates(revision, known) and (revision == known[-1] or revision not in known)


def predates(revision: str | None, known: Sequence[str]) -> bool:
    """Return whether a database was made before the first release, by revisions that no version knows any more."""
    return revision is not None and revision < known[0]


def current(engine: Engine) -> str | None:
    """Return the revision of the database, or None before the first migration."""
    with engine.connect() as connection:
        return revision_of(connection)


def revision_of(db: Connection) -> str | None:
    """Return the same, of a connection."""
    return MigrationContext.configure(db).get_current_revision()


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring the database up to `revision`, each revision in a transaction of its own.

    In one transaction the locks of all revisions would add up, and block intake until the last one is through.
    Raises `ConfigurationError` for a database that predates the first release.
    """
    if predates(found := current(engine), revisions()):
        raise ConfigurationError(f"database: found revision {found}, which was never released; {EMPTY_DATABASE}")
    with engine.connect() as connection:
        command.upgrade(_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Take the database down to `revision`; `base` empties it."""
    with engine.begin() as connection:
        command.downgrade(_config(connection), revision)
