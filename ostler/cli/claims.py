"""`ostler claims`: the reservations of Pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostler.cli.accounts import account_id
from ostler.cli.output import BIGGEST_ID, Json, Limit, age, print_json, print_table, query, tell_more
from ostler.cli.pools import pool_id
from ostler.clock import utcnow
from rules.machines import ClaimState, Purpose

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.page import Page


def claims(
    state: Annotated[ClaimState | None, typer.Option(help="only claims in this state")] = None,
    everything: Annotated[bool, typer.Option("--all", help="also those that have ended")] = False,
    purpose: Annotated[Purpose | None, typer.Option(help="only claims of this purpose")] = None,
    account: Annotated[str | None, typer.Option(help="login or id")] = None,
    pool: Annotated[str | None, typer.Option(help="name or id")] = None,
    job: Annotated[int | None, typer.Option(min=1, max=BIGGEST_ID, help="GitHub's id of the job")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List live claims, newest first."""
    from models.browse.claims import ClaimFilter, list_claims  # noqa: PLC0415

    def body(db: Connection) -> Page:
        wanted = ClaimFilter(
            state=state,
            live=None if everything or state is not None or job is not None else True,
            purpose=purpose,
            account_id=account_id(db, account),
            pool_id=pool_id(db, pool),
            job_id=job,
        )
        return list_claims(db, wanted, limit=limit)

    page = query(body)
    if as_json:
        print_json(list(page.rows))
        return
    now = utcnow()
    print_table(
        ("claim", "purpose", "state", "stamp", "job", "account", "pool", "pod", "age", "end"),
        (
            (row.id, row.purpose, row.state, row.stamp, row.job_id, row.account, row.pool, row.pod,
             age(row.created_at, now=now), row.end_reason)
            for row in page.rows
        ),
        empty="no claims",
    )  # fmt: skip
    tell_more(page)
