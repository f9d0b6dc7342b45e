"""Pods of gone nodes: replaced at once, and deleted without their kubelet only if two witnesses agree."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Row

from models.claims import releases
from models.db.engine import transaction
from models.pools.scaling import pool_rows
from models.routing.usage import usage_of
from models.sweeps import stuck_pods
from ostler.clock import utcnow
from ostler.errors import Busy, Retryable
from tasks.claims.retire import retire
from tasks.sweeps.finished_jobs import finished_jobs
from tasks.sweeps.gone_nodes import gone_nodes
from tasks.worker import nodes as of_nodes
from tests.integration.concurrency.points import DEADLINE, start, stopped
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.pools.dead_nodes import LONG, SHORT, Nodes, all_pods, bind, delete_gently, nodes
from tests.integration.tasks.pools.fleet import condition, kept, polls, reasons, retired, spec, status
from tests.integration.tasks.pools.test_stateful_sets import CACHE, grown, started, volumes
from tests.waiting import eventually

__all__ = ["nodes"]


@pytest.fixture
def dead(stage: Stage, nodes: Nodes, github: StubGitHub) -> str:
    """A pool of three warm Pods on one node, which is still Ready, and two other nodes."""
    del github
    nodes.add("a")
    nodes.add("b")
    node = nodes.add("dead")
    stage.pool(replicas=3)
    kept(stage)
    polls(stage)
    for name in stage.pods():
        bind(stage, name, node)
    kept(stage)
    return node


def sweeps(stage: Stage) -> None:
    """Run the two sweeps that end Pods of gone nodes, and the messages that they send."""
    finished_jobs.run()
    gone_nodes.run()
    retired(stage)


def busy(stage: Stage) -> tuple[str, int]:
    """Let the first Pod execute a job, and return the Pod and its claim."""
    name = min(stage.pods())
    stage.job(7, state="running")
    return name, stage.claim(name, job_id=7, state="executing", age=3600, runner=RUNNER)


def forced(stage: Stage) -> list[Row[Any]]:
    return stage.rows("SELECT * FROM repairs WHERE what = 'force deletion' ORDER BY id")


def test_a_pool_serves_again_at_once_when_its_node_is_gone(stage: Stage, nodes: Nodes, dead: str) -> None:
    old = set(stage.pods())
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    new = set(stage.pods()) - old
    assert len(new) == 3
    found = condition(stage, "Ready")
    assert (found["status"], found["reason"]) == ("False", "PodsStarting")
    assert {name: status(stage)[name] for name in ("warm", "starting", "lost", "replicas")} == {
        "warm": 0,
        "starting": 3,
        "lost": 3,
        "replicas": 3,
    }
    polls(stage, *new)
    assert condition(stage, "Ready")["status"] == "True"
    assert condition(stage, "Degraded")["reason"] == "NodeLost"

    gone_nodes.run()
    retired(stage)
    assert set(all_pods(stage)) == new
    assert new <= stage.service_accounts()
    assert not old & stage.service_accounts()
    assert set(reasons(stage).values()) == {"the node has been unreachable for longer than OSTLER_NODE_LOST_AFTER"}
    repairs = forced(stage)
    assert len(repairs) == 3
    for row in repairs:
        assert row.kills
        assert row.witnesses == [
            "postgres: nothing was delivered",
            "kubernetes: the node has been unreachable for longer than OSTLER_NODE_LOST_AFTER",
        ]
    assert condition(stage, "Degraded")["status"] == "False"
    assert (set(stage.pods()), status(stage)["lost"]) == (new, 0)


def test_terminating_pods_are_replaced_at_once_and_forced_when_their_node_is_gone(
    stage: Stage, nodes: Nodes, dead: str
) -> None:
    old = set(stage.pods())
    nodes.dies(dead, seconds_ago=SHORT)
    for name in old:
        delete_gently(stage, name)
    kept(stage)
    assert len(stage.pods()) == 3
    sweeps(stage)
    assert old < set(all_pods(stage))
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    sweeps(stage)
    assert not old & set(all_pods(stage))
    assert len(stage.pods()) == 3


def test_a_retirement_that_waits_for_a_dead_kubelet_is_forced_within_the_budget(
    stage: Stage, nodes: Nodes, dead: str
) -> None:
    spec(stage, replicas=0)
    kept(stage)
    retired(stage)
    assert len(all_pods(stage)) == 3
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    stage.with_settings(repair_budget_least=2, repair_budget_percent=0)
    gone_nodes.run()
    assert len(forced(stage)) == 2
    retired(stage)
    assert len(all_pods(stage)) == 1
    gone_nodes.run()
    retired(stage)
    assert all_pods(stage) == {}


def test_a_busy_pod_stays_untouched_while_its_node_may_come_back(
    stage: Stage, github: StubGitHub, nodes: Nodes, dead: str
) -> None:
    name, claim = busy(stage)
    github.runner = "offline"
    nodes.dies(dead, seconds_ago=SHORT)
    for _ in range(3):
        kept(stage)
        sweeps(stage)
        stage.later()
    assert stage.see(claim).state == "executing"
    assert (len(stage.pods()), name in stage.pods(), github.deleted) == (3, True, [])


@pytest.mark.parametrize("runner", ["online", "busy"])
def test_a_busy_pod_of_a_gone_node_stays_untouched_while_its_runner_is_online(
    stage: Stage, github: StubGitHub, nodes: Nodes, dead: str, runner: str
) -> None:
    name, claim = busy(stage)
    github.runner = runner
    nodes.dies(dead, seconds_ago=LONG)
    for _ in range(3):
        kept(stage)
        sweeps(stage)
        stage.later()
    assert (stage.see(claim).state, stage.see(claim).job_state) == ("executing", "running")
    assert (name in stage.pods(), github.deleted) == (True, [])


def test_a_busy_pod_of_a_gone_node_is_replaced_and_charged_to_nobody(stage: Stage, nodes: Nodes, dead: str) -> None:
    busy(stage)

    def charged() -> int:
        return transaction(stage.rt.engine, lambda db: usage_of(db, [1]))[1].count

    def load() -> int:
        return transaction(stage.rt.engine, lambda db: pool_rows(db, namespace=stage.namespace, now=utcnow()))[0].load

    assert (charged(), load()) == (1, 1)
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    assert (charged(), load(), len(stage.pods())) == (0, 0, 6)
    nodes.comes_back(dead)
    kept(stage)
    assert (charged(), load()) == (1, 1)


@pytest.mark.parametrize(
    ("runner", "job", "state", "hold"),
    [
        ("offline", ("queued", None, None), "queued", None),
        (None, ("in_progress", None, RUNNER), "running", "ask_github"),
        ("offline", ("completed", "failure", RUNNER), "completed", None),
    ],
)
def test_busy_pod_of_a_gone_node_ends_after_two_checks_without_its_runner(
    stage: Stage,
    github: StubGitHub,
    nodes: Nodes,
    dead: str,
    runner: str | None,
    job: tuple[str, str | None, str | None],
    state: str,
    hold: str | None,
) -> None:
    name, claim = busy(stage)
    github.runner, github.job = runner, job
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    sweeps(stage)
    assert (stage.see(claim).state, github.deleted) == ("executing", [])
    stage.later()
    sweeps(stage)
    found = stage.see(claim)
    assert (found.state, found.job_state, found.hold_reason) == ("ended", state, hold)
    sweeps(stage)
    assert name not in all_pods(stage)
    assert github.deleted == [77]
    witnesses = {row.pod_uid: row.witnesses for row in forced(stage)}
    assert witnesses[found.pod_uid] == [
        "github: all runners of the Pod are removed",
        "kubernetes: the node has been unreachable for longer than OSTLER_NODE_LOST_AFTER",
    ]


def test_a_busy_pod_of_a_gone_node_stays_when_github_will_not_remove_its_runner(
    stage: Stage, github: StubGitHub, nodes: Nodes, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, claim = busy(stage)
    github.runner = "offline"
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    sweeps(stage)
    stage.later()

    def refuse(*_: object, **__: object) -> None:
        raise Busy("it executes a job")

    monkeypatch.setattr(StubGitHub, "delete_runner", refuse)
    sweeps(stage)
    assert (stage.see(claim).state, name in stage.pods()) == ("executing", True)


def test_an_over_pod_of_a_gone_node_is_forced_when_its_runner_is_removed(
    stage: Stage, github: StubGitHub, nodes: Nodes, dead: str
) -> None:
    name, claim = busy(stage)
    stage.finish(name, phase="Running")
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :c", c=claim)
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    stage.rows("UPDATE runner_pods SET terminal_at = now() - interval '31 s' WHERE terminal_at IS NOT NULL")
    github.runner = "busy"
    kept(stage)
    retired(stage)
    gone_nodes.run()
    retired(stage)
    assert name in all_pods(stage), "Kubernetes alone is one witness"
    github.runner = "offline"
    retire.run(
        claim_id=stage.rows(
            "SELECT id FROM claims WHERE purpose = 'retire' AND pod_uid = :uid", uid=all_pods(stage)[name].uid
        )[0].id
    )
    assert github.deleted == [77]
    gone_nodes.run()
    retired(stage)
    assert name not in all_pods(stage)


def test_nothing_is_forced_while_most_nodes_are_unreachable(stage: Stage, nodes: Nodes, dead: str) -> None:
    old = set(stage.pods())
    nodes.dies(dead, seconds_ago=LONG)
    nodes.dies(f"{stage.namespace}-a", seconds_ago=1)
    kept(stage)
    sweeps(stage)
    assert old < set(stage.pods())
    assert len(stage.pods()) == 6
    nodes.comes_back(f"{stage.namespace}-a")
    sweeps(stage)
    assert not old & set(all_pods(stage))


@pytest.mark.parametrize("how", ["deleted", "out of service"])
def test_pods_of_a_node_that_is_vouched_for_go_at_once(stage: Stage, nodes: Nodes, dead: str, how: str) -> None:
    old = set(stage.pods())
    if how == "deleted":
        nodes.delete(dead)
    else:
        nodes.is_out_of_service(dead)
    kept(stage)
    sweeps(stage)
    assert not old & set(all_pods(stage))
    assert len(stage.pods()) == 3


@pytest.mark.parametrize("how", ["deleted", "out of service"])
def test_a_pod_with_an_attachable_volume_waits_until_its_node_is_vouched_for(
    stage: Stage, nodes: Nodes, dead: str, how: str
) -> None:
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}
    spec(stage, podTemplate={"spec": {"volumes": [volume]}}, rollout={"maxUnavailablePercent": 100})
    kept(stage)
    retired(stage)
    for name in set(all_pods(stage)) - set(stage.pods()):
        stage.kube.request(
            "DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{name}", body={"gracePeriodSeconds": 0}
        )
    kept(stage)
    attached = set(stage.pods())
    polls(stage, *attached)
    for name in attached:
        bind(stage, name, dead)
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    sweeps(stage)
    assert attached < set(stage.pods())
    assert forced(stage) == []
    if how == "deleted":
        nodes.delete(dead)
    else:
        nodes.is_out_of_service(dead)
    sweeps(stage)
    assert not attached & set(all_pods(stage))


@pytest.mark.cluster  # volumes
@pytest.mark.usefixtures("github")
@pytest.mark.parametrize("how", ["deleted", "out of service"])
def test_a_volume_of_a_dead_node_goes_to_a_successor_once_the_node_is_vouched_for(
    stage: Stage, nodes: Nodes, how: str
) -> None:
    nodes.add("a")
    nodes.add("b")
    dead = nodes.add("dead")
    (name,) = started(stage, 1, volumes=CACHE)
    bind(stage, name, dead)
    uid = stage.pods()[name].uid
    delete_gently(stage, name)
    nodes.dies(dead, seconds_ago=LONG)

    def is_replaced() -> bool:
        kept(stage)
        sweeps(stage)
        return len(stage.pods()) == 1

    eventually(is_replaced, within=30)
    assert all_pods(stage)[name].uid == uid
    assert forced(stage) == []

    if how == "deleted":
        nodes.delete(dead)
    else:
        nodes.is_out_of_service(dead)

    def is_gone() -> bool:
        kept(stage)
        stage.rows("UPDATE claims SET leased_until = NULL")
        sweeps(stage)
        return name not in all_pods(stage)

    eventually(is_gone, within=30)
    assert f"cache-{name}" in volumes(stage)
    spec(stage, replicas=2)
    assert name in grown(stage, 2)
    assert len(volumes(stage)) == 2, "the successor has a volume of its own"


def test_a_node_that_is_back_before_the_deletion_keeps_its_pods(stage: Stage, nodes: Nodes, dead: str) -> None:
    old = set(stage.pods())
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    gone_nodes.run()
    assert len(forced(stage)) == 3
    nodes.comes_back(dead)
    retired(stage)
    assert old <= set(all_pods(stage))
    assert all(all_pods(stage)[name].terminating for name in old)


@pytest.mark.parametrize("how", ["fails", "does not show it"])
def test_a_list_of_nodes_that_cannot_be_trusted_changes_nothing(
    stage: Stage, nodes: Nodes, dead: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    old = set(stage.pods())
    if how == "does not show it":
        nodes.hidden.add(dead)
    else:
        nodes.dies(dead, seconds_ago=LONG)
        monkeypatch.setattr(of_nodes, "list_nodes", _fail)
    kept(stage)
    sweeps(stage)
    assert set(stage.pods()) == old
    assert forced(stage) == []


def test_pods_stay_lost_while_nodes_cannot_be_listed(
    stage: Stage, nodes: Nodes, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the healthy replacements would be too many, and would be retired."""
    old = set(stage.pods())
    nodes.dies(dead, seconds_ago=LONG)
    kept(stage)
    polls(stage)
    monkeypatch.setattr(of_nodes, "list_nodes", _fail)
    kept(stage)
    gone_nodes.run()
    assert (reasons(stage), len(set(stage.pods()) - old)) == ({}, 3)


def test_a_terminating_pod_that_its_release_took_for_gone_is_found_again(stage: Stage, nodes: Nodes, dead: str) -> None:
    name = min(stage.pods())
    pod = stage.pods()[name]
    nodes.dies(dead, seconds_ago=LONG)
    delete_gently(stage, name)
    transaction(stage.rt.engine, lambda db: releases.mark_gone(db, pod.uid, now=utcnow()))
    kept(stage)
    sweeps(stage)
    assert name not in all_pods(stage)
    kept(stage)
    (row,) = stage.rows("SELECT gone_at FROM runner_pods WHERE uid = :uid", uid=pod.uid)
    assert row.gone_at is not None


def _fail(*_: object, **__: object) -> Any:
    raise Retryable("no answer")


def test_retirement_that_ends_meanwhile_is_not_allowed_to_force(clusterless: Stage) -> None:
    stage = clusterless
    stage.add_pod("pod-1")
    stage.rows("UPDATE runner_pods SET node_gone_at = now()")
    stage.retire_claim("pod-1")
    (stuck,) = transaction(stage.rt.engine, lambda db: stuck_pods.stuck_pods(db, now=utcnow()))

    def allow() -> int | None:
        return transaction(
            stage.rt.engine,
            lambda db: stuck_pods.allow_force(db, stuck, why="test", due_after=10, now=utcnow(), who="test"),
        )

    with stopped(stage.rt.engine, "UPDATE claims SET force_deleted_at", thread="sweep") as allowing:
        sweep = start("sweep", allow)
        allowing.wait()
        stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'retired'")
    assert sweep.result(DEADLINE) is None
    assert [row.force_deleted_at for row in stage.rows("SELECT force_deleted_at FROM claims")] == [None]
