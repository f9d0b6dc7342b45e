"""`ostler jobs`, `ostler job ID` and `ostler job requeue ID`: list jobs, explain one job, and queue it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from cli import remote
from cli.accounts import account_id, wake
from cli.output import (
    BIGGEST_ID,
    Failed,
    Json,
    Limit,
    Since,
    Sort,
    age,
    author,
    fail,
    print_json,
    print_more,
    query,
    since_of,
)
from cli.pools import pool_id
from cli.tables import Column, Form, Kind, Wide, listed, print_table, print_text, printed
from cli.timeline import print_checks, print_summary, print_timeline
from ostler.clock import utcnow
from ostler.settings import Timed, read
from rules.claims.machines import JobState
from rules.routing.holds import HoldReason
from rules.waiting.jobs import UNKNOWN_JOB
from rules.waiting.steps import Expected

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from models.sweeps import requeues
    from rules.waiting.steps import Explanation


@listed
def jobs(
    form: Form,
    state: Annotated[JobState | None, typer.Option(help="show only jobs in this state")] = None,
    hold: Annotated[HoldReason | None, typer.Option(help="show only jobs with this hold reason")] = None,
    held: Annotated[bool, typer.Option("--held", help="show only held jobs")] = False,
    account: Annotated[str | None, typer.Option(help="login or id")] = None,
    pool: Annotated[str | None, typer.Option(help="name or id")] = None,
    repository: Annotated[str | None, typer.Option(help="owner/name")] = None,
    workflow: Annotated[str | None, typer.Option(help="name of the workflow")] = None,
    label: Annotated[str | None, typer.Option(help="show only jobs that ask for this label")] = None,
    failed: Failed = False,
    since: Since = None,
    sort: Sort = "newest",
    limit: Limit = 50,
) -> None:
    """List jobs. With OSTLER_API_URL, the command asks the REST API instead of Postgres."""
    api, now = remote.chosen(), utcnow()
    filters = {
        "state": state,
        "hold_reason": hold,
        "held": held or None,
        "repository": repository,
        "workflow": workflow,
        "label": label,
        "failed": failed or None,
        "since": since_of(since, now=now),
    }
    if api is None:
        rows, more = query(
            lambda db: _listed(
                db,
                {**filters, "account_id": account_id(db, account), "pool_id": pool_id(db, pool)},
                sort=sort,
                limit=limit,
                now=now,
            )
        )
    else:
        rows, more = api.items(
            "jobs",
            limit=limit,
            sort=sort,
            **filters,
            account_id=api.id_of("accounts", "login", account),
            pool_id=api.id_of("pools", "name", pool, deleted=False),
        )
    if printed(form, rows, names=(row["id"] for row in rows)):
        return
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
                row["id"],
                row["repository"],
                row["name"],
                row["conclusion"] or row["state"],
                row["hold_reason"],
                row["pool"],
                age(row["queued_at"], now=now),
                row["account"],
                row["runner"],
            )
            for row in rows
        ),
        empty="no jobs",
        wide=form is Form.WIDE,
    )
    print_more(len(rows), more=more)


def _listed(
    db: Connection, filters: dict[str, Any], *, sort: str, limit: int, now: datetime
) -> tuple[list[dict[str, Any]], bool]:
    """Return a page of jobs, and whether more jobs exist."""
    from models.browse.jobs import JobFilter, list_jobs, shown
    from models.browse.page import Order

    page = list_jobs(db, JobFilter(**filters), order=Order(sort), limit=limit)
    return [shown(row, now=now) for row in page.rows], page.next_id is not None


class JobCommands(TyperGroup):
    """The commands about one job. An id instead of the name of a command explains the job."""

    default = "show"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. The name of the default command is added if they name no command."""
        named = args[:1] and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else [self.default, *args])


app = typer.Typer(
    cls=JobCommands,
    subcommand_metavar="ID | COMMAND [ARGS]...",
    help="Explain one job (`ostler job ID`), or queue a job again. The id is the last number of the address of the job "
    "at GitHub; `ostler jobs` lists the ids.",
)

JobId = Annotated[
    int,
    typer.Argument(min=1, max=BIGGEST_ID, metavar="ID", help="GitHub's id of the job, the last number of its address"),
]


@app.command("show")
def job(job_id: JobId, as_json: Json = False, wide: Wide = False) -> None:
    """Explain one job: its state, the reason, a cure, the next try, the usual wait, and its history.

    With OSTLER_API_URL, the command asks the REST API instead of Postgres.
    """
    api, now = remote.chosen(), utcnow()
    found = query(lambda db: _told(db, job_id, now=now)) if api is None else api.get(f"jobs/{job_id}")
    if found is None:
        fail(f"there is no job {job_id}; `ostler jobs` lists the known jobs. {UNKNOWN_JOB}")
    if as_json:
        print_json(found)
        return
    why = found["why"]
    print_text(f"{found['repository']} {found['name']} (job {found['id']}, run {found['run_id']})")
    print_text(
        f"{found['conclusion'] or found['state']}, {age(found['queued_at'], now=now)} old, account {found['account']}"
        f"{_times(found)}"
    )
    labels = ", ".join(found["labels"]) or "none"
    print_text(f"Workflow: {found['workflow_name'] or '-'}, branch {found['head_branch'] or '-'}; labels: {labels}")
    typer.echo()
    print_summary(why)
    if why["next_at"] is not None:
        print_text(f"Next try: {why['next_at']:%Y-%m-%d %H:%M:%S} UTC")
    if why["expected"] is not None:
        print_text(f"Usual wait in this pool: {Expected(**why['expected']).describe()}")
    typer.echo()
    if why["checks"]:
        print_checks(why["checks"], wide=wide)
        typer.echo()
    print_timeline(found["timeline"], wide=wide)


def _times(job: Mapping[str, Any]) -> str:
    """Return how long a job waited and ran, according to GitHub's times. Its clock has whole seconds."""
    queued, began, ended = (job[name] for name in ("queued_at", "started_at", "completed_at"))
    if began is None:
        return ""
    ran = "" if ended is None else f", ran {age(began, now=ended)}"
    return f", waited {age(queued, now=began)}{ran}"


@app.command("requeue")
def requeue(job_id: JobId, as_json: Json = False) -> None:
    """Clear the hold and the backoff of a queued job, or ask for the release of the claim of a claimed job.

    The command never ends a claim. A release needs GitHub's proof that the runner does not execute the job. With
    OSTLER_API_URL, the command asks the REST API instead of Postgres, and the token needs the scope `write`.
    """
    api = remote.chosen()
    found = _requeued(job_id) if api is None else api.post(f"jobs/{job_id}/requeue")
    if found is None:
        fail(f"there is no job {job_id}; `ostler jobs` lists the known jobs")
    if as_json:
        print_json(found)
        return
    why = found["why"]
    typer.echo(found["message"])
    print_summary(why)
    if why["next_at"] is not None:
        typer.echo(f"Next try: {why['next_at']:%Y-%m-%d %H:%M:%S} UTC")


def _requeued(job_id: int) -> dict[str, Any] | None:
    """Queue a job again, and return the answer as the API returns it. Return None if there is no such job."""
    from models.browse.jobs import job_story
    from models.sweeps.requeues import requeue as ask

    by, timings = author(), read(Timed).timings

    def body(db: Connection) -> tuple[requeues.Requeued, Explanation] | None:
        done = ask(db, job_id, by=by)
        story = job_story(db, job_id, timings=timings, now=by.at)
        return None if done is None or story is None else (done, story.why)

    found = query(body)
    if found is None:
        return None
    done, why = found
    if done.action.refused:
        fail(done.message)
    wake([] if done.wakes is None else [done.wakes], release=done.releases)
    return {"action": done.action, "message": done.message, "why": asdict(why)}


def _told(db: Connection, job_id: int, *, now: datetime) -> dict[str, Any] | None:
    from models.browse.jobs import job_story, told

    story = job_story(db, job_id, timings=read(Timed).timings, now=now)
    return None if story is None else told(story, now=now)
