"""Shared parts of the operator's commands: exit statuses, JSON for scripts, and access to the database.

Commands import slow modules (SQLAlchemy, Celery) only when they run, so that `--help` is fast.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import typer

from ostler.clock import utcnow
from ostler.errors import ConfigurationError, StoreUnreachable
from ostler.reasons import endpoint
from ostler.settings import load_stores
from rules.changes import Author, Via

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.page import Page
    from ostler.secrets import Secret

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="AGE|TIME",
        help="show only rows since then: an age such as 24h, `today`, `yesterday`, or an ISO 8601 time",
    ),
]
Sort = Annotated[Literal["newest", "oldest"], typer.Option(help="which row comes first")]
Failed = Annotated[bool, typer.Option("--failed", help="show only rows that failed")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="maximum number of rows")]

BIGGEST_ID = 2**63 - 1
EXACT = 10
"""Seconds below which a duration is shown with one decimal."""
NOT_FOUND = 1
"""Exit status if no object has the given id or name, or if the request was refused."""
MISTAKE = 2
"""Exit status of wrong usage or a wrong setting. The same command would fail again."""
AWAY = 3
"""Exit status if Postgres, Redis, Kubernetes or GitHub does not answer. A later attempt might succeed."""
OPEN = 4
"""Exit status if the output is complete, but a person has to decide about parts of it."""

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_DAYS = {"today": timedelta(), "yesterday": timedelta(days=1)}
_DURATION = re.compile(r"([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?", re.ASCII)
_UNDEFINED_TABLE = "42P01"
_REFUSALS = (
    "does not exist",
    "authentication failed",
    "no pg_hba.conf entry",
    "not permitted to log in",
    "no password",
)
"""Parts of Postgres messages about a refused login.

These errors have no SQLSTATE, because no connection exists yet.
"""


def query(body: Callable[[Connection], T]) -> T:
    """Run `body` in one transaction and return its result. Only `OSTLER_DATABASE_URL` must be set.

    Raises `StoreUnreachable` if the database does not answer, and `ConfigurationError` if it refuses the login or lacks
    tables. Both messages are one line.
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
    """Inside the block, translate exceptions of SQLAlchemy into the exceptions that `query` raises."""
    from sqlalchemy.exc import DBAPIError

    from models.db.engine import why_away

    try:
        yield
    except DBAPIError as error:
        why = why_away(error)
        if why is not None and any(each in why for each in _REFUSALS):
            where = endpoint(url.reveal())
            raise ConfigurationError(
                f"OSTLER_DATABASE_URL: Postgres at {where} refuses the login: {why}; correct the user, the password "
                "or the database"
            ) from None
        if why is not None:
            raise StoreUnreachable(no_answer("Postgres", url, why, variable="OSTLER_DATABASE_URL")) from None
        if getattr(error.orig, "pgcode", None) == _UNDEFINED_TABLE:
            raise ConfigurationError(
                "the database lacks a table that this version of Ostler needs; run `ostler migrate`"
            ) from None
        raise


def author() -> Author:
    """Return the OS user of this command as the author of a change that the command makes now."""
    try:
        who = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container might run as a user without a name
        who = f"uid {os.getuid()}"
    return Author(who, Via.SHELL, utcnow())


def time_of(given: str, option: str, *, now: datetime) -> datetime:
    """Return the time that an option names, or the begin (UTC) of the day `today` or `yesterday`.

    Raises BadParameter if it is none of them.
    """
    if given in _DAYS:
        return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - _DAYS[given]
    try:
        if given and (found := _DURATION.fullmatch(given)):
            parts = [part for part in found.groups() if part]
            return now - timedelta(**{_UNITS[part[-1]]: int(part[:-1]) for part in parts})
        at = datetime.fromisoformat(given)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{option}: found {given!r}; expected an age such as 90m, 24h or 7d, today, yesterday, or a time such as "
            "2026-11-29T14:00"
        ) from None


def since_of(given: str | None, *, now: datetime) -> datetime | None:
    """Return the time that the option `--since` names, or None without the option. Raises BadParameter as `time_of`."""
    return None if given is None else time_of(given, "--since", now=now)


def no_answer(name: str, url: Secret, why: str, *, variable: str) -> str:
    """Return one line about a server that does not answer. The line has its name and address, the cause and the cure.

    `variable` is the environment variable with the address.
    """
    return f"{name} at {endpoint(url.reveal())} does not answer: {why}. Check {variable}, and that {name} runs there"


def fail(message: str, *, status: int = NOT_FOUND) -> NoReturn:
    """End the command with `message` on stderr and the exit status `status`."""
    sys.stderr.write(f"ostler: {message}\n")
    raise typer.Exit(status)


def given_id(given: str) -> int | None:
    """Return `given` as an id if it is a number, or None if it is a name."""
    if not (given.isascii() and given.isdecimal()):
        return None
    return min(int(given[:20]), BIGGEST_ID)


def print_json(value: Any) -> None:
    """Print a value as JSON. Rows become objects, and times become ISO 8601 texts."""
    sys.stdout.write(dumped(value))


def dumped(value: Any) -> str:
    """Return a value as JSON text, as `print_json` prints it."""
    return json.dumps(value, default=_plain, indent=2) + "\n"


def print_next_page(page: Page) -> None:
    """Print a note on stderr if the list has more rows than the page."""
    print_more(len(page.rows), more=page.next_id is not None)


def print_more(shown: int, *, more: bool) -> None:
    """Print a note on stderr if the list has more rows than the `shown` rows."""
    if more:
        typer.echo(f"more rows exist than the {shown} shown; use a filter, or a larger --limit", err=True)


def age(since: datetime | None, *, now: datetime) -> str:
    """Return the time from `since` to `now` in its two largest units, or `-` if `since` is None."""
    if since is None:
        return "-"
    return _in_units(int(max(timedelta(), now - since).total_seconds()))


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, below `EXACT` with one decimal, or `-` if it is None."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f}s" if seconds < EXACT else _in_units(int(seconds))


def _in_units(seconds: int) -> str:
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // smaller}{smaller_unit}"
    return f"{seconds}s"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "_mapping"):
        return dict(value._mapping)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")
