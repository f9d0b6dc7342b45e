"""Jobs of a pool whose routing changed: marked first, taken out in pages, and matched nowhere in the meantime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from sqlalchemy import Connection, text

from models.browse.jobs import job_story
from models.db.engine import transaction
from models.pools import draining, pool_mirror, scaling
from models.pools.unrouting import unrouting
from models.sweeps import rematch
from ostler.timings import Timings
from rules.pools.demand import Places
from rules.pools.pool_spec import PoolSpec
from rules.waiting.jobs import explain
from rules.waiting.steps import WaitsFor
from tasks.routing import rerouting
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import Transactions
from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW
from tests.outbox import Outbox
from tests.rows import mirror_pool, pool_spec

POOL = pool_spec(autoscaled=True)
CHANGES = {
    "other labels": replace(POOL, labels=("windows",)),
    "other accounts": replace(POOL, allowed_accounts=(999,)),
    "drains": replace(POOL, deleted_at=NOW),
    "gone": None,
    "drains, unusable": None,
}
JOBS = 7


@dataclass
class Scene(Transactions):
    """A pool with a warm Pod and queued jobs. `change` changes the pool, and `go_on` reconciles its jobs."""

    stage: Stage
    pool_id: int
    jobs: list[int]
    waker: Outbox = field(default_factory=Outbox)

    def change(self, how: str) -> None:
        body: Any
        if how == "gone":
            body = partial(pool_mirror.end_pool, pool_id=self.pool_id, now=NOW)
        elif how == "drains, unusable":
            body = partial(draining.record_draining, uid="pool-1", since=NOW, now=NOW)
        else:
            body = partial(mirror_pool, pool=cast("PoolSpec", CHANGES[how]), now=NOW)
        transaction(self.stage.engine, body)

    def go_on(self) -> None:
        rerouting.move_jobs_away(cast("Runtime", self), self.pool_id)

    def __post_init__(self) -> None:
        self.engine = self.stage.engine

    def in_pool(self) -> list[int]:
        rows = self.stage.rows("SELECT id FROM jobs WHERE pool_id = :pool ORDER BY id", pool=self.pool_id)
        return [row.id for row in rows]

    def is_marked(self) -> bool:
        return transaction(self.stage.engine, lambda db: unrouting(db, self.pool_id)) is not None

    def matched(self) -> list[int]:
        self.stage.match(self.pool_id, now=NOW)
        return self.stage.claimed()

    @contextmanager
    def locked(self, job_id: int) -> Iterator[Connection]:
        with self.stage.engine.connect() as holder:
            holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR NO KEY UPDATE"), {"id": job_id})
            yield holder


@pytest.fixture
def scene(database: Database, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(rerouting, "PAGE", 2)
    stage = make_stage(database)
    transaction(stage.engine, partial(mirror_pool, pool=POOL, now=NOW - timedelta(hours=1)))
    (row,) = stage.rows("SELECT id FROM pools")
    stage.account(1)
    stage.pod(row.id)
    return Scene(stage, row.id, [stage.job(1, row.id) for _ in range(JOBS)])


@pytest.mark.parametrize("how", CHANGES)
def test_jobs_of_a_changed_pool_wait_unmatched_until_they_were_moved(scene: Scene, how: str) -> None:
    scene.change(how)
    assert scene.in_pool() == scene.jobs  # the process may die here
    assert scene.matched() == []

    scene.go_on()
    assert scene.in_pool() == []
    assert not scene.is_marked()
    assert scene.waker.sent == [("ostler.rematch", {}), ("wake", {"pool_id": scene.pool_id})]
    assert {row.hold_reason for row in scene.stage.rows("SELECT hold_reason FROM jobs")} == {"no_pool"}


def test_rerouting_moves_one_page_a_transaction_and_resumes_after_a_kill(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.change("other labels")
    seen: list[int] = []

    def die_before_the_third(_: str) -> None:
        seen.append(len(scene.in_pool()))
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(rerouting, "halt", die_before_the_third)
    with pytest.raises(KeyboardInterrupt):
        scene.go_on()
    assert seen == [7, 5, 3]
    assert scene.matched() == []

    monkeypatch.setattr(rerouting, "halt", lambda _: None)
    scene.go_on()
    assert scene.in_pool() == []
    assert not scene.is_marked()


def test_a_locked_job_delays_no_other_and_is_moved_once_it_is_free(scene: Scene) -> None:
    locked = scene.jobs[2]
    scene.change("other labels")
    with scene.locked(locked):
        scene.go_on()
        assert scene.in_pool() == [locked]
        assert scene.matched() == []
    assert [name for name, _ in scene.waker.sent] == ["ostler.rematch", "wake", "ostler.reconcile"]
    assert scene.matched() == []

    scene.go_on()
    assert scene.in_pool() == []
    assert not scene.is_marked()


def test_new_jobs_of_a_changed_pool_are_matched_while_an_old_one_stays_locked(scene: Scene) -> None:
    locked = scene.jobs[2]
    scene.change("other labels")
    with scene.locked(locked):
        scene.go_on()
        new = scene.stage.job(1, scene.pool_id)
        assert scene.matched() == [new]
        scene.go_on()
        assert scene.in_pool() == [locked, new]
    scene.stage.pod(scene.pool_id)
    assert scene.matched() == [new]  # free again, and still routed by what the pool was

    scene.go_on()
    assert scene.in_pool() == [new]
    assert not scene.is_marked()


def test_a_locked_job_is_moved_with_all_others_when_the_pool_changes_again(scene: Scene) -> None:
    with scene.locked(scene.jobs[2]):
        scene.change("other labels")
        scene.go_on()
        new = scene.stage.job(1, scene.pool_id)
        scene.change("other accounts")
        assert scene.matched() == []
    scene.go_on()
    assert new not in scene.in_pool()
    assert scene.in_pool() == []
    assert not scene.is_marked()


def test_no_job_of_a_changed_pool_is_matched_while_too_many_are_locked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerouting, "MOST_LOCKED", 0)
    scene.change("other labels")
    with scene.locked(scene.jobs[2]):
        scene.go_on()
        scene.stage.job(1, scene.pool_id)
        assert scene.matched() == []


def test_a_pool_that_changes_again_while_its_jobs_are_moved_stays_marked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.change("other labels")

    def change_again(_: str) -> None:
        monkeypatch.setattr(rerouting, "halt", lambda _: None)
        later = NOW + timedelta(seconds=1)
        again = replace(POOL, labels=("macos",))
        transaction(scene.stage.engine, partial(mirror_pool, pool=again, now=later))

    monkeypatch.setattr(rerouting, "halt", change_again)
    scene.go_on()
    assert scene.is_marked()
    scene.go_on()
    assert not scene.is_marked()


def test_jobs_on_their_way_out_of_a_pool_are_no_demand_and_their_explanation_says_so(scene: Scene) -> None:
    places = {scene.pool_id: Places(count=5, vcpu_millicores=2000, memory_mib=4096)}

    def queues() -> int:
        return sum(queue.jobs for queue in transaction(scene.stage.engine, lambda db: scaling.queues(db, places)))

    def story() -> tuple[WaitsFor, str]:
        found = transaction(scene.stage.engine, lambda db: job_story(db, scene.jobs[-1], timings=Timings(), now=NOW))
        assert found is not None
        told = explain(found.facts)
        return told.waits_for, told.summary

    assert queues() == 5
    assert story()[0] is WaitsFor.MATCH
    scene.change("other labels")
    assert queues() == 0
    waits_for, summary = story()
    assert waits_for is WaitsFor.POOL
    assert "Pool small of the job has changed" in summary


def test_jobs_that_a_changed_pool_still_serves_are_matched_in_it_again(scene: Scene) -> None:
    with scene.stage.engine.begin() as db:
        db.execute(text("UPDATE jobs SET labels = '{linux}'"))
    change = replace(POOL, labels=("linux", "big"))
    transaction(scene.stage.engine, partial(mirror_pool, pool=change, now=NOW))
    scene.go_on()
    page = transaction(
        scene.stage.engine, lambda db: rematch.rematch_page(db, rematch.accounts_to_rematch(db), limit=100, now=NOW)
    )
    assert page.pools == {scene.pool_id}
    assert len(scene.matched()) == 1  # there is one Pod
