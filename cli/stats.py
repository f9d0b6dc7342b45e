"""`ostler stats`: how long jobs waited and ran, by pool, account, repository or time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.output import Json, age, duration, print_json, query, time_of
from cli.tables import Column, Kind, print_table
from ostler.clock import utcnow

if TYPE_CHECKING:
    from models.browse.waits import Waits


def stats(
    since: Annotated[
        str,
        typer.Option(
            metavar="AGE|TIME", help="begin of the span: an age such as 7d, `today`, `yesterday`, or an ISO 8601 time"
        ),
    ] = "24h",
    until: Annotated[
        str | None,
        typer.Option(metavar="AGE|TIME", help="end of the span, for example `today`; without this option, now"),
    ] = None,
    by: Annotated[
        Literal["pool", "account", "repository", "5min", "hour", "day"], typer.Option(help="how jobs are grouped")
    ] = "pool",
    as_json: Json = False,
) -> None:
    """Show how long jobs waited and ran. Jobs whose execution began in the span are counted.

    A second table has the jobs that were queued before the end of the span and have not begun until now.
    Times without a zone, hours and days are in UTC. Jobs that were completed longer ago than OSTLER_KEEP_JOBS are
    missing.
    """
    from models.browse.waits import By, still_waiting, waits

    now = utcnow()
    begin, end = time_of(since, "--since", now=now), now if until is None else time_of(until, "--until", now=now)
    if begin >= end:
        raise typer.BadParameter(f"--since ({begin:%Y-%m-%d %H:%M:%S} UTC) must be before the end of the span")
    found, waiting = query(
        lambda db: (
            waits(db, since=begin, until=end, by=By(by), now=now),
            still_waiting(db, until=end, by=By(by)),
        )
    )
    if as_json:
        groups, total = [shown(each) for each in found[:-1]], [shown(each) for each in found[-1:]]
        print_json(
            {
                "since": begin,
                "until": end,
                "by": by,
                "groups": groups,
                "total": total[0] if total else None,
                "still_waiting": waiting,
            }
        )
        return
    print_waits(by, found, empty=f"no job began to run between {begin:%Y-%m-%d %H:%M} and {end:%Y-%m-%d %H:%M} UTC")
    typer.echo()
    print_table(
        (Column(by, Kind.NAME), "not begun", "of them held", "oldest wait"),
        ((each.name, each.jobs, each.held, age(each.oldest_queued_at, now=now)) for each in waiting),
        empty="no job that was queued before the end of the span still waits",
    )


def print_waits(by: str, found: Sequence[Waits], *, empty: str) -> None:
    """Print a table of waits by groups of the kind `by`, or the text `empty` if there are none."""
    print_table(
        (Column(by, Kind.NAME), "jobs", "p50", "p95", "longest wait", "runner minutes"),
        (
            (
                "all jobs" if each.name is None else each.name,
                each.jobs,
                duration(each.p50),
                duration(each.p95),
                duration(each.most),
                f"{each.run_seconds / 60:.1f}",
            )
            for each in found
        ),
        empty=empty,
    )


def shown(waits: Waits) -> dict[str, Any]:
    """Return waits as `--json` prints them."""
    return {
        "name": waits.name,
        "jobs": waits.jobs,
        "p50_seconds": waits.p50,
        "p95_seconds": waits.p95,
        "longest_seconds": waits.most,
        "runner_minutes": waits.run_seconds / 60,
    }
