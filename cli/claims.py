"""`ostler claims`: list claims. A claim reserves a Pod for a job or for retirement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.accounts import account_id
from cli.output import BIGGEST_ID, Limit, age, print_next_page, query
from cli.pools import pool_id
from cli.tables import Column, Form, Kind, listed, print_table, printed
from ostler.clock import utcnow
from rules.claims.machines import ClaimState, EndReason, Purpose

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.page import Page


@listed
def claims(
    form: Form,
    state: Annotated[ClaimState | None, typer.Option(help="show only claims in this state")] = None,
    everything: Annotated[bool, typer.Option("--all", help="also show claims that have ended")] = False,
    purpose: Annotated[Purpose | None, typer.Option(help="show only claims with this purpose")] = None,
    account: Annotated[str | None, typer.Option(help="login or id")] = None,
    pool: Annotated[str | None, typer.Option(help="name or id")] = None,
    job: Annotated[int | None, typer.Option(min=1, max=BIGGEST_ID, help="GitHub's id of the job")] = None,
    pod: Annotated[str | None, typer.Option(help="name or UID of a Pod")] = None,
    limit: Limit = 50,
) -> None:
    """List claims, newest first. Without --all, --state, --job and --pod, only live claims are listed."""
    from models.browse.claims import ClaimFilter, list_claims, shown

    def body(db: Connection) -> Page:
        wanted = ClaimFilter(
            state=state,
            live=None if everything or state is not None or job is not None or pod is not None else True,
            purpose=purpose,
            account_id=account_id(db, account),
            pool_id=pool_id(db, pool),
            job_id=job,
            pod=pod,
        )
        return list_claims(db, wanted, limit=limit)

    page = query(body)
    if printed(form, [shown(row) for row in page.rows], names=(row.id for row in page.rows)):
        return
    now = utcnow()
    print_table(
        (
            Column("claim"),
            Column("purpose", drop=5),
            Column("state"),
            Column("stamp", drop=4),
            Column("job"),
            Column("account", Kind.NAME, drop=3),
            Column("pool", Kind.NAME, drop=6),
            Column("pod", Kind.NAME),
            Column("age"),
            Column("end", drop=2),
        ),
        (
            (
                row.id,
                row.purpose,
                row.state,
                row.stamp,
                row.job_id or row.executes_job_id,
                row.account,
                row.pool,
                row.pod,
                age(row.created_at, now=now),
                _end(row.end_reason, row.exit_reason),
            )
            for row in page.rows
        ),
        empty="no claims",
        wide=form is Form.WIDE,
    )
    print_next_page(page)


def _end(end_reason: str | None, exit_reason: str | None) -> str | None:
    """Return why a claim ended. If the Pod ended first, add Kubernetes' reason for the end of the Pod."""
    if end_reason not in {EndReason.POD_GONE, EndReason.POD_SPENT} or exit_reason is None:
        return end_reason
    return f"{end_reason} ({exit_reason})"
