"""The mirror of a pool: an older check never overwrites a newer one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from models.db.engine import transaction
from models.pools import pool_mirror
from ostler.clock import utcnow
from rules.pools.pool_spec import PoolSpec
from rules.routing.scopes import Scope
from tests.database import Database
from tests.rows import mark_problem, mirror_pool, pool_spec, run_sql

POOL = pool_spec(replicas=3, generation=7)


def look(database: Database, pool: PoolSpec, *, problem: str | None = None) -> tuple[int, int, str | None]:
    """Record one check of a pool, and return generation, replicas and problem of its row."""
    if problem is None:
        transaction(database.engine, lambda db: mirror_pool(db, pool, now=utcnow()))
    else:
        transaction(database.engine, lambda db: mark_problem(db, pool, problem=problem, now=utcnow()))
    with database.engine.begin() as db:
        row = db.execute(text("SELECT generation, replicas, problem FROM pools")).one()
    return row.generation, row.replicas, row.problem


def test_the_problem_of_an_older_generation_degrades_no_repaired_pool(database: Database) -> None:
    assert look(database, POOL) == (7, 3, None)
    assert look(database, replace(POOL, generation=6), problem="image is missing") == (7, 3, None)


def test_problem_of_a_newer_generation_is_recorded_until_a_list_without_it(database: Database) -> None:
    look(database, POOL)
    assert look(database, replace(POOL, generation=8), problem="no image") == (8, 3, "no image")
    assert look(database, replace(POOL, generation=8), problem="no label") == (8, 3, "no label")
    assert look(database, replace(POOL, generation=9, replicas=4)) == (9, 4, None)


def test_the_spec_of_an_older_generation_is_not_mirrored(database: Database) -> None:
    look(database, POOL)
    assert look(database, replace(POOL, generation=6, replicas=9)) == (7, 3, None)


def test_two_versions_of_ostler_do_not_replace_each_others_template_by_turns(database: Database) -> None:
    start = utcnow()

    def template_after(seconds: float, template: str, *, generation: int = 7) -> str:
        pool = replace(POOL, template_hash=template, generation=generation)
        now = start + timedelta(seconds=seconds)
        transaction(database.engine, lambda db: mirror_pool(db, pool, now=now))
        with database.engine.begin() as db:
            return str(db.execute(text("SELECT template_hash FROM pools")).scalar_one())

    assert template_after(0, "old") == "old"
    assert template_after(10, "new") == "old"
    assert template_after(20, "old") == "old"
    assert template_after(121, "new") == "new"
    assert template_after(130, "old") == "new"
    assert template_after(140, "old", generation=8) == "old"  # the spec has changed


def test_another_template_of_the_same_spec_keeps_the_backoff_of_failed_starts(database: Database) -> None:
    start = utcnow()

    def failed_starts_after(seconds: float, **changed: Any) -> int:
        pool = replace(POOL, **changed)
        now = start + timedelta(seconds=seconds)
        transaction(database.engine, lambda db: mirror_pool(db, pool, now=now))
        with database.engine.begin() as db:
            return int(db.execute(text("SELECT failed_starts FROM pools")).scalar_one())

    failed_starts_after(0)
    with database.engine.begin() as db:
        db.execute(text("UPDATE pools SET failed_starts = 4"))
    assert failed_starts_after(300, template_hash="other settings") == 4
    assert failed_starts_after(310, template_hash="other spec", generation=8) == 0


def test_a_template_that_a_version_without_a_hold_wrote_is_not_held(database: Database) -> None:
    start = utcnow()

    def template_after(seconds: float, template: str) -> str:
        pool = replace(POOL, template_hash=template)
        now = start + timedelta(seconds=seconds)
        transaction(database.engine, lambda db: mirror_pool(db, pool, now=now))
        with database.engine.begin() as db:
            return str(db.execute(text("SELECT template_hash FROM pools")).scalar_one())

    assert template_after(0, "new") == "new"
    with database.engine.begin() as db:
        db.execute(text("UPDATE pools SET template_hash = 'old'"))
    assert template_after(10, "new") == "new"


def test_problem_of_a_pool_that_is_gone_is_not_recorded(database: Database) -> None:
    look(database, POOL)
    transaction(database.engine, lambda db: pool_mirror.end_pool(db, pool_id(database), now=utcnow()))
    assert look(database, replace(POOL, generation=8), problem="no image") == (7, 3, None)


def test_second_proof_that_a_pool_is_gone_changes_nothing(database: Database) -> None:
    look(database, POOL)
    ends = []
    for minutes in (0, 5):
        at = utcnow() + timedelta(minutes=minutes)
        transaction(database.engine, lambda db, at=at: pool_mirror.end_pool(db, pool_id(database), now=at))  # type: ignore[misc]
        with database.engine.begin() as db:
            ends.append(tuple(db.execute(text("SELECT deleted_at, rerouting_since FROM pools")).one()))
    assert ends[0] == ends[1]


def test_smaller_generation_is_not_taken_when_the_row_moved_on(database: Database) -> None:
    look(database, POOL)

    def go_back(known: int) -> bool:
        return transaction(database.engine, lambda db: pool_mirror.go_back(db, uid=POOL.uid, known=known, generation=2))

    assert not go_back(6)
    assert look(database, replace(POOL, generation=6)) == (7, 3, None)
    assert go_back(7)
    assert look(database, replace(POOL, generation=2)) == (2, 3, None)


def pool_id(database: Database) -> int:
    with database.engine.begin() as db:
        return int(db.execute(text("SELECT id FROM pools")).scalar_one())


def recorded(database: Database) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return author, old and new values of each change, oldest first."""
    return [(row.who, row.old, row.new) for row in run_sql(database.engine, "SELECT * FROM changes ORDER BY id")]


def written(database: Database) -> tuple[Any, ...]:
    """Return the version of a pool's row, its JSON, and the time of its last rerouting."""
    return tuple(run_sql(database.engine, "SELECT xmin, spec, rerouting_since FROM pools")[0])


def test_row_of_an_older_release_gets_its_specification_without_another_change(database: Database) -> None:
    look(database, POOL)
    before = written(database)
    assert before[1] == pool_mirror._values(replace(POOL, start_timeout=300.0))["spec"]
    run_sql(database.engine, "UPDATE pools SET spec = NULL, failed_starts = 4")
    look(database, POOL)
    assert written(database)[1:] == before[1:]
    assert run_sql(database.engine, "SELECT failed_starts FROM pools")[0].failed_starts == 4
    assert len(recorded(database)) == 1


def test_row_with_the_same_specification_is_not_written_again(database: Database) -> None:
    pool = replace(POOL, max_surge=1, scale_down_delay=90.0, registers_in=Scope("acme"))
    look(database, pool)
    before = written(database)
    look(database, replace(pool, status={"replicas": 1}, resource_version="9", has_finalizer=True, pause_request="a"))
    assert written(database) == before


def test_field_without_a_column_is_mirrored(database: Database) -> None:
    look(database, POOL)
    look(database, replace(POOL, generation=8, target_busy_percent=70))
    assert written(database)[1]["target_busy_percent"] == 70


def test_new_generation_is_recorded_with_its_writer_and_both_values(database: Database) -> None:
    first = replace(POOL, writers=("kubectl-create",))
    look(database, first)
    ((who, old, new),) = recorded(database)
    assert (who, old["image"], new["image"], new["labels"]) == ("kubectl-create", None, "image", ["linux"])
    again = replace(first, generation=8, image="other", replicas=5, writers=("ostler", "gitops", "kubectl-create"))
    for _ in range(2):
        look(database, again)
    assert recorded(database)[1:] == [
        ("gitops", {"image": "image", "replicas": 3}, {"image": "other", "replicas": 5}),
    ]


def test_replicas_are_recorded_unless_the_autoscaler_wrote_them(database: Database) -> None:
    look(database, POOL)
    for generation, writer in ((8, "ostler"), (9, "ostler-cli:alice")):
        look(database, replace(POOL, generation=generation, replicas=generation, writers=(writer, "gitops")))
    assert recorded(database)[1:] == [("ostler-cli:alice", {"replicas": 8}, {"replicas": 9})]


def test_other_settings_of_ostler_are_no_change_of_a_pool(database: Database) -> None:
    look(database, POOL)
    later = utcnow() + timedelta(minutes=5)
    pool = replace(POOL, template_hash="other settings")
    transaction(database.engine, lambda db: mirror_pool(db, pool, now=later))
    assert len(recorded(database)) == 1


def test_broken_spec_and_end_of_a_pool_are_recorded(database: Database) -> None:
    look(database, POOL)
    look(database, replace(POOL, generation=8, writers=("kubectl-edit",)), problem="no image")
    look(database, replace(POOL, generation=9, deleted_at=utcnow(), writers=("kubectl-edit",)))
    transaction(database.engine, lambda db: pool_mirror.end_pool(db, pool_id(database), now=utcnow()))
    assert recorded(database)[1:] == [
        ("kubectl-edit", {"problem": None}, {"problem": "no image"}),
        ("unknown", {"problem": "no image", "draining": False}, {"problem": None, "draining": True}),
        ("unknown", {"deleted": False}, {"deleted": True}),
    ]
