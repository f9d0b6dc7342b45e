"""The mirror of a pool: an older look writes nothing over a newer one."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import text

from models import keeper
from models.engine import transaction
from models.keeper import PoolFacts
from ostler.clock import utcnow
from tests.database import Database

POOL = PoolFacts(
    uid="u", namespace="n", name="small", image="i", labels=("x",), runner_group_id=1, vcpu=1000, memory=1024,
    replicas=3, allowed_accounts=(), allowed_repositories=(), routing_priority=0, template_hash="h", draining=False,
    generation=7,
)  # fmt: skip


def look(database: Database, pool: PoolFacts, *, problem: str | None = None) -> tuple[int, int, str | None]:
    """Write down one look at a pool; return generation, replicas and problem of its row."""
    if problem is None:
        transaction(database.engine, lambda db: keeper.mirror_pool(db, pool, now=utcnow()))
    else:
        transaction(database.engine, lambda db: keeper.mark_problem(db, pool, problem=problem, now=utcnow()))
    with database.engine.begin() as db:
        row = db.execute(text("SELECT generation, replicas, problem FROM pools")).one()
    return row.generation, row.replicas, row.problem


def test_the_problem_of_an_older_generation_degrades_no_repaired_pool(database: Database) -> None:
    assert look(database, POOL) == (7, 3, None)
    assert look(database, replace(POOL, generation=6), problem="image is missing") == (7, 3, None)


def test_the_problem_of_a_newer_generation_is_recorded_until_a_look_without_it(database: Database) -> None:
    look(database, POOL)
    assert look(database, replace(POOL, generation=8), problem="no image") == (8, 3, "no image")
    assert look(database, replace(POOL, generation=8), problem="no label") == (8, 3, "no label")
    assert look(database, replace(POOL, generation=9, replicas=4)) == (9, 4, None)


def test_the_spec_of_an_older_generation_is_not_mirrored(database: Database) -> None:
    look(database, POOL)
    assert look(database, replace(POOL, generation=6, replicas=9)) == (7, 3, None)
