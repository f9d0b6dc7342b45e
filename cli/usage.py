"""`ostler usage`: runner minutes and idle minutes of a month, and the starts of its jobs against the targets."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from cli import remote
from cli.output import Json, duration, fail, print_json, query
from cli.tables import Column, Kind, print_table
from ostler.clock import utcnow

FIELDS = ("account", "pool", "repository", "jobs", "runner_minutes", "idle_minutes", "vcpu_minutes")


def usage(
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="month in UTC; without this option, the present month")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="print the use of runners as CSV")] = False,
    as_json: Json = False,
) -> None:
    """Show the runner minutes of a month by account, pool and repository, idle minutes, and late starts by cause.

    Ostler knows no prices: multiply the vCPU minutes, which are the minutes times the vCPU of the Pod, by your price. A
    job that ran in two months counts in each for its minutes there. With OSTLER_API_URL, the command asks the REST
    API instead of Postgres. Jobs that were completed longer ago than OSTLER_KEEP_JOBS are missing.
    """
    from models.browse.usage import told, usage_of

    now = utcnow()
    since, until = _span(month, now=now)
    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json exclude each other; give one of them")
    api = remote.chosen()
    if api is None:
        found = query(lambda db: told(usage_of(db, since=since, until=until, now=now)))
    else:
        answer = api.get("usage", month=f"{since:%Y-%m}")
        if answer is None:
            fail("the API does not know the usage of a month; it might be of an older version")
        found = answer
    if as_json:
        print_json(found)
    elif as_csv:
        rows = csv.writer(sys.stdout)
        rows.writerow(FIELDS)
        rows.writerows([each.get(name) for name in FIELDS] for each in found["items"])
    else:
        _print(found)


def _print(found: Mapping[str, Any]) -> None:
    typer.echo(f"From {found['since_at']:%Y-%m-%d} to {found['until_at']:%Y-%m-%d %H:%M} UTC")
    typer.echo(f"{rows_begin(found['rows_since_at'])}\n")
    _print_minutes(("account",), found.get("accounts", ()))
    typer.echo()
    _print_minutes(("account", "pool", "repository"), found["items"])
    typer.echo()
    print_starts(found["starts"])


def _print_minutes(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        (*(Column(each, Kind.NAME) for each in names), "jobs", "runner min", "idle min", "vCPU min"),
        (
            (
                *("(idle)" if name == "account" and each[name] is None else each[name] for name in names),
                each["jobs"],
                f"{each['runner_minutes']:.1f}",
                f"{each['idle_minutes']:.1f}",
                f"{each['vcpu_minutes']:.1f}" if "vcpu_minutes" in each else None,
            )
            for each in rows
        ),
        empty="no runner was used",
    )


def rows_begin(rows_since: datetime | None) -> str:
    """Return a sentence about the first day that has rows. Older rows were deleted, or never existed."""
    if rows_since is None:
        return "No completed job is stored."
    return f"The stored jobs begin with those that ended on {rows_since:%Y-%m-%d}."


def print_starts(starts: Sequence[Mapping[str, Any]]) -> None:
    """Print the starts of jobs against the targets of their pools, and the causes of late starts."""
    causes = list(starts[0]["blamed"]) if starts else []
    print_table(
        (Column("pool", Kind.NAME), "target", "jobs", "in time", "late", *(f"by {each}" for each in causes)),
        (
            (
                each["pool"],
                duration(each["target_seconds"]),
                each["jobs"],
                f"{100 * (each['jobs'] - each['late']) / each['jobs']:.1f}%",
                each["late"],
                *(each["blamed"][cause] for cause in causes),
            )
            for each in starts
        ),
        empty="no job began in a pool with a target (startTarget)",
    )


def _span(month: str | None, *, now: datetime) -> tuple[datetime, datetime]:
    """Return the begin and the end of a month that has begun. Ends the command with a message for any other value."""
    from models.browse.usage import month_of

    try:
        since, until = month_of(month, now=now)
    except ValueError:
        raise typer.BadParameter(f"--month: found {month!r}; expected a month such as 2026-11") from None
    if since > now:
        raise typer.BadParameter(f"--month: {month} has not begun; expected a month such as {now:%Y-%m}")
    return since, until
