"""Migrations called from code: upgrade, downgrade, and the revision of a database."""

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
"""Cure for a database that was made before the first release."""

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
    """Return True if a program that knows the revisions `known` can work on a database at `revision`.

    Of the known revisions, only the newest fits. A revision that the program does not know fits too. Migrations run
    before a deployment, so such a revision is newer. An unknown revision from before the first release does not fit
    (`predates`).
    """
    return revision is not None and not predates(revision, known) and (revision == known[-1] or revision not in known)


def predates(revision: str | None, known: Sequence[str]) -> bool:
    """Return True if a database was made before the first release.

    No released version knows the revision of such a database.
    """
    return revision is not None and revision < known[0]


def current(engine: Engine) -> str | None:
    """Return the revision of the database, or None before the first migration."""
    with engine.connect() as connection:
        return revision_of(connection)


def revision_of(db: Connection) -> str | None:
    """Return the revision of the database of an open connection, or None before the first migration."""
    return MigrationContext.configure(db).get_current_revision()


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Upgrade the database to `revision`, each revision in a transaction of its own.

    In a single transaction the locks of all revisions would accumulate, and block intake until the last revision is
    done. Raises `ConfigurationError` if the database was made before the first release.
    """
    if predates(found := current(engine), revisions()):
        raise ConfigurationError(f"database: found revision {found}, which was never released; {EMPTY_DATABASE}")
    with engine.connect() as connection:
        command.upgrade(_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Downgrade the database to `revision`. The revision `base` removes all tables."""
    with engine.begin() as connection:
        command.downgrade(_config(connection), revision)
