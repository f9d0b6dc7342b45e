"""`ostler pools`: the pools with their Pods and queues in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostler.cli.output import Json, Limit, age, fail, given_id, object_of, print_json, print_table, query
from ostler.clock import utcnow

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.pools import PoolStory


def pools(
    everything: Annotated[bool, typer.Option("--all", help="also those whose RunnerPool is gone")] = False,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List pools with their Pods and jobs in numbers."""
    from models.browse.pools import PoolFilter, list_pools, pool_story  # noqa: PLC0415

    now = utcnow()

    def body(db: Connection) -> list[PoolStory]:
        page = list_pools(db, PoolFilter(deleted=None if everything else False), limit=limit)
        stories = (pool_story(db, row.id, now=now) for row in page.rows)
        return [story for story in stories if story is not None]

    stories = query(body)
    if as_json:
        print_json([{**object_of(story.pool), "counts": story.counts} for story in stories])
        return
    print_table(
        ("id", "pool", "labels", "replicas", "pods", "warm", "reserved", "busy", "queued", "held", "oldest", "state"),
        (
            (story.pool.id, story.pool.name, ",".join(story.pool.labels), story.pool.replicas, story.counts.pods,
             story.counts.warm, story.counts.reserved, story.counts.busy, story.counts.queued, story.counts.held,
             age(story.counts.oldest_queued_at, now=now), _state(story))
            for story in stories
        ),
        empty="no pools",
    )  # fmt: skip


def _state(story: PoolStory) -> str:
    if story.pool.deleted_at is not None:
        return "gone"
    return "draining" if story.pool.draining else "ready"


def pool_id(db: Connection, given: str | None) -> int | None:
    """Return the id of the pool that was named by name or id; ends the command when there is none."""
    from models.browse.pools import pool_names  # noqa: PLC0415

    if given is None or (number := given_id(given)) is not None:
        return None if given is None else number
    found = pool_names(db, given)
    if not found:
        fail(f"there is no pool {given!r}; `ostler pools` lists them")
    if len(found) > 1:
        fail(f"pool {given!r} is in several namespaces; give one of the ids {', '.join(map(str, found))}")
    return found[0]
