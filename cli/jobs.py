"""`ostler jobs` and `ostler job ID`: list jobs, and explain why one job waits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from cli.accounts import account_id
from cli.output import (
    BIGGEST_ID,
    Json,
    Limit,
    age,
    fail,
    object_of,
    print_json,
    print_next_page,
    query,
)
from cli.pools import pool_id
from cli.tables import Column, Form, Kind, Output, Wide, form_of, print_names, print_table
from cli.timeline import moment, print_timeline
from ostler.clock import utcnow
from ostler.settings import Timed, read
from rules.claims.machines import JobState
from rules.claims.pod_ends import describe
from rules.routing.holds import HoldReason
from rules.waiting import explain

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from models.browse.jobs import JobStory
    from models.browse.page import Page


def jobs(
    state: Annotated[JobState | None, typer.Option(help="show only jobs in this state")] = None,
    hold: Annotated[HoldReason | None, typer.Option(help="show only jobs with this hold reason")] = None,
    held: Annotated[bool, typer.Option("--held", help="show only held jobs")] = False,
    account: Annotated[str | None, typer.Option(help="login or id")] = None,
    pool: Annotated[str | None, typer.Option(help="name or id")] = None,
    repository: Annotated[str | None, typer.Option(help="owner/name")] = None,
    limit: Limit = 50,
    as_json: Json = False,
    wide: Wide = False,
    output: Output = None,
) -> None:
    """List jobs, newest first."""
    from models.browse.jobs import JobFilter, list_jobs

    def body(db: Connection) -> Page:
        wanted = JobFilter(
            state=state,
            hold_reason=hold,
            held=True if held else None,
            account_id=account_id(db, account),
            pool_id=pool_id(db, pool),
            repository=repository,
        )
        return list_jobs(db, wanted, limit=limit)

    form = form_of(as_json=as_json, wide=wide, output=output)
    page = query(body)
    if form is Form.JSON:
        print_json(list(page.rows))
        return
    if form is Form.NAME:
        print_names(row.id for row in page.rows)
        return
    now = utcnow()
    print_table(
        (
            Column("job"),
            Column("repository", Kind.NAME, drop=1),
            Column("name", Kind.NAME, drop=2),
            Column("state"),
            Column("hold"),
            Column("pool", Kind.NAME, drop=3),
            Column("age"),
            Column("account", Kind.NAME, drop=4),
            Column("runner", Kind.NAME, drop=5),
        ),
        (
            (
                row.id,
                row.repository,
                row.name,
                row.conclusion or row.state,
                row.hold_reason,
                row.pool,
                age(row.queued_at, now=now),
                row.account,
                row.runner,
            )
            for row in page.rows
        ),
        empty="no jobs",
        wide=form is Form.WIDE,
    )
    print_next_page(page)


def job(
    job_id: Annotated[int, typer.Argument(min=1, max=BIGGEST_ID, metavar="ID", help="GitHub's id of the job")],
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Explain one job: its state, the reason, a cure, and its history."""
    from models.browse.claims import claim_events
    from models.browse.jobs import job_story
    from models.claims.pod_ends import end_of

    now, timings = utcnow(), read(Timed).timings

    def body(db: Connection) -> tuple[JobStory | None, list[Row[Any]]]:
        story = job_story(db, job_id, timings=timings, now=now)
        claims = [] if story is None else story.claims
        return story, [event for claim in claims for event in claim_events(db, claim.id)]

    story, of_claims = query(body)
    if story is None:
        fail(f"there is no job {job_id}; `ostler jobs` lists the known jobs")
    why = explain(story.facts)
    ends = [describe(end_of(claim)) for claim in story.claims]
    if as_json:
        claims = [{**object_of(claim), "pod_end": end} for claim, end in zip(story.claims, ends, strict=True)]
        print_json(
            {
                **object_of(story.job),
                "why": asdict(why),
                "claims": claims,
                "events": list(story.events),
                "claim_events": of_claims,
            }
        )
        return
    console = Console(highlight=False)
    found = story.job
    console.print(f"[bold]{escape(found.repository)}[/] {escape(found.name)} (job {found.id}, run {found.run_id})")
    console.print(f"{found.conclusion or found.state}, {age(found.queued_at, now=now)} old, account {found.account}")
    console.print(f"\n{escape(why.summary)}")
    if why.cure is not None:
        console.print(f"[bold]What helps:[/] {escape(why.cure)}")
    console.print()
    moments = [moment("job", event) for event in story.events]
    moments += [moment(f"claim {event.claim_id}", event) for event in of_claims]
    for claim, end in zip(story.claims, ends, strict=True):
        first = None if claim.deleted_first is False else claim.deletion_at
        at = first or claim.pod_over_at or claim.deletion_at or claim.pod_gone_at
        if at is not None:
            moments.append((at, f"pod {claim.pod}", None, "ended", None, end, None))
    print_timeline(moments, empty="no events are recorded for it", wide=wide)
