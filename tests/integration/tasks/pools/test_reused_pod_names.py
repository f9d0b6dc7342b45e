"""A delayed creation makes a second Pod for a row whose first Pod has run and is gone: it is a Pod like any other."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pools import delete_pool, get_pool
from k8s_adapters.runners.runners import create_runner, delete_runner
from models.db.engine import transaction
from models.pools.pod_rows import record_pods
from models.state.pod_births import adopt_pod
from ostler.clock import utcnow
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import kept, polls, retired, rounds
from tests.rows import insert_pool, pod_view


def late(stage: Stage) -> tuple[str, str]:
    """Let the only Pod of a pool run and go, and let a late creation make it again. Return its name and UID."""
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    (row,) = stage.rows("SELECT name, uid, attempt_id FROM runner_pods")
    delete_runner(stage.kube, namespace=stage.namespace, name=row.name, uid=row.uid)
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE uid = :uid", uid=row.uid)
    pool = get_pool(stage.kube, namespace=stage.namespace, name="small")
    assert pool is not None
    made = create_runner(
        stage.kube, pool=pool, name=row.name, attempt=row.attempt_id, dispatch_url="http://web/", audience="ostler"
    )
    assert made.uid != row.uid
    return row.name, made.uid


def rows_of(stage: Stage, name: str) -> list[Any]:
    return stage.rows("SELECT * FROM runner_pods WHERE name = :name ORDER BY id", name=name)


def adopts(stage: Stage, name: str, uid: str) -> bool | None:
    pod = pod_view(name, uid=uid, namespace=stage.namespace)
    return transaction(stage.rt.engine, lambda db: adopt_pod(db, pod, now=utcnow()))


def test_the_reconciler_gives_it_a_row_of_its_own_and_counts_it(stage: Stage) -> None:
    name, uid = late(stage)
    kept(stage)
    first, second = rows_of(stage, name)
    assert first.gone_at is not None
    assert (second.uid, second.gone_at) == (uid, None)
    assert [pod.uid for pod in stage.pods().values()] == [uid], "it is the one Pod that the pool wants"
    kept(stage)
    assert len(rows_of(stage, name)) == 2


def test_its_end_is_seen(stage: Stage) -> None:
    name, uid = late(stage)
    kept(stage)
    polls(stage)
    stage.kube.request(
        "PATCH",
        f"/api/v1/namespaces/{stage.namespace}/pods/{name}/status",
        body={"status": {"phase": "Succeeded"}},
        content_type="application/merge-patch+json",
    )
    kept(stage)
    (row,) = stage.rows("SELECT terminal_at FROM runner_pods WHERE uid = :uid", uid=uid)
    assert row.terminal_at is not None


def test_its_pool_drains(stage: Stage) -> None:
    late(stage)
    delete_pool(stage.kube, namespace=stage.namespace, name="small")
    rounds(stage, 3)
    retired(stage)
    kept(stage)
    assert get_pool(stage.kube, namespace=stage.namespace, name="small") is None
    assert not stage.pods()


def test_its_poll_gives_it_a_row_too(stage: Stage) -> None:
    name, uid = late(stage)
    assert adopts(stage, name, uid) is True
    assert adopts(stage, name, uid) is True
    assert adopts(stage, name, "another") is False, "the name is that of a Pod that lives"
    assert [row.uid for row in rows_of(stage, name)][1:] == [uid]


def test_it_belongs_to_the_pool_that_it_was_made_for_although_another_has_the_name(stage: Stage) -> None:
    name, uid = late(stage)
    (old,) = stage.rows("SELECT id FROM pools")
    stage.rows("UPDATE pools SET deleted_at = now(), draining = true")
    stage.rows("""
        INSERT INTO pools OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(p, jsonb_build_object(
            'id', p.id + 1000, 'uid', 'another', 'deleted_at', NULL, 'draining', false))).* FROM pools p
    """)
    assert adopts(stage, name, uid) is True
    assert {row.pool_id for row in rows_of(stage, name)} == {old.id}


@pytest.mark.parametrize("gone", [False, True], ids=["waits", "given up"])
def test_a_row_that_waits_for_its_pod_gets_it_and_no_other_row_is_made(stage: Stage, gone: bool) -> None:
    stage.pool(replicas=1)
    kept(stage)
    (row,) = stage.rows("SELECT name, uid FROM runner_pods")
    stage.rows("UPDATE runner_pods SET uid = NULL, gone_at = CASE WHEN :gone THEN now() END", gone=gone)
    assert adopts(stage, row.name, row.uid) is False
    kept(stage)
    (after,) = rows_of(stage, row.name)
    assert (after.uid, after.gone_at) == (row.uid, None)


def test_uid_of_a_pod_is_written_to_the_row_of_its_own_pool(clusterless: Stage) -> None:
    """Two pools in two namespaces have a row of the same name whose Pod was not seen yet."""
    stage = clusterless
    second_pool(stage)
    stage.rows(
        "INSERT INTO runner_pods (pool_id, namespace, name, attempt_id, template_hash, created_at) "
        "SELECT id, namespace, 'pod-1', 'a', 'h', now() FROM pools"
    )
    small, _ = pool_ids(stage)
    seen = pod_view("pod-1", uid="u")
    transaction(stage.rt.engine, lambda db: record_pods(db, pool_id=small, pods=[seen], now=utcnow()))
    assert [row.uid for row in stage.rows("SELECT uid FROM runner_pods ORDER BY pool_id")] == ["u", None]


def second_pool(stage: Stage) -> None:
    insert_pool(stage.rt.engine, uid="q", namespace="other", labels=["self-hosted"])


def pool_ids(stage: Stage) -> list[int]:
    return [row.id for row in stage.rows("SELECT id FROM pools ORDER BY id")]
