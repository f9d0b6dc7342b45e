"""`ostler report`: waits, runner minutes, idle minutes and repairs of a span, in one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import Json, print_json, query, time_of
from cli.stats import print_waits, shown
from cli.sweeps import print_summary
from cli.tables import Column, Kind, print_table
from cli.usage import print_starts
from ostler.clock import utcnow

if TYPE_CHECKING:
    from sqlalchemy import Connection


def report(
    since: Annotated[
        str,
        typer.Option(
            metavar="AGE|TIME", help="begin of the span: an age such as 7d, `today`, `yesterday`, or an ISO 8601 time"
        ),
    ] = "24h",
    as_json: Json = False,
) -> None:
    """Report a span until now: waits and late starts, runner minutes, idle minutes of warm Pods, and repairs.

    Jobs and Pods whose rows were deleted after OSTLER_KEEP_JOBS are missing.
    """
    from models.browse.repairs import summary
    from models.browse.usage import starts, told_starts
    from models.browse.waits import By, idle, waits

    now = utcnow()
    begin = time_of(since, "--since", now=now)

    def body(db: Connection) -> dict[str, Any]:
        return {
            "pools": waits(db, since=begin, until=now, by=By.POOL, now=now),
            "accounts": waits(db, since=begin, until=now, by=By.ACCOUNT, now=now),
            "starts": [told_starts(each) for each in starts(db, since=begin, until=now)],
            "idle": idle(db, since=begin, until=now, now=now),
            "repairs": summary(db, since=begin),
        }

    found = query(body)
    if as_json:
        print_json(
            {
                "since": begin,
                "until": now,
                **{name: [shown(each) for each in found[name]] for name in ("pools", "accounts")},
                "starts": found["starts"],
                "idle": found["idle"],
                "repairs": found["repairs"],
            }
        )
        return
    typer.echo(f"From {begin:%Y-%m-%d %H:%M} to {now:%Y-%m-%d %H:%M} UTC\n")
    for by in ("pool", "account"):
        print_waits(by, found[f"{by}s"], empty="no job began to run")
        typer.echo()
    print_starts(found["starts"])
    typer.echo()
    print_table(
        (Column("pool", Kind.NAME), "Pods that were idle", "idle minutes"),
        ((each.pool, each.pods, f"{each.seconds / 60:.1f}") for each in found["idle"]),
        empty="no Pod was idle",
    )
    typer.echo()
    print_summary(found["repairs"], since=begin)
