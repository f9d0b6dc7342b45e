"""The reconciler on a real API server: the number of Pods, the retired Pods, and their claims."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.pools.pools import delete_pool, patch_pool_replicas
from k8s_adapters.runners.runners import create_runner
from lab.redis import Redis
from ostler.errors import Retryable
from ostler.secrets import Secret
from ostler.wakes import Waker
from tasks.claims.retire import retire
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tests.integration.tasks.conftest import Stage


def reconcile_all(stage: Stage) -> None:
    """Run the reconciler and every message that it sends to itself."""
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)


def test_a_pool_gets_its_pods_and_each_has_a_row_with_its_uid(stage: Stage) -> None:
    stage.pool(replicas=3)
    reconcile_all(stage)
    pods = stage.pods()
    rows = stage.rows("SELECT name, uid, stamp_value FROM runner_pods")
    assert len(pods) == 3
    assert {row.name: row.uid for row in rows} == {pod.name: pod.uid for pod in pods.values()}
    assert {row.stamp_value for row in rows} == {"0.0"}


def test_reconciling_again_changes_nothing(stage: Stage) -> None:
    stage.pool(replicas=2)
    reconcile_all(stage)
    before = set(stage.pods())
    reconcile_all(stage)
    reconcile_all(stage)
    assert set(stage.pods()) == before


def test_a_row_whose_creation_was_not_answered_gets_its_pod_and_no_second_one(stage: Stage) -> None:
    stage.pool(replicas=1)
    reconcile_all(stage)
    stage.rows("UPDATE runner_pods SET uid = NULL")
    reconcile_all(stage)
    assert len(stage.pods()) == 1
    assert [row.uid for row in stage.rows("SELECT uid FROM runner_pods")] == [p.uid for p in stage.pods().values()]


def test_a_spent_pod_is_recorded_replaced_and_deleted(stage: Stage) -> None:
    stage.pool(replicas=2)
    reconcile_all(stage)
    spent = min(stage.pods())
    stage.finish(spent, runner=137, phase="Failed")
    reconcile_all(stage)
    reconcile_all(stage)
    assert spent not in stage.pods()
    assert len(stage.pods()) == 2
    row = stage.rows("SELECT * FROM runner_pods WHERE name = :name", name=spent)[0]
    assert (row.poller_exit_code, row.runner_exit_code) == (0, 137)
    assert row.gone_at is not None
    assert spent not in stage.service_accounts()


def test_too_many_pods_are_retired_under_claims_and_nothing_else_deletes_them(stage: Stage) -> None:
    stage.pool(replicas=4)
    reconcile_all(stage)
    patch_pool_replicas(stage.kube, namespace=stage.namespace, name="small", replicas=1)
    reconcile_all(stage)
    claims = stage.rows("SELECT id, purpose, state FROM claims")
    assert [(claim.purpose, claim.state) for claim in claims] == [("retire", "claimed")] * 3
    assert len(stage.pods()) == 4
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)
    assert len(stage.pods()) == 1
    ended = stage.rows("SELECT end_reason FROM claims WHERE ended_at IS NOT NULL")
    assert [claim.end_reason for claim in ended] == ["retired"] * 3


def test_a_pod_with_a_live_job_claim_or_a_delivered_one_is_never_too_many(stage: Stage) -> None:
    stage.pool(replicas=2)
    reconcile_all(stage)
    first, second = stage.rows("SELECT id, uid, pool_id FROM runner_pods ORDER BY id")
    insert = """
        INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, vcpu, memory, state, created_at, changed_at,
                            delivered_at, ended_at, end_reason)
        VALUES ('job', :pod, :uid, :pool, 1, 1, :state, now(), now(), now(), :ended, :reason)
    """
    stage.rows(insert, pod=first.id, uid=first.uid, pool=first.pool_id, state="executing", ended=None, reason=None)
    stage.rows(
        insert,
        pod=second.id,
        uid=second.uid,
        pool=second.pool_id,
        state="ended",
        ended="2026-01-01",
        reason="completed",
    )
    patch_pool_replicas(stage.kube, namespace=stage.namespace, name="small", replicas=0)
    reconcile_all(stage)
    assert stage.rows("SELECT id FROM claims WHERE purpose = 'retire'") == []
    assert len(stage.pods()) == 2


def test_a_pod_that_somebody_deleted_is_proven_gone_and_replaced(stage: Stage) -> None:
    stage.pool(replicas=1)
    reconcile_all(stage)
    (name,) = stage.pods()
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{name}")
    reconcile_all(stage)
    reconcile_all(stage)
    assert len(stage.pods()) == 1
    assert stage.rows("SELECT gone_at FROM runner_pods WHERE name = :name", name=name)[0].gone_at is not None
    assert name not in stage.service_accounts()


def test_a_deleted_pool_takes_no_jobs_and_its_queued_ones_are_matched_again(stage: Stage) -> None:
    stage.pool(replicas=0)
    reconcile_all(stage)
    (pool,) = stage.rows("SELECT id FROM pools")
    stage.rows("INSERT INTO accounts VALUES (1, 'acme', 1, 10, 10000, 10000, '[]', now())")
    stage.rows(
        """
        INSERT INTO jobs (id, account_id, repository, scope, run_id, run_attempt, name, labels, state, pool_id,
                          queued_at, changed_at)
        VALUES (7, 1, 'acme/shop', 'orgs/acme', 1, 1, 'build', '{self-hosted,small}', 'queued', :pool, now(), now())
        """,
        pool=pool.id,
    )
    delete_pool(stage.kube, namespace=stage.namespace, name="small")
    stage.outbox.sent.clear()
    reconcile_all(stage)
    (job,) = stage.rows("SELECT state, pool_id, hold_reason FROM jobs")
    assert (job.state, job.pool_id, job.hold_reason) == ("queued", None, "no_pool")
    assert stage.outbox.take("ostler.rematch") == [{}, {}]  # the pool has gone, and its jobs were moved


def test_a_list_that_shows_no_pools_ends_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=1)
    reconcile_all(stage)
    monkeypatch.setattr("tasks.pools.mirror_pools.list_pools", lambda *_, **__: [])
    reconcile_all(stage)
    assert stage.rows("SELECT id FROM pools WHERE deleted_at IS NOT NULL") == []
    assert stage.rows("SELECT id FROM claims") == []


def test_a_row_given_up_while_its_pod_was_created_is_taken_up_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pool(replicas=1)
    create = create_runner

    def slow(*args: Any, **kwargs: Any) -> Any:
        created = create(*args, **kwargs)
        stage.rows("UPDATE runner_pods SET gone_at = now()")  # another reconciler, after a scale-down
        return created

    monkeypatch.setattr("tasks.pools.create_pods.create_runner", slow)
    reconcile_all(stage)
    (row,) = stage.rows("SELECT uid, gone_at FROM runner_pods")
    assert (row.uid, row.gone_at) == (next(iter(stage.pods().values())).uid, None)


def test_a_row_given_up_before_its_turn_gets_no_pod(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=2)
    create = create_runner

    def once(*args: Any, **kwargs: Any) -> Any:
        stage.rows("UPDATE runner_pods SET gone_at = now() WHERE id = (SELECT max(id) FROM runner_pods)")
        return create(*args, **kwargs)

    monkeypatch.setattr("tasks.pools.create_pods.create_runner", once)
    reconcile_all(stage)
    assert len(stage.pods()) == 1


def test_a_pool_that_cannot_be_read_stops_no_other_and_is_not_taken_for_deleted(stage: Stage) -> None:
    stage.pool("small", replicas=1)
    reconcile_all(stage)
    stage.pool("large", replicas=1)
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/small"
    body = {"spec": {"podTemplate": {"spec": {"hostNetwork": True}}}}
    stage.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    reconcile_all(stage)
    assert len(stage.pods()) == 2
    assert stage.rows("SELECT id FROM pools WHERE deleted_at IS NOT NULL") == []


@pytest.mark.parametrize(
    ("ended", "finished", "looks"),
    [("1 s", False, True), ("1 min", False, False), ("1 s", True, False)],
    ids=["about to end", "taking long", "already over"],
)
def test_pod_about_to_end_is_checked_again_so_that_its_successor_need_not_wait(
    stage: Stage, *, ended: str, finished: bool, looks: bool
) -> None:
    stage.pool(replicas=1)
    reconcile_all(stage)
    (name,) = stage.pods()
    stage.job(7, state="completed")
    claim = stage.claim(name, job_id=7, state="executing")
    stage.rows(
        """
        UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now() - CAST(:ago AS interval)
        WHERE id = :id
        """,
        id=claim,
        ago=ended,
    )
    if finished:
        stage.finish(name)

    reconcile_all(stage)

    again = [message for message in stage.outbox.take("ostler.reconcile") if message.get("after")]
    assert bool(again) == looks


def test_what_another_reconciler_does_is_left_to_it(stage: Stage) -> None:
    stage.pool(replicas=2)
    reconcile_all(stage)
    spent = min(stage.pods())
    stage.finish(spent)
    stage.outbox.done_by_others = {"create", "delete"}
    reconcile_all(stage)
    assert len(stage.pods()) == 2
    assert spent in stage.pods()
    # The other one was killed: its word holds for seconds only.
    stage.outbox.done_by_others = set()
    reconcile_all(stage)
    assert len(stage.pods()) == 2
    assert spent not in stage.pods()


def test_failed_creation_is_left_to_the_next_reconcile(
    stage: Stage, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    waker = Waker(Secret(redis_server.url))
    monkeypatch.setattr(stage.outbox, "single_flight", waker.single_flight)
    stage.pool(replicas=2)
    with monkeypatch.context() as broken:
        broken.setattr("tasks.pools.create_pods.create_runner", refuse)
        reconcile_all(stage)
    assert len(stage.pods()) == 0
    reconcile_all(stage)
    assert len(stage.pods()) == 2
    waker.close()


def refuse(*_: Any, **__: Any) -> None:
    """Act as an API server that does not answer."""
    raise Retryable("no answer")
