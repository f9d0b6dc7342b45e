"""`ostler changes` and `ostler pool history`: who changed accounts, gates, jobs, pools, sweeps and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import remote
from cli.output import Limit, Since, age, print_more, query, since_of
from cli.tables import Column, Form, Kind, listed, print_table, printed
from ostler.clock import utcnow
from rules.changes import ChangeKind, in_short, in_words

if TYPE_CHECKING:
    from datetime import datetime


@listed
def changes(
    form: Form,
    since: Since = None,
    kind: Annotated[ChangeKind | None, typer.Option(help="show only changes of objects of this kind")] = None,
    object_: Annotated[
        str | None, typer.Option("--object", metavar="NAME|ID", help="show only changes of this object")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List who changed accounts, gates, jobs, pools, sweeps and tokens, newest first.

    With OSTLER_API_URL, the command asks the REST API instead of Postgres.
    """
    _print(form, since=since_of(since, now=utcnow()), kind=kind, object_=object_, limit=limit)


@listed
def history(
    form: Form,
    pool: Annotated[str, typer.Argument(metavar="NAME|ID", help="name or id of the pool")],
    since: Since = None,
    limit: Limit = 50,
) -> None:
    """List who changed a pool, newest first.

    A change of the RunnerPool object shows the field manager that last wrote its spec. The list leaves out the replicas
    that the autoscaler sets. With OSTLER_API_URL, the command asks the REST API instead of Postgres.
    """
    _print(form, since=since_of(since, now=utcnow()), kind=ChangeKind.POOL, object_=pool, limit=limit)


def _print(form: Form, *, since: datetime | None, kind: ChangeKind | None, object_: str | None, limit: int) -> None:
    from models.browse.changes import ChangeFilter, list_changes

    api = remote.chosen()
    if api is None:
        page = query(lambda db: list_changes(db, ChangeFilter(kind=kind, object=object_, since=since), limit=limit))
        rows: list[Any] = [dict(row._mapping) for row in page.rows]
        more = page.next_id is not None
    else:
        rows, more = api.items("changes", limit=limit, kind=kind, object=object_, since=since)
    if printed(form, rows, names=(row["id"] for row in rows)):
        return
    now, words = utcnow(), in_words if form is Form.WIDE else in_short
    print_table(
        (
            Column("id", drop=3),
            "age",
            "kind",
            Column("object", Kind.NAME),
            Column("who", Kind.NAME),
            Column("via", drop=1),
            Column("database user", Kind.NAME, drop=4),
            Column("change", Kind.TEXT),
            Column("why", Kind.TEXT, drop=2),
        ),
        (
            (
                row["id"],
                age(row["at"], now=now),
                row["kind"],
                row["name"],
                row["who"],
                row["via"],
                row["database_user"],
                words(row["old"], row["new"]),
                row["why"],
            )
            for row in rows
        ),
        empty="no changes",
        wide=form is Form.WIDE,
    )
    print_more(len(rows), more=more)
