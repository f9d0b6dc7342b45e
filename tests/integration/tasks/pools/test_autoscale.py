"""The autoscaler with a real Postgres and a real API server: its counts, its writes, and the pools that it leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH
from k8s_adapters.names import DRAIN_FINALIZER
from k8s_adapters.pools.pools import create_pool, delete_pool, get_pool, list_pools, scale_pool
from models.db.engine import transaction
from models.pools.scaling import count_usual
from ostler.clock import utcnow
from ostler.errors import Forbidden, Retryable
from rules.pools.pool_spec import PoolSpec
from tasks.pools import autoscale as module
from tasks.pools.autoscale import autoscale
from tasks.pools.mirror_pools import pools
from tasks.worker import nodes
from tests.integration.tasks.conftest import Stage
from tests.nodes import LiveNode
from tests.rows import insert_pool

PLENTY = 10**6


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run list the nodes again."""
    monkeypatch.setattr(nodes, "EVERY", -1.0)


def pool(stage: Stage, name: str = "small", *, replicas: int = 0, paused: bool = False, **scaling: Any) -> PoolSpec:
    """Create a pool on nodes of this test only, and mirror it."""
    autoscaling = {"enabled": True, "minWarm": 1, "maxReplicas": 10, **scaling}
    spec = {
        "image": "runner:1",
        "runnerLabels": ["self-hosted", name],
        "replicas": replicas,
        "paused": paused,
        "autoscaling": autoscaling,
        "podTemplate": {"spec": {"nodeSelector": {"fleet": stage.namespace}}},
    }
    made = create_pool(stage.kube, namespace=stage.namespace, name=name, spec=spec)
    mirrored(stage)
    return made


def mirrored(stage: Stage) -> None:
    pools.run()
    stage.outbox.sent.clear()


def queue(
    stage: Stage, jobs: int, *, name: str = "small", account: int = 1, budget: int = PLENTY, hold: str | None = None
) -> None:
    """Queue `jobs` jobs of an account with this budget."""
    stage.rows(
        "INSERT INTO accounts VALUES (:id, :login, 1, :count, :plenty, :plenty, '[]', now()) ON CONFLICT DO NOTHING",
        id=account,
        login=f"account-{account}",
        count=budget,
        plenty=PLENTY,
    )
    stage.rows(
        """
        INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels,
                          state, hold_reason, pool_id, queued_at, changed_at)
        SELECT (SELECT coalesce(max(id), 0) FROM jobs) + n, :account, 501, 'acme/shop', 'orgs/acme', 1, 1, 'build',
               '{self-hosted}', 'queued', :hold, p.id, now(), now()
        FROM generate_series(1, :jobs) n, pools p WHERE p.name = :name
        """,
        account=account,
        jobs=jobs,
        hold=hold,
        name=name,
    )


def pods(
    stage: Stage,
    count: int,
    *,
    name: str = "small",
    claim: str | None = None,
    delivered: bool = False,
    ended: bool = False,
    began: str = "1 minute",
    over: str = "0 seconds",
) -> None:
    """Insert rows of live Pods, each with a claim of the given purpose if there is one."""
    stage.rows("INSERT INTO accounts VALUES (9, 'nine', 1, 999, 9999999, 9999999, '[]', now()) ON CONFLICT DO NOTHING")
    stage.rows(
        """
        WITH made AS (
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            SELECT p.id, p.namespace, gen_random_uuid(), gen_random_uuid(), 'a', 'h', now()
            FROM pools p, generate_series(1, :count) WHERE p.name = :name RETURNING id, pool_id, uid)
        INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, account_id, vcpu, memory, state, stamp,
                            created_at, changed_at, delivered_at, ended_at, end_reason)
        SELECT :purpose, id, uid, pool_id, CASE WHEN :purpose = 'job' THEN 9 END, 2000, 4096,
               CASE WHEN :ended THEN 'ended' WHEN :delivered THEN 'delivered' ELSE 'claimed' END, 'gave_up',
               now() - CAST(:began AS interval), now(), CASE WHEN :delivered THEN now() END,
               CASE WHEN :ended THEN now() - CAST(:over AS interval) END, CASE WHEN :ended THEN 'completed' END
        FROM made WHERE CAST(:purpose AS text) IS NOT NULL
        """,
        count=count,
        name=name,
        purpose=claim,
        delivered=delivered,
        ended=ended,
        began=began,
        over=over,
    )


def replicas(stage: Stage, name: str = "small") -> int:
    found = get_pool(stage.kube, namespace=stage.namespace, name=name)
    assert found is not None
    return found.replicas


def decision(stage: Stage, name: str = "small") -> dict[str, Any]:
    (row,) = stage.rows("SELECT scaling FROM pools WHERE name = :name", name=name)
    return dict(row.scaling or {})


def an_hour_later(stage: Stage) -> None:
    """Move all earlier events so far into the past that no delay applies any more."""
    stage.rows("""
        UPDATE pools SET scaled_up_at = scaled_up_at - interval '1 h', created_at = created_at - interval '1 h',
               typical_at = NULL
    """)


def test_queued_jobs_get_pods_at_once_and_the_reconciler_is_told(stage: Stage) -> None:
    pool(stage)
    queue(stage, 4)
    autoscale.run()
    assert replicas(stage) == 5
    (row,) = stage.rows("SELECT id, replicas, scaled_up_at, scaled_down_at FROM pools")
    assert (row.replicas, row.scaled_down_at) == (5, None)
    assert row.scaled_up_at is not None
    assert stage.outbox.take("ostler.reconcile") == [{"pool_id": row.id}]
    assert decision(stage)["why"] == "0 with jobs + 4 queued + 1 warm = 5"
    why = "Scaled from 0 to 5 replicas: 0 with jobs + 4 queued + 1 warm = 5"
    assert stage.rt.events.told == [("small", "Normal", "ScaledUp", why)]


def test_what_holds_a_job_counts_and_what_is_being_retired_does_not(stage: Stage) -> None:
    pool(stage)
    pods(stage, 2, claim="job")
    pods(stage, 1, claim="job", delivered=True)
    pods(stage, 1, claim="job", delivered=True, ended=True)  # ending
    pods(stage, 3)  # warm
    pods(stage, 1, claim="job", ended=True)  # a claim that was released: warm
    pods(stage, 2, claim="retire")
    pods(stage, 3, claim="job", delivered=True, ended=True)  # its job is over, and it is being retired
    stage.rows("""
        INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, vcpu, memory, state, created_at, changed_at)
        SELECT 'retire', id, uid, pool_id, 2000, 4096, 'claimed', now(), now()
        FROM runner_pods ORDER BY id DESC LIMIT 3
    """)
    autoscale.run()
    assert replicas(stage) == 5
    assert decision(stage)["load"] == 4


def test_an_account_at_its_budget_inflates_no_pool(stage: Stage) -> None:
    pool(stage)
    queue(stage, 8, budget=3)
    queue(stage, 2, account=2)
    autoscale.run()
    assert replicas(stage) == 3 + 2 + 1


@pytest.mark.parametrize(("accounts", "expected"), [(3, 1 + 1), (1, 1 + 2 + 1)], ids=["pool", "one account"])
def test_a_braked_queue_inflates_a_pool_by_its_probe_alone(stage: Stage, accounts: int, expected: int) -> None:
    pool(stage)
    queue(stage, 8)
    queue(stage, 2, account=2)
    stage.rows(
        """
        INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at, at,
                                     exit_code, why)
        SELECT n, id, template_hash, 1 + n % :accounts, n, 'pod-' || n, now(), now(), 1, 'it ended'
        FROM pools, generate_series(1, 3) n
        """,
        accounts=accounts,
    )
    autoscale.run()
    assert replicas(stage) == expected


@pytest.mark.parametrize("hold", ["backoff", "set_aside", "ask_github", "budget_zero"])
def test_a_held_job_inflates_no_pool(stage: Stage, hold: str) -> None:
    pool(stage)
    queue(stage, 8, hold=hold)
    autoscale.run()
    assert replicas(stage) == 1


def test_no_pool_grows_beyond_its_maximum(stage: Stage) -> None:
    pool(stage)
    queue(stage, 500)
    autoscale.run()
    assert replicas(stage) == 10


def test_a_pool_shrinks_when_the_delay_since_it_grew_is_over(stage: Stage) -> None:
    pool(stage)
    queue(stage, 4)
    autoscale.run()
    stage.rows("DELETE FROM jobs")
    autoscale.run()
    assert (replicas(stage), decision(stage)["verdict"]) == (5, "cooling")
    an_hour_later(stage)
    autoscale.run()
    assert (replicas(stage), decision(stage)["verdict"]) == (1, "down")
    (row,) = stage.rows("SELECT scaled_down_at, replicas FROM pools")
    assert row.scaled_down_at is not None
    assert row.replicas == 1


def test_nothing_is_written_when_nothing_is_news(stage: Stage) -> None:
    pool(stage)
    autoscale.run()
    before = stage.rows("SELECT xmin, typical_at FROM pools")
    (seen,) = list_pools(stage.kube, namespace=stage.namespace)
    autoscale.run()
    autoscale.run()
    (after,) = list_pools(stage.kube, namespace=stage.namespace)
    assert after.resource_version == seen.resource_version
    second = stage.rows("SELECT xmin FROM pools")
    autoscale.run()
    assert stage.rows("SELECT xmin FROM pools") == second
    assert before


def test_jobs_that_wait_for_long_beside_an_idle_pod_bring_no_more(stage: Stage) -> None:
    pool(stage, replicas=1)
    pods(stage, 1)
    stage.rows("INSERT INTO web_instances (id, started_at, beat_at) SELECT 'w', now(), now() + interval '1 hour'")
    stage.rows("""
        INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)
        SELECT uid, pool_id, 'w', 'p', now() + interval '1 hour' FROM runner_pods
    """)
    queue(stage, 4)
    queue(stage, 1, account=2, budget=0)
    stage.rows("UPDATE jobs SET queued_at = now() - interval '61 s' WHERE account_id = 2")
    autoscale.run()
    assert replicas(stage) == 5, "what an account waits for that is at its budget says nothing of the others"
    stage.rows("UPDATE jobs SET queued_at = now() - interval '61 s'")
    queue(stage, 2)
    autoscale.run()
    assert (replicas(stage), decision(stage)["verdict"]) == (5, "left")
    assert "although Pods are idle" in decision(stage)["why"]
    stage.rows("DELETE FROM offers")
    autoscale.run()
    assert replicas(stage) == 7


def test_what_was_usual_in_the_last_hour_stays_warm(stage: Stage) -> None:
    pool(stage)
    # For four minutes of the hour seven Pods had jobs; one minute with ten is too little to count.
    pods(stage, 7, claim="job", ended=True, began="30 minutes", over="26 minutes")
    pods(stage, 3, claim="job", ended=True, began="30 minutes", over="29 minutes 30 seconds")
    pods(stage, 9, claim="job", ended=True, began="90 minutes", over="61 minutes")
    stage.rows("UPDATE runner_pods SET gone_at = now()")
    autoscale.run()
    assert decision(stage)["usual"] == 7
    assert replicas(stage) == 8


def test_pools_that_are_left_alone_are_and_stop_no_other(stage: Stage) -> None:
    pool(stage, "paused", paused=True)
    pool(stage, "manual", enabled=False)
    pool(stage, "bad")
    patch(stage, "bad", {"spec": {"podTemplate": {"spec": {"hostNetwork": True}}}})
    pool(stage, "leaving")
    patch(stage, "leaving", {"metadata": {"finalizers": [DRAIN_FINALIZER]}})
    delete_pool(stage.kube, namespace=stage.namespace, name="leaving")
    pool(stage, "good")
    for name in ("paused", "manual", "bad", "leaving", "good"):
        queue(stage, 2, name=name)
    autoscale.run()
    assert {name: replicas(stage, name) for name in ("paused", "manual", "bad", "leaving", "good")} == {
        "paused": 0,
        "manual": 0,
        "bad": 0,
        "leaving": 0,
        "good": 3,
    }
    assert decision(stage, "paused")["why"] == "the pool is paused"
    assert decision(stage, "manual") == {}
    patch(stage, "leaving", {"metadata": {"finalizers": None}})


def patch(stage: Stage, name: str, body: dict[str, Any]) -> None:
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/{name}"
    stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@pytest.mark.parametrize("upstream", ["github", "kubernetes"])
def test_a_closed_gate_leaves_replicas_as_they_are(stage: Stage, upstream: str) -> None:
    pool(stage)
    pool(stage, "idle", replicas=7)
    an_hour_later(stage)
    queue(stage, 4)
    stage.rows("INSERT INTO gates (upstream, closed_at, why) VALUES (:up, now(), 'it fails')", up=upstream)
    autoscale.run()
    assert (replicas(stage), replicas(stage, "idle")) == (0, 7)
    assert f"the gate of {upstream} has been tripped since" in decision(stage)["why"]
    stage.rows("UPDATE gates SET closed_at = NULL")
    autoscale.run()
    assert (replicas(stage), replicas(stage, "idle")) == (5, 1)


def test_no_pool_shrinks_on_rows_that_may_be_old_and_none_changes_on_rows_that_are(stage: Stage) -> None:
    pool(stage)
    pool(stage, "idle", replicas=7)
    an_hour_later(stage)
    queue(stage, 4)
    stage.rows("UPDATE epochs SET trusted_until = now() - interval '1 s'")
    autoscale.run()
    assert (replicas(stage), replicas(stage, "idle")) == (5, 7)
    assert "as new as the cluster" in decision(stage, "idle")["why"]
    stage.rows("UPDATE epochs SET older_since = now(), why = 'a test'")
    queue(stage, 4)
    autoscale.run()
    assert (replicas(stage), replicas(stage, "idle")) == (5, 7)


@pytest.mark.parametrize("read", ["list_pools", "decide_all"])
def test_a_read_that_fails_changes_nothing(stage: Stage, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool(stage, replicas=7)
    an_hour_later(stage)
    monkeypatch.setattr(module, read, raising(Retryable("down")))
    with pytest.raises(Retryable):
        autoscale.run()
    assert replicas(stage) == 7


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


@pytest.mark.parametrize("error", [Forbidden("may not"), Retryable("down")])
def test_nodes_that_cannot_be_had_limit_nobody(
    stage: Stage, fresh: None, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fresh
    pool(stage, replicas=3, minWarm=4)
    monkeypatch.setattr(nodes, "list_nodes", raising(error))
    autoscale.run()
    assert replicas(stage) == 4


@pytest.fixture
def node(stage: Stage) -> Iterator[Callable[..., None]]:
    """Add nodes of this test's fleet, or report one again: (name, cpu, ready, cordoned); `since`: age of Ready in s."""
    with ExitStack() as nodes:
        there: dict[str, LiveNode] = {}

        def add(name: str, *, cpu: str, ready: bool = True, cordoned: bool = False, since: float = 7200) -> None:
            if name in there:
                there[name].report(ready=ready, since=since)
                return
            there[name] = LiveNode(
                stage.kube,
                f"{stage.namespace}-{name}",
                labels={"fleet": stage.namespace},
                allocatable={"cpu": cpu, "memory": "64Gi"},
            )
            nodes.enter_context(there[name])
            there[name].report(ready=ready, since=since)
            if cordoned:
                there[name].cordon()

        yield add


def test_where_nodes_are_scarce_load_comes_before_the_floors_of_others(
    stage: Stage, fresh: None, node: Callable[..., None]
) -> None:
    del fresh
    node("a", cpu="12")
    node("b", cpu="50", ready=False)
    node("c", cpu="50", cordoned=True)
    pool(stage, "idle", minWarm=6)
    pool(stage, "loaded", minWarm=2)
    queue(stage, 3, name="loaded")
    autoscale.run()
    # Usable are 10.8 vCPU. The jobs take 3 times 2.05 of them; what is left holds 2.27 of the eight warm Pods.
    assert (replicas(stage, "loaded"), replicas(stage, "idle")) == (3, 1)
    assert "fit" in decision(stage, "idle")["why"]
    queue(stage, 6, name="loaded")
    an_hour_later(stage)
    autoscale.run()
    assert (replicas(stage, "loaded"), replicas(stage, "idle")) == (9, 0)


def test_a_lost_node_shrinks_no_pool_before_the_scale_down_delay(
    stage: Stage, fresh: None, node: Callable[..., None]
) -> None:
    del fresh
    node("a", cpu="16")
    node("b", cpu="16")
    pool(stage, minWarm=10)
    an_hour_later(stage)
    autoscale.run()
    assert replicas(stage) == 10
    an_hour_later(stage)

    node("b", cpu="16", ready=False, since=300)
    autoscale.run()
    assert (replicas(stage), decision(stage)["verdict"]) == (10, "left")
    assert "a node that is not Ready" in decision(stage)["why"]

    node("b", cpu="16")
    autoscale.run()
    assert (replicas(stage), decision(stage)["verdict"]) == (10, "steady")

    node("b", cpu="16", ready=False, since=1200)
    autoscale.run()
    assert (replicas(stage), decision(stage)["verdict"]) == (7, "down")


def test_pods_of_pools_that_are_not_scaled_hold_their_part_of_the_nodes(
    stage: Stage, fresh: None, node: Callable[..., None]
) -> None:
    del fresh
    node("a", cpu="12")
    pool(stage, "manual", replicas=4, enabled=False)
    pool(stage, "idle", minWarm=6)
    autoscale.run()
    assert replicas(stage, "idle") == 1


def test_two_at_once_do_it_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    pool(stage, maxReplicas=5)
    queue(stage, 3)
    barrier = threading.Barrier(2, timeout=60)
    write, first = module.write, threading.Event()

    def together(rt: Any, seen: PoolSpec, *, replicas: int) -> PoolSpec | None:
        barrier.wait()  # both have decided, on the same pool
        if threading.current_thread().name == "late":
            first.wait(60)
        done = write(rt, seen, replicas=replicas)
        first.set()
        return done

    monkeypatch.setattr(module, "write", together)
    threads = [threading.Thread(target=autoscale.run, name=name) for name in ("early", "late")]
    threads[0].start()
    # The late one sees more jobs, and would write another number.
    real = module.decide_all

    def more(*arguments: Any, **named: Any) -> Any:
        if threading.current_thread().name == "late":
            queue(stage, 1)
        return real(*arguments, **named)

    monkeypatch.setattr(module, "decide_all", more)
    threads[1].start()
    for thread in threads:
        thread.join()
    (seen,) = list_pools(stage.kube, namespace=stage.namespace)
    assert seen.generation == 2, "one of the two wrote"
    assert seen.replicas <= 5


@pytest.mark.parametrize(
    ("change", "ends_at"),
    [
        ({"spec": {"paused": True}}, 0),
        ({"spec": {"autoscaling": {"maxReplicas": 1}}}, 0),
        ({"spec": {"replicas": 2}}, 2),
        ({"metadata": {"labels": {"team": "web"}}}, 5),
    ],
    ids=["paused", "a lower maximum", "scaled by hand", "a label"],
)
def test_change_between_read_and_write_is_not_overwritten(
    stage: Stage, change: dict[str, Any], ends_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool(stage)
    queue(stage, 4)
    real = module.decide_all

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        patch(stage, "small", change)
        return real(*arguments, **named)

    monkeypatch.setattr(module, "decide_all", meanwhile)
    autoscale.run()
    assert replicas(stage) == ends_at


def test_a_pool_whose_deletion_is_asked_for_meanwhile_is_left(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    pool(stage)
    patch(stage, "small", {"metadata": {"finalizers": [DRAIN_FINALIZER]}})
    queue(stage, 4)
    real = module.decide_all

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        delete_pool(stage.kube, namespace=stage.namespace, name="small")
        return real(*arguments, **named)

    monkeypatch.setattr(module, "decide_all", meanwhile)
    autoscale.run()
    assert replicas(stage) == 0
    patch(stage, "small", {"metadata": {"finalizers": None}})


def test_jobs_are_matched_again_when_the_row_is_older_than_the_spec(stage: Stage) -> None:
    pool(stage)
    patch(stage, "small", {"spec": {"routingPriority": 5}})
    autoscale.run()
    (row,) = stage.rows("SELECT routing_priority, replicas FROM pools")
    assert (row.routing_priority, row.replicas) == (5, 1)
    assert stage.outbox.take("ostler.rematch") == [{}]


def test_a_pool_that_cannot_be_written_stops_no_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    pool(stage, "a")
    pool(stage, "b")
    real = scale_pool

    def refused(kube: Any, seen: PoolSpec, **named: Any) -> PoolSpec:
        if seen.name == "a":
            raise Forbidden("may not")
        return real(kube, seen, **named)

    monkeypatch.setattr(module, "scale_pool", refused)
    autoscale.run()
    assert (replicas(stage, "a"), replicas(stage, "b")) == (0, 1)


@pytest.mark.parametrize("ended", [True, False])
def test_count_of_one_pool_writes_the_usual_pods_of_no_other(clusterless: Stage, *, ended: bool) -> None:
    stage = clusterless
    stage.add_pod("pod-1")
    stage.job(7)
    stage.claim("pod-1", job_id=7, state="claimed", age=600)
    if ended:
        stage.rows("UPDATE claims SET state = 'ended', ended_at = now() - interval '1 min', end_reason = 'released'")
    counted = insert_pool(stage.rt.engine, "large", namespace="none", labels=["self-hosted"])
    usual = transaction(stage.rt.engine, lambda db: count_usual(db, [counted], now=utcnow()))
    assert usual == {counted: 0}
    written = stage.rows("SELECT name FROM pools WHERE typical_at IS NOT NULL")
    assert [row.name for row in written] == ["large"]
