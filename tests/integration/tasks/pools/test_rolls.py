"""A changed template, a cordoned node, too many Pods: the order and the number of retirements, and their limits."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from ostler.errors import Forbidden
from rules.pools import pool_plan
from tasks.claims.retire import retire
from tasks.worker import nodes
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import busy_pod, end_job
from tests.integration.tasks.pools.fleet import (
    NEW,
    OLD,
    images,
    kept,
    new_tick,
    no_node_takes,
    polls,
    reasons,
    retired,
    rounds,
    spec,
    the_pool,
)
from tests.integration.tasks.pools.test_stateful_sets import grown
from tests.nodes import LiveNode
from tests.waiting import eventually


def test_of_too_many_those_go_that_never_polled_and_then_the_newest(stage: Stage) -> None:
    stage.pool(replicas=4)
    kept(stage)
    first, second, third, fourth = sorted(stage.pods())
    polls(stage, first, second, third)
    stage.rows("UPDATE runner_pods SET created_at = now() + interval '1 min' WHERE name = :name", name=third)
    spec(stage, replicas=2)
    kept(stage)
    assert reasons(stage) == dict.fromkeys((third, fourth), "the pool has too many Pods")


def test_the_surplus_begins_with_the_oldest_template(stage: Stage) -> None:
    stage.pool(replicas=3)
    kept(stage)
    polls(stage)
    second, first, _ = sorted(stage.pods())
    for name, age in ((second, 10), (first, 20)):
        stage.rows(
            """
            UPDATE runner_pods SET template_hash = 'of ' || name, created_at = now() - make_interval(mins => :age)
            WHERE name = :name
            """,
            name=name,
            age=age,
        )
    spec(stage, replicas=2, rollout={"maxSurge": 0})
    kept(stage)
    assert reasons(stage)[first] == "the pool has too many Pods"


def test_one_tick_retires_five_however_often_the_pool_is_reconciled(stage: Stage) -> None:
    stage.pool(replicas=7)
    kept(stage)
    polls(stage)
    spec(stage, replicas=0)
    kept(stage)
    kept(stage)
    assert len(reasons(stage)) == 5
    new_tick(stage)
    kept(stage)
    assert len(reasons(stage)) == 7


def test_tick_ends_nine_seconds_after_its_first_retirement(stage: Stage) -> None:
    stage.pool(replicas=9)
    kept(stage)
    polls(stage)
    spec(stage, replicas=7)
    kept(stage)
    stage.rows("UPDATE pools SET tick_at = now() - interval '1 s'")
    spec(stage, replicas=4)
    kept(stage)
    assert len(reasons(stage)) == 5
    stage.rows("UPDATE pools SET tick_at = tick_at - interval '8 s'")
    spec(stage, replicas=0)
    kept(stage)
    assert len(reasons(stage)) == 9


def test_roll_replaces_warm_pods_share_by_share_and_waits_for_polls_of_new_pods(stage: Stage) -> None:
    stage.pool(replicas=4)
    kept(stage)
    polls(stage)
    spec(stage, image=NEW)
    rounds(stage, 3, polling=False)
    found = images(stage)
    assert (len(found[OLD]), len(found[NEW])) == (4, 1)  # it has not polled: no old one goes

    rounds(stage, 8)
    found = images(stage)
    assert (len(found[OLD]), len(found[NEW])) == (0, 4)
    assert set(reasons(stage).values()) == {"the pool's template has changed"}


def test_a_pool_of_one_warm_pod_is_never_without_while_it_rolls(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    spec(stage, image=NEW)
    rounds(stage, 2, polling=False)
    found = images(stage)
    assert (len(found[OLD]), len(found[NEW])) == (1, 1)  # the new one has not polled
    assert reasons(stage) == {}

    rounds(stage, 4)
    found = images(stage)
    assert (len(found[OLD]), len(found[NEW])) == (0, 1)
    assert set(reasons(stage).values()) == {"the pool's template has changed"}


def test_a_busy_pod_finishes_on_the_old_template_and_a_reserved_one_too(stage: Stage) -> None:
    stage.pool(replicas=3)
    kept(stage)
    polls(stage)
    busy, reserved, _ = sorted(stage.pods())
    stage.job(7)
    stage.job(8)
    stage.claim(busy, job_id=7, state="executing")
    stage.claim(reserved, job_id=8, state="claimed")
    spec(stage, image=NEW, rollout={"maxUnavailablePercent": 100})
    rounds(stage, 4)
    found = images(stage)
    assert (found[OLD], len(found[NEW])) == ([busy, reserved], 1)


def replicas(stage: Stage) -> list[str]:
    """Return the names of the Pods that can count as replicas: neither over, nor being deleted or retired."""
    retiring = {
        row.pod_uid for row in stage.rows("SELECT pod_uid FROM claims WHERE purpose = 'retire' AND ended_at IS NULL")
    }
    return [pod.name for pod in stage.pods().values() if not pod.is_over and pod.uid not in retiring]


def polled(stage: Stage) -> set[str]:
    """Return the names of the Pods that have polled."""
    return {row.name for row in stage.rows("SELECT name FROM runner_pods WHERE first_polled_at IS NOT NULL")}


@pytest.mark.parametrize("workload", ["Pod", "StatefulSet"])
def test_a_template_that_changes_back_during_its_rollout_is_the_only_one_left(stage: Stage, workload: str) -> None:
    stage.pool(replicas=4, workload=workload)
    grown(stage, 4)
    busy_old, _ = busy_pod(stage)
    uids = {busy_old: stage.pods()[busy_old].uid}

    def reconciled() -> dict[str, list[str]]:
        """Reconcile once, repeat the retirements, and return the Pods by image."""
        rounds(stage, 1)
        for row in stage.rows("SELECT id FROM claims WHERE purpose = 'retire' AND ended_at IS NULL"):
            retire.run(claim_id=row.id)
        assert len(replicas(stage)) <= 4 + 1, "more Pods than the replicas and the surge"
        pods = stage.pods()
        assert {name: pods[name].uid for name in uids if name in pods} == uids, "a busy Pod was deleted"
        return images(stage)

    spec(stage, image=NEW)
    eventually(lambda: len(polled(stage) & set(reconciled()[NEW])) == 2, within=60)
    busy_new, claim = busy_pod(stage, 8, name=images(stage)[NEW][0])
    uids[busy_new] = stage.pods()[busy_new].uid
    kept(stage)
    retired(stage)
    kept(stage)  # creates a Pod of the new template that does not poll
    before = set(images(stage)[OLD]) & set(replicas(stage))
    assert len(before) == 2, "the rollout is half done"

    spec(stage, image=OLD)
    eventually(lambda: [len(names) for names in reconciled().values()] == [3, 1], within=60)
    assert images(stage)[NEW] == [busy_new]
    del uids[busy_new]
    end_job(stage, busy_new, claim)
    eventually(lambda: [len(names) for names in reconciled().values()] == [4, 0], within=60)
    for _ in range(3):
        reconciled()
    assert [len(names) for names in images(stage).values()] == [4, 0]
    assert before <= set(images(stage)[OLD]), "a Pod of the right template was replaced"


def test_a_pod_of_the_old_template_that_has_not_polled_goes_at_once(stage: Stage) -> None:
    stage.pool(replicas=2)
    kept(stage)
    first, second = sorted(stage.pods())
    polls(stage, first)
    spec(stage, image=NEW)
    kept(stage)
    assert list(reasons(stage)) == [second]


@pytest.fixture
def node(stage: Stage) -> Iterator[LiveNode]:
    """A node that only this test uses."""
    with LiveNode(stage.kube, f"node-{secrets.token_hex(4)}") as node:
        yield node


def test_warm_pods_leave_a_cordoned_node_and_busy_ones_stay(stage: Stage, node: LiveNode) -> None:
    stage.pool(replicas=3, rollout={"maxSurge": 0})
    kept(stage)
    polls(stage)
    busy, warm, elsewhere = sorted(stage.pods())
    node.bind(stage.namespace, busy)
    node.bind(stage.namespace, warm)
    stage.job(7)
    stage.claim(busy, job_id=7, state="executing")
    node.cordon()
    kept(stage)
    assert reasons(stage) == {warm: "the node of the Pod is cordoned"}
    assert elsewhere in stage.pods()


def test_a_list_of_nodes_that_fails_says_nothing_of_any_of_them(
    stage: Stage, node: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    (name,) = stage.pods()
    node.bind(stage.namespace, name)
    node.cordon()

    def refuse(*_: object, **__: object) -> None:
        raise Forbidden("we may not")

    monkeypatch.setattr(nodes, "list_nodes", refuse)
    kept(stage)
    assert reasons(stage) == {}


def test_the_retirements_of_a_roll_end_with_their_pods(stage: Stage) -> None:
    stage.pool(replicas=1, rollout={"maxSurge": 0})
    kept(stage)
    polls(stage)
    spec(stage, image=NEW)
    kept(stage)
    retired(stage)
    rows = stage.rows("SELECT why FROM claim_events WHERE transition = 'retire'")
    assert [row.why for row in rows] == ["the pool's template has changed"]
    assert stage.rows("SELECT 1 FROM claims WHERE ended_at IS NULL") == []


def test_roll_on_full_nodes_goes_on_without_surge_until_it_is_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pool(replicas=3)
    kept(stage)
    polls(stage)
    spec(stage, image=NEW)
    kept(stage)
    (ahead,) = images(stage)[NEW]
    no_node_takes(stage, ahead)
    kept(stage)
    assert reasons(stage) == {}, "a node may come"

    monkeypatch.setattr(pool_plan, "ROOM_WITHIN", 0.0)
    kept(stage)
    assert sorted(reasons(stage).values()) == ["the pool has too many Pods", "the pool's template has changed"]
    assert reasons(stage)[ahead] == "the pool has too many Pods"
    retired(stage)

    most = 0
    for _ in range(8):
        rounds(stage, 1)
        if not images(stage)[OLD]:
            break
        most = max(most, sum(len(names) for names in images(stage).values()))
        assert the_pool(stage).start_trouble == "unschedulable"
        assert the_pool(stage).failed_starts == 0
    rounds(stage, 2)

    assert most == 3, "no Pod above the replicas"
    assert (images(stage)[OLD], len(images(stage)[NEW])) == ([], 3)
    assert the_pool(stage).start_trouble is None
