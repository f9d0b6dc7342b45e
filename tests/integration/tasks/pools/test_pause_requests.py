"""Requests to pause or resume a pool: carried out once, with the name of the person, by the worker."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH
from k8s_adapters.names import PAUSE_ANNOTATION
from k8s_adapters.pools.pools import answer_pause_request, get_pool, pool_path
from models.db.engine import transaction
from models.pools import pause_requests
from ostler.clock import utcnow
from ostler.errors import Forbidden
from ostler.halt import halt
from rules.changes import Author, Via
from rules.pools.pool_spec import PoolSpec
from tasks.pools import pause_requests as task
from tasks.pools.mirror_pools import pool_changed, pools
from tasks.worker.runtime import runtime
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import spec

ALICE = "alice"


@pytest.fixture
def pool(stage: Stage) -> int:
    """Return the id of a pool that has its finalizer and its row."""
    stage.pool(replicas=0)
    pools.run()
    ((found,),) = stage.rows("SELECT id FROM pools")
    return int(found)


def ask(stage: Stage, pool: int, *, paused: bool, who: str = ALICE) -> bool:
    by = Author(who, Via.DASHBOARD, utcnow())
    found = transaction(stage.rt.engine, lambda db: pause_requests.ask(db, pool, paused=paused, by=by))
    return found is not None and not found.refused


def seen(stage: Stage) -> PoolSpec:
    found = get_pool(stage.kube, namespace=stage.namespace, name="small")
    assert found is not None
    return found


def row(stage: Stage) -> tuple[bool, Any]:
    (found,) = stage.rows("SELECT paused, pause_request FROM pools")
    return found.paused, found.pause_request


def changed(stage: Stage) -> None:
    pool_changed.run(namespace=stage.namespace, pool="small")


def test_request_pauses_the_object_and_its_row_and_names_the_person(stage: Stage, pool: int) -> None:
    ask(stage, pool, paused=True)
    assert row(stage)[0] is False
    changed(stage)
    assert (seen(stage).paused, row(stage)) == (True, (True, None))
    recorded = stage.rows("SELECT who, via, new FROM changes WHERE kind = 'pool' ORDER BY id DESC LIMIT 2")
    assert [tuple(each) for each in recorded] == [
        ("ostler-dashboard:alice", "cluster", {"paused": True}),
        (ALICE, "dashboard", {"asked_paused": True}),
    ]
    ask(stage, pool, paused=False)
    changed(stage)
    assert (seen(stage).paused, row(stage)) == (False, (False, None))


def test_request_is_carried_out_by_the_periodic_task_if_its_message_is_lost(stage: Stage, pool: int) -> None:
    ask(stage, pool, paused=True)
    pools.run()
    assert (seen(stage).paused, row(stage)) == (True, (True, None))


def test_request_whose_worker_was_killed_after_the_patch_is_not_repeated(
    stage: Stage, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(point: str) -> None:
        if point == "pause_pool.after_call":
            raise SystemExit

    ask(stage, pool, paused=True)
    with monkeypatch.context() as patch:
        patch.setattr(task, "halt", killed)
        with pytest.raises(SystemExit):
            changed(stage)
    spec(stage, paused=False)  # somebody resumes the pool with kubectl before the next attempt
    changed(stage)
    assert (seen(stage).paused, row(stage)) == (False, (False, None))


def test_late_worker_does_not_carry_out_a_request_that_was_replaced(
    stage: Stage, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(point: str) -> None:
        if point == "pause_pool.before_call":
            monkeypatch.setattr(task, "halt", halt)
            ask(stage, pool, paused=False)
            changed(stage)

    ask(stage, pool, paused=True)
    monkeypatch.setattr(task, "halt", meanwhile)
    changed(stage)
    assert (seen(stage).paused, row(stage)) == (False, (False, None))


def test_request_that_replaces_another_during_its_patch_stays_open(
    stage: Stage, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(point: str) -> None:
        if point == "pause_pool.after_call":
            monkeypatch.setattr(task, "halt", halt)
            ask(stage, pool, paused=False, who="bob")

    ask(stage, pool, paused=True)
    monkeypatch.setattr(task, "halt", meanwhile)
    changed(stage)
    paused, request = row(stage)
    assert (paused, request["who"]) == (True, "bob")
    changed(stage)
    assert (seen(stage).paused, row(stage)) == (False, (False, None))


def test_refused_patch_leaves_the_request_open_and_the_other_pools_work(
    stage: Stage, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pool("other", replicas=0)
    pools.run()
    ask(stage, pool, paused=True)
    ((other,),) = stage.rows("SELECT id FROM pools WHERE name = 'other'")
    ask(stage, other, paused=True)

    def refuse(client: Any, pool: PoolSpec, **how: Any) -> PoolSpec:
        if pool.name == "small":
            raise Forbidden("an admission policy refuses the change")
        return answer_pause_request(client, pool, **how)

    with monkeypatch.context() as patch:
        patch.setattr(task, "answer_pause_request", refuse)
        pools.run()
    found = {
        each.name: (each.paused, each.waits)
        for each in stage.rows("SELECT name, paused, pause_request IS NOT NULL AS waits FROM pools")
    }
    assert found == {"small": (False, True), "other": (True, False)}
    pools.run()
    assert seen(stage).paused


def test_pool_that_drains_can_be_resumed_but_not_paused(stage: Stage, pool: int) -> None:
    stage.rows("UPDATE pools SET draining = true")
    assert (ask(stage, pool, paused=True), ask(stage, pool, paused=False)) == (False, True)
    stage.rows("UPDATE pools SET pause_request = NULL, deleted_at = now()")
    assert not ask(stage, pool, paused=False)


def test_pool_with_the_name_of_a_deleted_one_gets_no_request_of_it(stage: Stage, pool: int) -> None:
    ask(stage, pool, paused=True)
    stage.rows("UPDATE pools SET uid = 'another'")
    assert task.carry_out(runtime(), namespace=stage.namespace, name="small", uid="another") is None
    assert not seen(stage).paused


def test_request_is_carried_out_although_other_clients_change_the_pool(
    stage: Stage, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = iter(range(1, 100))

    def busy(point: str) -> None:
        if point == "pause_pool.before_call" and next(changes) == 1:
            body = {"metadata": {"annotations": {"example.com/by": "gitops"}}}
            path = pool_path(stage.namespace, "small")
            stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    monkeypatch.setattr(task, "halt", busy)
    ask(stage, pool, paused=True)
    changed(stage)
    assert (seen(stage).paused, next(changes)) == (True, 3)
    raw = stage.kube.request("GET", pool_path(stage.namespace, "small"))
    assert set(raw["metadata"]["annotations"]) >= {"example.com/by", PAUSE_ANNOTATION}
