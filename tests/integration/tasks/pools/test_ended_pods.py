"""A reconcile of ended Pods lists only these Pods, replaces them, and leaves all other Pods unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.pools.pools import delete_pool, patch_pool_replicas
from models.pools.pool_mirror import PoolRef
from tasks.pools.mirror_pools import pools
from tasks.pools.observe import list_ended
from tasks.pools.pod_lists import Listed
from tasks.pools.reconcile import reconcile
from tasks.pools.watch_reports import pods_changed
from tasks.worker.runtime import Runtime
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.pools.fleet import kept, polls, reasons, retired, status

TERMINAL = "status.phase!=Pending,status.phase!=Running"


@pytest.fixture
def selectors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the field selector of every list of Pods."""
    found: list[str] = []
    request = KubeClient.request

    def counted(self: KubeClient, method: str, path: str, **named: Any) -> Any:
        if method == "GET" and path.endswith("/pods"):
            found.append(str(named["query"].get("fieldSelector", "")))
        return request(self, method, path, **named)

    monkeypatch.setattr(KubeClient, "request", counted)
    return found


def warm(stage: Stage, *, replicas: int = 3, **spec: Any) -> list[str]:
    """Create a pool whose Pods poll, and return their names."""
    stage.pool(replicas=replicas, **spec)
    kept(stage)
    polls(stage)
    stage.outbox.sent.clear()
    return sorted(stage.pods())


def reconcile_ended(stage: Stage) -> None:
    """Reconcile the ended Pods of the pool, as the watch and the webhooks request it."""
    (pool,) = stage.rows("SELECT id FROM pools")
    reconcile.run(pool_id=pool.id, ended=True)


def remove(stage: Stage, name: str) -> None:
    """Delete a Pod at once, as another client would."""
    path = object_path("pods", namespace=stage.namespace, name=name)
    stage.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})


def test_an_ended_pod_is_replaced_and_deleted_without_a_list_of_all_pods(stage: Stage, selectors: list[str]) -> None:
    spent, *others = warm(stage)
    stage.finish(spent)
    selectors.clear()

    reconcile_ended(stage)

    assert selectors == [TERMINAL]
    assert spent not in stage.pods()
    assert spent not in stage.service_accounts()
    assert len(stage.pods()) == 3
    assert set(others) < set(stage.pods())
    (row,) = stage.rows("SELECT * FROM runner_pods WHERE name = :name", name=spent)
    assert row.terminal_at is not None
    assert row.gone_at is not None


def test_pods_that_are_not_listed_are_neither_gone_nor_counted_as_missing(stage: Stage, selectors: list[str]) -> None:
    names = warm(stage)
    remove(stage, names[0])
    selectors.clear()

    reconcile_ended(stage)

    assert selectors == [TERMINAL]
    assert len(stage.pods()) == 2, "a list of ended Pods does not show that a Pod is gone"
    assert stage.rows("SELECT 1 FROM runner_pods WHERE gone_at IS NOT NULL") == []
    kept(stage)
    assert len(stage.pods()) == 3


def test_no_pod_is_retired_after_a_list_of_ended_pods(stage: Stage) -> None:
    spent, *_ = warm(stage, replicas=4)
    patch_pool_replicas(stage.kube, namespace=stage.namespace, name="small", replicas=1)
    pools.run()
    stage.outbox.sent.clear()
    stage.finish(spent)

    reconcile_ended(stage)
    assert len(stage.pods()) == 3, "the spent Pod is deleted, and the pool has enough Pods"
    assert reasons(stage) == {}

    kept(stage)
    retired(stage)
    assert len(stage.pods()) == 1


def test_a_busy_pod_stays_while_other_pods_end(stage: Stage, github: StubGitHub) -> None:
    del github
    spent, busy, _ = warm(stage)
    stage.job(7, state="running")
    stage.claim(busy, job_id=7, state="executing", runner=RUNNER)
    stage.execute_job(busy)
    stage.finish(spent)
    reconcile_ended(stage)
    assert busy in stage.pods()
    assert spent not in stage.pods()


def test_an_ended_pod_with_a_claim_is_replaced_and_stays_until_its_webhook(stage: Stage, github: StubGitHub) -> None:
    del github
    spent, *_ = warm(stage)
    stage.job(7, state="running")
    claim = stage.claim(spent, job_id=7, state="executing", runner=RUNNER)
    stage.finish(spent)

    reconcile_ended(stage)
    assert (stage.see(claim).state, spent in stage.pods(), len(stage.pods())) == ("executing", True, 4)

    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :c", c=claim)
    reconcile_ended(stage)
    assert (spent in stage.pods(), len(stage.pods())) == (False, 3)


def test_all_pods_are_listed_when_a_row_says_that_an_unlisted_pod_ended(stage: Stage, selectors: list[str]) -> None:
    over, *_ = warm(stage)
    stage.finish(over, phase="Running")
    stage.rows("UPDATE runner_pods SET terminal_at = now() - interval '31 s' WHERE name = :name", name=over)
    selectors.clear()

    reconcile_ended(stage)

    assert selectors == [TERMINAL, ""]
    assert list(reasons(stage)) == [over], "a Pod that is over and not terminal is retired under a claim (L7)"


@pytest.mark.parametrize("drains", [False, True])
def test_all_pods_of_a_pool_that_drains_are_listed(stage: Stage, selectors: list[str], *, drains: bool) -> None:
    warm(stage)
    if drains:
        delete_pool(stage.kube, namespace=stage.namespace, name="small")
        pools.run()
        stage.outbox.sent.clear()
    selectors.clear()
    reconcile_ended(stage)
    assert selectors == ([""] if drains else [TERMINAL])


def _mirror_after(rt: Runtime, pool: PoolRef) -> Listed | None:
    found = list_ended(rt, pool)
    pools.run()
    return found


def test_the_finalizer_stays_after_a_list_of_ended_pods(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(stage)
    stage.rows("DELETE FROM runner_pods")  # a list of all Pods would give them rows again
    delete_pool(stage.kube, namespace=stage.namespace, name="small")
    # The deletion is mirrored after this reconcile has read that the pool does not drain.
    monkeypatch.setattr("tasks.pools.reconcile.list_ended", _mirror_after)
    reconcile_ended(stage)
    assert status(stage), "the object of the pool stays while it has Pods"
    assert len(stage.pods()) == 3


def test_the_status_and_the_age_of_the_list_stay_after_a_list_of_ended_pods(stage: Stage) -> None:
    spent, *_ = warm(stage)
    kept(stage)
    before, (listed,) = status(stage), stage.rows("SELECT listed_at FROM pools")
    stage.finish(spent)
    reconcile_ended(stage)
    assert status(stage) == before
    assert stage.rows("SELECT listed_at FROM pools") == [listed]


@pytest.mark.parametrize(
    ("hint", "sent"),
    [
        ({"pools": ["small"], "ended": ["small"]}, {"ended": True}),
        ({"pools": ["small"]}, {}),
    ],
)
def test_the_watch_requests_a_list_of_ended_pods_if_it_shows_all(
    stage: Stage, hint: dict[str, Any], sent: dict[str, Any]
) -> None:
    warm(stage)
    (pool,) = stage.rows("SELECT id FROM pools")
    pods_changed.run(namespace=stage.namespace, **hint)
    assert stage.outbox.take("ostler.reconcile") == [{"pool_id": pool.id, **sent}]


def test_an_old_worker_ignores_that_only_ended_pods_need_a_list(stage: Stage, selectors: list[str]) -> None:
    spent, *_ = warm(stage)
    stage.finish(spent)
    (pool,) = stage.rows("SELECT id FROM pools")
    selectors.clear()
    reconcile.run(pool_id=pool.id, of_a_later_release=True)
    assert selectors == [""]
    assert spent not in stage.pods()
