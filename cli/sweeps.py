"""`ostler sweep list|pause|resume|run` and `ostler repairs`: control the sweeps, and list their repairs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    no_answer,
    print_json,
    print_next_page,
    query,
    since_of,
)
from cli.tables import Column, Form, Kind, listed, print_note, print_table, printed
from ostler.clock import utcnow
from ostler.errors import ConfigurationError, StoreUnreachable
from ostler.reasons import reason_of
from ostler.settings import load_stores
from ostler.task_names import SWEEPS
from rules.sweeps.limits import SUCCESSES, Outcome, Repaired

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.repairs import DailyChanges
    from models.browse.sweeps import SweepSeen
    from models.sweeps.sweep_runs import SweepRun

CHECK_EVERY = 0.2
LONGEST_WHY = 200

app = typer.Typer(no_args_is_help=True, help="Show, pause and run the sweeps, which find and repair lost work.")

Name = Annotated[str, typer.Argument(help="name of the sweep, as `ostler sweep list` shows it")]
Why = Annotated[str, typer.Option("--why", help="reason, shown to all operators")]


@app.command("list")
@listed
def list_(form: Form) -> None:
    """List sweeps with their pause switches and the results of their last runs."""
    from models.browse.sweeps import list_sweeps

    now = utcnow()
    found, obstacle = query(lambda db: (list_sweeps(db, now=now), _obstacle(db)))
    if obstacle is not None:
        print_note(f"No Pod can be retired and no runner deregistered now: {obstacle}")
    if printed(form, found, names=(each.name for each in found)):
        return
    print_table(
        (
            "sweep",
            Column("switch", Kind.TEXT),
            Column("last success", drop=1),
            Column("last tick"),
            Column("outcome"),
            Column("why", Kind.TEXT),
        ),
        (
            (
                each.name,
                _switch(each),
                _ago(each.succeeded_at, now),
                _ago(each.began_at, now),
                each.outcome,
                each.paused_why or each.why,
            )
            for each in found
        ),
        empty="no sweeps",
        wide=form is Form.WIDE,
    )


@app.command("pause")
def pause(name: Name, why: Why = "", as_json: Json = False) -> None:
    """Pause a sweep (or `all`) until it is resumed. A running sweep stops before its next repair."""
    from models.sweeps import sweep_runs

    by, reason = author(), why[:LONGEST_WHY]
    _change(name, lambda db, each: sweep_runs.pause(db, each, by=by, why=reason), as_json=as_json)


@app.command("resume")
def resume(name: Name, as_json: Json = False) -> None:
    """Resume a paused sweep (or `all`). The sweep then runs again at its usual interval."""
    from models.sweeps import sweep_runs

    by = author()
    _change(name, lambda db, each: sweep_runs.resume(db, each, by=by), as_json=as_json)


@app.command("run")
def run(
    name: Name,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="show what would be repaired, without changing anything")
    ] = False,
    wait: Annotated[float, typer.Option(min=1, max=600, help="seconds to wait for the end of the run")] = 60,
    as_json: Json = False,
) -> None:
    """Ask a worker to run a sweep once now, and print the repairs of this run. Needs OSTLER_REDIS_URL."""
    from models.browse.repairs import RepairFilter, list_repairs

    (only,) = _named(name, several=False)
    asked = uuid.uuid4().hex
    _send(only, asked=asked, dry=dry)
    found = _wait(asked, seconds=wait)
    if found is None:
        fail(f"{only} did not end within {wait:g} s; check that a worker serves the queue `sweeps`")
    page = query(lambda db: list_repairs(db, RepairFilter(run_id=found.id), limit=1000))
    if as_json:
        print_json({"run": found, "repairs": list(page.rows)})
    else:
        why = f": {found.why}" if found.why else ""
        typer.echo(
            f"{only}: {found.outcome}{why}. Listed {found.listed}, found {found.found}, "
            f"{'would repair' if found.dry else 'repaired'} {found.repaired}, deferred by its budget {found.overflow}, "
            f"changed meanwhile {found.moved_on}, skipped after an error {found.skipped}"
        )
        _print_repairs(page.rows)
    if found.outcome not in SUCCESSES:
        raise typer.Exit(1)


@listed
def repairs(
    form: Form,
    sweep: Annotated[str | None, typer.Option(help="show only repairs of this sweep")] = None,
    outcome: Annotated[Repaired | None, typer.Option(help="show only repairs with this outcome")] = None,
    dry: Annotated[
        bool | None, typer.Option("--dry/--real", help="show only repairs of dry runs, or only real ones")
    ] = None,
    claim: Annotated[int | None, typer.Option(min=1, max=BIGGEST_ID, help="show only repairs of this claim")] = None,
    job: Annotated[int | None, typer.Option(min=1, max=BIGGEST_ID, help="show only repairs of this job")] = None,
    pod_uid: Annotated[str | None, typer.Option(help="show only repairs of the Pod with this UID")] = None,
    run_id: Annotated[
        int | None, typer.Option("--run", min=1, max=BIGGEST_ID, help="show only repairs of this run")
    ] = None,
    failed: Failed = False,
    since: Since = None,
    sort: Sort = "newest",
    destructive: Annotated[
        bool | None, typer.Option("--destructive/--harmless", help="show only repairs that delete something, or others")
    ] = None,
    by_day: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="count the repairs, and other retirements of Pods, by day (since 7 days ago without --since)",
        ),
    ] = False,
    limit: Limit = 50,
) -> None:
    """List the repairs of the sweeps, each with its outcome."""
    from models.browse.page import Order
    from models.browse.repairs import RepairFilter, list_repairs, summary

    if sweep is not None:
        _named(sweep, several=False)
    now = utcnow()
    begin = since_of(since, now=now)
    wanted = RepairFilter(
        sweep=sweep,
        outcome=outcome,
        dry=dry,
        claim_id=claim,
        job_id=job,
        pod_uid=pod_uid,
        run_id=run_id,
        since=begin,
        kills=destructive,
        failed=failed or None,
    )
    if by_day:
        if replace(wanted, since=None) != RepairFilter():
            raise typer.BadParameter("--summary can be used only with --since, --json, --wide and -o")
        first = begin or now - timedelta(days=7)
        rows = query(lambda db: summary(db, since=first))
        if form is Form.JSON:
            print_json(list(rows))
        else:
            print_summary(rows, since=first, wide=form is Form.WIDE)
        return
    page = query(lambda db: list_repairs(db, wanted, order=Order(sort), limit=limit))
    if printed(form, list(page.rows), names=(row.id for row in page.rows)):
        return
    empty = "no repairs"
    if wanted == RepairFilter(since=begin, kills=True):
        empty = "no repair deleted anything" + ("" if begin is None else f" since {begin:%Y-%m-%d %H:%M} UTC")
    _print_repairs(page.rows, empty=empty, wide=form is Form.WIDE)
    print_next_page(page)


def print_summary(rows: Sequence[DailyChanges], *, since: datetime, wide: bool = False) -> None:
    """Print what sweeps and reconcilers changed, by day (`models.browse.repairs.summary`)."""
    print_table(
        ("day", "who", Column("what", Kind.TEXT), "outcome", Column("deletes", drop=1), "number"),
        ((row.day, row.who, row.what, row.outcome, "yes" if row.kills else "no", row.changes) for row in rows),
        empty=f"no repair and no retirement since {since:%Y-%m-%d %H:%M} UTC",
        wide=wide,
    )


def _print_repairs(rows: Any, *, empty: str = "no repairs", wide: bool = False) -> None:
    now = utcnow()
    print_table(
        (
            "repair",
            "age",
            Column("sweep", drop=1),
            "what",
            Column("why", Kind.TEXT),
            Column("pod", Kind.NAME, drop=4),
            Column("claim", drop=2),
            Column("job", drop=3),
            Column("subject", Kind.NAME, drop=7),
            Column("before", Kind.TEXT, drop=6),
            Column("after", Kind.TEXT, drop=5),
            "outcome",
        ),
        (
            (
                row.id,
                age(row.at, now=now),
                row.sweep,
                row.what,
                row.why,
                row.pod or row.pod_uid,
                row.claim_id,
                row.job_id,
                row.subject or row.runner_name,
                row.before,
                row.after,
                row.outcome,
            )
            for row in rows
        ),
        empty=empty,
        wide=wide,
    )


def _obstacle(db: Connection) -> str | None:
    """Return why no sweep can make destructive repairs now, or None if nothing prevents such repairs."""
    from models.db import epochs
    from models.upstream import gates

    return epochs.doubt(db, now=utcnow()) or "; ".join(map(str, gates.shut(db))) or None


def _named(name: str, *, several: bool = True) -> tuple[str, ...]:
    """Return the sweep of this name as a tuple. If `several` is true, the name `all` returns every sweep.

    Ends the command with a message if there is no such sweep.
    """
    if several and name == "all":
        return SWEEPS
    if name not in SWEEPS:
        fail(f"there is no sweep {name!r}; `ostler sweep list` lists the sweeps")
    return (name,)


def _change(name: str, write: Any, *, as_json: bool) -> None:
    from models.browse.sweeps import list_sweeps

    names = _named(name)

    def body(db: Connection) -> list[SweepSeen]:
        for each in names:
            write(db, each)
        return [each for each in list_sweeps(db, now=utcnow()) if each.name in names]

    changed = query(body)
    if as_json:
        print_json(changed)
        return
    for each in changed:
        typer.echo(f"{each.name}: {_switch(each)}")


def _send(name: str, *, asked: str, dry: bool) -> None:
    import redis
    from kombu.exceptions import KombuError, OperationalError

    from ostler.task_names import task_of
    from ostler.wakes import Waker

    redis_url = load_stores().redis_url
    if redis_url is None:
        raise ConfigurationError(
            "OSTLER_REDIS_URL: it is not set; set it, because Redis carries the request to a worker"
        )
    waker = Waker(redis_url)
    try:
        waker.send(task_of(name), asked=asked, dry=dry)
    except (redis.RedisError, KombuError, OperationalError, OSError) as error:
        raise StoreUnreachable(no_answer("Redis", redis_url, reason_of(error), variable="OSTLER_REDIS_URL")) from None
    finally:
        waker.close()


def _wait(asked: str, *, seconds: float) -> SweepRun | None:
    """Wait for the run with the request id `asked`, and return the row of the run.

    Return None if the run does not end within `seconds`.
    """
    from models.browse.sweeps import run_asked

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = query(lambda db: run_asked(db, asked))
        if found is not None and found.outcome != Outcome.RUNNING:
            return found
        time.sleep(CHECK_EVERY)
    return None


def _switch(each: SweepSeen) -> str:
    if each.paused_at is not None:
        return f"paused by {each.paused_by}"
    return "runs now" if each.runs_in is not None else "on"


def _ago(at: datetime | None, now: datetime) -> str:
    return "never" if at is None else f"{age(at, now=now)} ago"
