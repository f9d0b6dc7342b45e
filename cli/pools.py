"""`ostler pool list`: pools with the numbers of their Pods and jobs, and the last decision of the autoscaler.

The command reads only Postgres, so it also works while the cluster does not answer. `pool_changes` has the commands
that change a pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output import Json, Limit, age, fail, given_id, object_of, print_json, query
from cli.tables import Column, Form, Kind, Output, Wide, form_of, print_names, print_table
from ostler.clock import utcnow

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.pools import PoolStory, PoolTroubles


OUTLIVED = 3
"""Number of Pods that outlived their runners in the last hour. From this number on, the list reports a problem.

A Pod outlives its runner if a further container still runs after the poller and the runner have ended. A smaller number
is no sign of a problem, because such Pods might only need more time to end.
"""

app = typer.Typer(no_args_is_help=True, help="Show, convert, scale, pause, drain and detach pools.")


@app.command("list")
def list_(
    why: Annotated[bool, typer.Option("--why", help="show the last decision of the autoscaler for each pool")] = False,
    everything: Annotated[bool, typer.Option("--all", help="also show pools whose RunnerPool was deleted")] = False,
    limit: Limit = 50,
    as_json: Json = False,
    wide: Wide = False,
    output: Output = None,
) -> None:
    """List pools with the numbers of their Pods and jobs."""
    from models.browse.pools import PoolFilter, list_pools, pool_story, pool_troubles

    form = form_of(as_json=as_json, wide=wide, output=output)
    now = utcnow()

    def body(db: Connection) -> list[tuple[PoolStory, str]]:
        page = list_pools(db, PoolFilter(deleted=None if everything else False), limit=limit)
        stories = (pool_story(db, row.id, now=now) for row in page.rows)
        return [
            (story, _trouble(story, pool_troubles(db, story.pool.id, now=now)))
            for story in stories
            if story is not None
        ]

    found = query(body)
    stories = [story for story, _ in found]
    if form is Form.NAME:
        print_names(story.pool.name for story in stories)
        return
    if form is Form.JSON:
        print_json([{**object_of(story.pool), "counts": story.counts, "trouble": trouble} for story, trouble in found])
        return
    if why:
        _print_decisions(stories, wide=form is Form.WIDE)
        return
    print_table(
        (
            Column("id", drop=8),
            Column("pool", Kind.NAME),
            Column("labels", Kind.TEXT, drop=9),
            Column("scaling", Kind.TEXT, drop=10),
            "replicas",
            Column("pods", drop=6),
            "warm",
            Column("reserved", drop=7),
            "busy",
            "queued",
            Column("held", drop=5),
            Column("oldest", drop=4),
            "state",
            Column("what is wrong", Kind.TEXT),
        ),
        (
            (
                story.pool.id,
                story.pool.name,
                ",".join(story.pool.labels),
                _scaling(story),
                story.pool.replicas,
                story.counts.pods,
                story.counts.warm,
                story.counts.reserved,
                story.counts.busy,
                story.counts.queued,
                story.counts.held,
                age(story.counts.oldest_queued_at, now=now),
                _state(story),
                trouble,
            )
            for story, trouble in found
        ),
        empty="no pools",
        wide=form is Form.WIDE,
    )


def _state(story: PoolStory) -> str:
    if story.pool.deleted_at is not None:
        return "gone"
    if story.pool.draining:
        return "draining"
    if story.pool.paused:
        return "paused"
    if _holds(story, "Degraded"):
        return "degraded"
    if _holds(story, "Ready"):
        return "ready"
    return "starting" if any(map(_starts, story.pool.conditions)) else "not ready"


def _holds(story: PoolStory, condition: str) -> bool:
    return any((each["type"], each["status"]) == (condition, "True") for each in story.pool.conditions)


def _starts(condition: Mapping[str, str]) -> bool:
    return (condition["type"], condition["reason"]) == ("Ready", "PodsStarting")


def _trouble(story: PoolStory, rows: PoolTroubles) -> str:
    """Return the problem of a pool, or the progress of its drain. Return an empty text if there is no problem.

    If a pool has several problems, the first of these is returned: its conditions, held jobs, Pods that outlive their
    runners.
    """
    if story.pool.draining:
        return "".join(f"{each['reason']}: {each['message']}" for each in story.pool.conditions if _drains(each))
    wrong = {("Degraded", "True"), ("Ready", "False")}
    found = [each for each in story.pool.conditions if (each["type"], each["status"]) in wrong and not _starts(each)]
    worst = sorted(found, key=lambda each: each["type"])[:1]  # `Degraded` is first and explains why `Ready` is false
    if worst:
        return f"{worst[0]['reason']}: {worst[0]['message']}"
    if rows.held:
        waits = "1 job waits" if rows.held == 1 else f"{rows.held} jobs wait"
        return f"JobsHeld: {waits}: {rows.held_because}"
    if rows.outlived >= OUTLIVED:
        return (
            f"PodsOutliveRunners: {rows.outlived} Pods ended poller and runner in the last hour while another "
            "container continued to run; Ostler deletes them"
        )
    return ""


def _drains(condition: Mapping[str, str]) -> bool:
    return (condition["type"], condition["status"]) == ("Draining", "True")


def _scaling(story: PoolStory) -> str:
    pool = story.pool
    return f"+{pool.min_warm} warm, at most {pool.max_replicas}" if pool.autoscaled else "by hand"


def _print_decisions(stories: Sequence[PoolStory], *, wide: bool) -> None:
    now = utcnow()
    print_table(
        (
            Column("pool", Kind.NAME),
            "replicas",
            "decision",
            Column("why", Kind.TEXT),
            Column("scaled up", drop=1),
            Column("scaled down", drop=2),
        ),
        (
            (
                story.pool.name,
                story.pool.replicas,
                *_decision(story),
                age(story.pool.scaled_up_at, now=now),
                age(story.pool.scaled_down_at, now=now),
            )
            for story in stories
        ),
        empty="no pools",
        wide=wide,
    )


def _decision(story: PoolStory) -> tuple[str, str]:
    """Return the verdict and the reason of the autoscaler's last decision."""
    if not story.pool.autoscaled:
        return "", "autoscaling.enabled is false: `ostler pool scale` sets the replicas"
    if not story.pool.scaling:
        return "", "the autoscaler has not checked it yet"
    return story.pool.scaling["verdict"], story.pool.scaling["why"]


def pool_id(db: Connection, given: str | None) -> int | None:
    """Return the id of the pool with the name or id `given`, or None if `given` is None.

    Ends the command with a message if no pool or several pools have the name.
    """
    from models.browse.pools import pool_names

    if given is None or (number := given_id(given)) is not None:
        return None if given is None else number
    found = pool_names(db, given)
    if not found:
        fail(f"there is no pool {given!r}; `ostler pool list` lists the pools")
    if len(found) > 1:
        fail(f"pool {given!r} is in several namespaces; give one of the ids {', '.join(map(str, found))}")
    return found[0]
