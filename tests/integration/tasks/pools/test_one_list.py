"""One list of the namespace per tick serves all pools, and an old list decides nothing."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, object_path
from k8s_adapters.runners.pods import read_pod
from models.db.engine import make_engine
from models.pools import pod_lists
from ostler.errors import Retryable
from rules.claims.pod_view import PodView
from rules.sweeps.nodes import Gone
from tasks.pools.mirror_pools import pool_changed, pools
from tasks.pools.reconcile import reconcile
from tasks.pools.report import write_status
from tasks.worker import nodes
from tests.database import Database
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.dead_nodes import bind
from tests.integration.tasks.pools.drains import delete, seen
from tests.integration.tasks.pools.fleet import kept, polls, reasons, retired, spec

POOLS = 20
ONE = ["ostler.dev/pool"]
"""The selectors of a tick that makes one list."""


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the selector of every request for a page of a list of Pods."""
    found: list[str] = []
    request = KubeClient.request

    def counted(self: KubeClient, method: str, path: str, **named: Any) -> Any:
        if method == "GET" and path.endswith("/pods"):
            found.append(str(named["query"]["labelSelector"]))
        return request(self, method, path, **named)

    monkeypatch.setattr(KubeClient, "request", counted)
    return found


def fleet(stage: Stage, *, pools: int = POOLS) -> list[str]:
    """Create `pools` pools of one warm Pod each, and return their names."""
    names = [f"pool-{number}" for number in range(pools)]
    for name in names:
        stage.pool(name, replicas=1)
    kept(stage)
    polls(stage)
    stage.outbox.sent.clear()
    return names


def ticked(stage: Stage) -> list[dict[str, Any]]:
    """Mirror the pools and list their Pods. Return the messages, which the test must run."""
    nodes.clear()
    pools.run()
    return stage.outbox.take("ostler.reconcile")


def served(messages: list[dict[str, Any]]) -> list[DBAPIError]:
    """Run the reconciles as workers would, each in its own task, and return the errors of the database."""
    refused = []
    for message in messages:
        try:
            reconcile.run(**message)
        except DBAPIError as error:
            refused.append(error)
    return refused


def remove(stage: Stage, name: str) -> None:
    """Delete a Pod at once, as another client would."""
    path = object_path("pods", namespace=stage.namespace, name=name)
    stage.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})


def undone(stage: Stage) -> None:
    """Make all reconciles incomplete, so that the next one must check what its list shows."""
    stage.rows("UPDATE pools SET listed_at = NULL")


def pods_of(stage: Stage, pool: str) -> list[str]:
    """Return the names of the Pods of a pool."""
    return [name for name, pod in stage.pods().items() if pod.pool == pool]


def test_a_tick_of_twenty_pools_makes_one_list(stage: Stage, lists: list[str]) -> None:
    fleet(stage)
    lists.clear()
    kept(stage)
    assert lists == ONE


def test_a_tick_makes_one_request_per_page(stage: Stage, lists: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fleet(stage, pools=5)
    monkeypatch.setattr("k8s_adapters.runners.pods._PAGE", 2)
    lists.clear()
    kept(stage)
    assert lists == ONE * 3


def test_the_list_of_a_single_pool_is_stored_and_not_repeated(stage: Stage, lists: list[str]) -> None:
    (name,) = fleet(stage, pools=1)
    lists.clear()
    kept(stage)
    assert lists == ONE
    (stored,) = stage.rt.transaction(pod_lists.nodes_of_pods)[stage.namespace, name]
    assert stored[0] in {pod.uid for pod in stage.pods().values()}


def test_a_locked_and_a_broken_pool_keep_no_other_from_the_list(
    stage: Stage, database: Database, lists: list[str]
) -> None:
    locked, broken, *others = fleet(stage, pools=4)
    stage.rt.engine = make_engine(database.url, pool_size=2, application="as in production")
    for name in list(stage.pods()):
        remove(stage, name)
    lists.clear()
    messages = ticked(stage)
    stage.rows("UPDATE pod_lists SET pods = 'torn' WHERE pool = :name", name=broken)
    (pool,) = stage.rows("SELECT id FROM pools WHERE name = :name", name=locked)
    with database.engine.begin() as holder:
        holder.execute(text("SELECT pg_advisory_xact_lock(:pool)"), {"pool": pool.id})
        assert len(served(messages)) == 1
    assert lists == [*ONE, f"ostler.dev/pool={broken}"]
    assert [len(pods_of(stage, name)) for name in (locked, broken, *others)] == [0, 1, 1, 1]

    assert served(ticked(stage)) == []
    assert len(pods_of(stage, locked)) == 1
    stage.rt.engine.dispose()


def test_a_pool_whose_reconcile_raises_keeps_no_other_from_the_list(
    stage: Stage, lists: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = fleet(stage, pools=3)
    for name in list(stage.pods()):
        remove(stage, name)
    lists.clear()
    messages = ticked(stage)

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug of this pool alone")

    with monkeypatch.context() as patched:
        patched.setattr("tasks.pools.reconcile.plan", broken)
        with pytest.raises(RuntimeError):
            served(messages[:1])
    assert served(messages[1:]) == []
    assert lists == ONE
    assert [len(pods_of(stage, name)) for name in names] == [0, 1, 1]
    kept(stage)
    assert [len(pods_of(stage, name)) for name in names] == [1, 1, 1]


def test_a_pod_that_nobody_can_pack_concerns_its_own_pool_alone(stage: Stage, lists: list[str]) -> None:
    odd, *others = fleet(stage, pools=3)
    (name,) = pods_of(stage, odd)
    path = object_path("pods", namespace=stage.namespace, name=name)
    body = {"metadata": {"labels": {"ostler.dev/runner-pool-owner": "9" * 30}}}
    stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    for other in others:
        remove(stage, *pods_of(stage, other))
    lists.clear()
    kept(stage)
    assert lists == [*ONE, f"ostler.dev/pool={odd}"]
    assert [len(pods_of(stage, other)) for other in others] == [1, 1]


def test_a_pod_that_nobody_can_read_keeps_no_other_pool_from_its_own_list(
    stage: Stage, lists: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, *others = fleet(stage, pools=3)
    (name,) = pods_of(stage, odd)
    read = read_pod

    def refusing(item: Json) -> PodView:
        if item["metadata"]["name"] == name:
            raise KeyError("status")
        return read(item)

    monkeypatch.setattr("k8s_adapters.runners.pods.read_pod", refusing)
    lists.clear()
    messages = ticked(stage)
    assert {"shared" in message for message in messages} == {False}
    with pytest.raises(KeyError):
        served(messages[:1])
    assert served(messages[1:]) == []
    assert lists == [*ONE, *(f"ostler.dev/pool={each}" for each in (odd, *others))]


def test_a_list_that_is_cut_off_is_shared_with_nobody(
    stage: Stage, lists: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(stage, pools=3)
    stage.rows("DELETE FROM pod_lists")
    monkeypatch.setattr("k8s_adapters.runners.pods._PAGE", 2)
    request = KubeClient.request

    def cut(self: KubeClient, method: str, path: str, **named: Any) -> Any:
        query = named.get("query") or {}
        if query.get("labelSelector") == "ostler.dev/pool" and "continue" in query:
            raise Retryable("cut off")
        return request(self, method, path, **named)

    monkeypatch.setattr(KubeClient, "request", cut)
    lists.clear()
    messages = ticked(stage)
    assert [message for message in messages if "shared" in message] == []
    assert stage.rows("SELECT * FROM pod_lists") == []
    served(messages)
    assert lists == [*ONE, *(f"ostler.dev/pool=pool-{number}" for number in range(3))]


def test_a_list_that_takes_longer_than_a_tick_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet(stage, pools=3)
    monkeypatch.setattr("tasks.pools.pod_lists.LIST_SECONDS", -1)
    messages = ticked(stage)
    assert len(messages) == 3
    assert [message for message in messages if "shared" in message] == []


@pytest.mark.parametrize("shift", ["- interval '11 s'", "+ interval '1 min'"], ids=["old", "of the future"])
def test_a_list_that_is_old_or_of_the_future_is_not_used(stage: Stage, lists: list[str], *, shift: str) -> None:
    names = fleet(stage, pools=2)
    messages = ticked(stage)
    stage.rows(f"UPDATE pod_lists SET taken_at = taken_at {shift}, whole_at = whole_at {shift}")  # noqa: S608
    lists.clear()
    served(messages)
    assert lists == [f"ostler.dev/pool={name}" for name in names]


def test_a_pool_that_a_newer_list_has_served_is_left_alone(
    stage: Stage, lists: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(stage, pools=2)
    messages = ticked(stage)
    for message in messages:
        reconcile.run(pool_id=message["pool_id"])
    lists.clear()
    monkeypatch.setattr("tasks.pools.reconcile.plan", lambda *_, **__: pytest.fail("there was nothing to decide"))
    served([*messages, *messages])
    assert lists == []


def test_a_pod_that_went_after_the_list_is_neither_adopted_nor_made_twice(stage: Stage, lists: list[str]) -> None:
    name, _ = fleet(stage, pools=2)
    (old,) = pods_of(stage, name)
    messages = ticked(stage)
    remove(stage, old)
    for message in messages:
        reconcile.run(pool_id=message["pool_id"])  # a wake: it finds the Pod gone and makes another
    (new,) = pods_of(stage, name)
    assert new != old
    undone(stage)
    lists.clear()
    served(messages)
    assert lists == []
    assert pods_of(stage, name) == [new]
    rows = stage.rows("SELECT name, gone_at FROM runner_pods WHERE name = ANY(:names)", names=[old, new])
    assert {row.name: row.gone_at is None for row in rows} == {old: False, new: True}


def test_a_pod_of_a_lost_node_that_went_after_the_list_gets_no_row_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _ = fleet(stage, pools=2)
    (old,) = pods_of(stage, name)
    bind(stage, old, "lost")
    messages = ticked(stage)
    remove(stage, old)
    for message in messages:
        reconcile.run(pool_id=message["pool_id"])
    undone(stage)
    lost = nodes.NodeSnapshot(known=frozenset({"lost"}), gone={"lost": Gone.DELETED})
    monkeypatch.setattr("tasks.pools.plan.observe_nodes", lambda *_: lost)
    served(messages)
    (row,) = stage.rows("SELECT gone_at FROM runner_pods WHERE name = :name", name=old)
    assert row.gone_at is not None


def test_a_pod_that_was_made_after_the_list_is_neither_missed_nor_made_twice(
    stage: Stage, lists: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _ = fleet(stage, pools=2)
    messages = ticked(stage)
    spec(stage, name, replicas=3)
    stage.rows("UPDATE pools SET replicas = 3 WHERE name = :name", name=name)
    for message in messages:
        reconcile.run(pool_id=message["pool_id"])
    assert len(pods_of(stage, name)) == 3
    undone(stage)
    lists.clear()
    monkeypatch.setattr("tasks.pools.finished_pods.get_pod", lambda *_, **__: pytest.fail("the list cannot show it"))
    served(messages)
    assert lists == []
    assert len(pods_of(stage, name)) == 3


def test_a_pod_that_was_claimed_after_the_list_survives(stage: Stage) -> None:
    name, _ = fleet(stage, pools=2)
    (pod,) = pods_of(stage, name)
    spec(stage, name, replicas=0)
    messages = ticked(stage)
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="claimed")
    served(messages)
    retired(stage)
    assert pod in stage.pods()
    assert reasons(stage) == {}
    assert stage.see(claim).ended_at is None


def test_pod_that_began_an_unrecorded_job_after_the_list_survives(stage: Stage) -> None:
    name, _ = fleet(stage, pools=2)
    (pod,) = pods_of(stage, name)
    spec(stage, name, replicas=0)
    messages = ticked(stage)
    stage.execute_job(pod)
    served(messages)
    retired(stage)
    assert pod in stage.pods()


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM runner_pods WHERE name = :name",
        "UPDATE runner_pods SET uid = NULL WHERE name = :name",
        "UPDATE runner_pods SET gone_at = now() - interval '1 min' WHERE name = :name",
    ],
    ids=["no row", "no UID", "gone before"],
)
def test_a_pod_that_its_row_does_not_have_is_listed_now(stage: Stage, lists: list[str], *, lost: str) -> None:
    name, _ = fleet(stage, pools=2)
    (pod,) = pods_of(stage, name)
    stage.rows(lost, name=pod)
    messages = ticked(stage)
    lists.clear()
    served(messages)
    assert lists == [f"ostler.dev/pool={name}"]


def test_a_pool_that_leaves_goes_by_a_list_of_its_own(stage: Stage, lists: list[str]) -> None:
    name, other = fleet(stage, pools=2)
    third = stage.pool("third", replicas=0).name
    messages = ticked(stage)
    delete(stage, third)
    pool_changed.run(namespace=stage.namespace, pool=third)
    lists.clear()
    served(messages)
    assert lists == [f"ostler.dev/pool={third}"]
    assert {message.get("shared") for message in messages} == {True}
    lists.clear()
    delete(stage, name)
    delete(stage, other)
    kept(stage)
    assert ONE[0] not in lists


def test_a_pool_that_is_deleted_during_its_reconcile_goes_by_a_later_list(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(stage, pools=2)
    stage.pool("third", replicas=0)
    messages = ticked(stage)
    write = write_status

    def late(*args: Any, **named: Any) -> None:
        monkeypatch.setattr("tasks.pools.report.write_status", write)
        delete(stage, "third")
        pool_changed.run(namespace=stage.namespace, pool="third")
        write(*args, **named)

    monkeypatch.setattr("tasks.pools.report.write_status", late)
    served(messages[-1:])
    assert seen(stage, "third") is not None
    served(stage.outbox.take("ostler.reconcile"))
    assert seen(stage, "third") is None
