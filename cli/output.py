"""Shared parts of the operator's commands: exit statuses, JSON for scripts, and access to the database.

What is slow to import (SQLAlchemy, Celery) is imported by the commands when they run, so that `--help` is quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from ostler.errors import ConfigurationError, StoreUnreachable
from ostler.reasons import endpoint
from ostler.settings import load_stores

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from models.browse.page import Page
    from ostler.secrets import Secret

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="maximum number of rows")]

BIGGEST_ID = 2**63 - 1
NOT_FOUND = 1
"""Exit status when there is nothing with the id or name that was given, or when it was refused."""
MISTAKE = 2
"""Exit status of a wrong use or a wrong setting: trying again does not help."""
AWAY = 3
"""Exit status when Postgres, Redis, Kubernetes or GitHub does not answer: trying again may help."""

_UNDEFINED_TABLE = "42P01"
_REFUSALS = (
    "does not exist",
    "authentication failed",
    "no pg_hba.conf entry",
    "not permitted to log in",
    "no password",
)
"""Messages of Postgres that refuse a login, so waiting does not help. Before a connection they have no code."""


def query(body: Callable[[Connection], T]) -> T:
    """Return what `body` returns from one transaction; only `OSTLER_DATABASE_URL` need be set.

    Raises in one line StoreUnreachable when the database does not answer, ConfigurationError when it cannot be used.
    """
    from models.db.engine import make_engine, transaction

    url = load_stores().database_url
    engine = make_engine(url, pool_size=1, application="ostler-cli")
    try:
        with speaking_to_postgres(url):
            return transaction(engine, body)
    finally:
        engine.dispose()


@contextmanager
def speaking_to_postgres(url: Secret) -> Iterator[None]:
    """Translate what a statement raises when the database cannot be used; raises as `query` does."""
    from sqlalchemy.exc import DBAPIError

    from models.db.engine import why_away

    try:
        yield
    except DBAPIError as error:
        why = why_away(error)
        if why is not None and any(each in why for each in _REFUSALS):
            where = endpoint(url.reveal())
            raise ConfigurationError(f"OSTLER_DATABASE_URL: Postgres at {where} refuses the login: {why}") from None
        if why is not None:
            raise StoreUnreachable(no_answer("Postgres", url, why, variable="OSTLER_DATABASE_URL")) from None
        if getattr(error.orig, "pgcode", None) == _UNDEFINED_TABLE:
            raise ConfigurationError("the database lacks tables of this version; run `ostler migrate`") from None
        raise


def no_answer(name: str, url: Secret, why: str, *, variable: str) -> str:
    """Return one line about a server that does not answer: which, where, why, and what to check."""
    return f"{name} at {endpoint(url.reveal())} does not answer: {why}. Check {variable}, and that {name} runs there"


def fail(message: str, *, status: int = NOT_FOUND) -> NoReturn:
    """End with one line on stderr: what was asked for is not there, or cannot be done."""
    sys.stderr.write(f"ostler: {message}\n")
    raise typer.Exit(status)


def given_id(given: str) -> int | None:
    """Return the id that was given, None when it is a name."""
    if not (given.isascii() and given.isdecimal()):
        return None
    return min(int(given[:20]), BIGGEST_ID)


def print_json(value: Any) -> None:
    """Print JSON; rows become objects, times ISO 8601."""
    sys.stdout.write(json.dumps(value, default=_plain, indent=2) + "\n")


def print_next_page(page: Page) -> None:
    """Say on stderr that the list goes on."""
    if page.next_id is not None:
        typer.echo(f"there are more than {len(page.rows)}; use a filter or --limit", err=True)


def object_of(row: Row[Any]) -> Mapping[str, Any]:
    """Return a row as an object."""
    return dict(row._mapping)


def age(since: datetime | None, *, now: datetime) -> str:
    """Return how long ago that was, in the two largest units."""
    if since is None:
        return "-"
    seconds = int(max(timedelta(), now - since).total_seconds())
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // smaller}{smaller_unit}"
    return f"{seconds}s"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "_mapping"):
        return object_of(value)
    raise TypeError(f"no JSON for {type(value).__name__}")
