"""Pods that stay Terminating on a node that reports: forced if no job can run in them and no volume can be harmed."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.calls.client import object_path
from tasks.sweeps.finished_jobs import finished_jobs
from tasks.sweeps.gone_nodes import gone_nodes
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.pools.dead_nodes import SHORT, Nodes, all_pods, bind, delete_gently, nodes
from tests.integration.tasks.pools.fleet import kept, new_tick, retired, spec
from tests.integration.tasks.pools.test_stateful_sets import CACHE, grown
from tests.waiting import eventually

__all__ = ["nodes"]

BOTH = pytest.mark.parametrize("workload", ["Pod", "StatefulSet"])


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a deleted Pod be overdue at once, instead of 60 s after its grace period of 30 s."""
    for module in (
        "tasks.sweeps.gone_nodes",
        "tasks.sweeps.finished_jobs",
        "tasks.claims.retire",
        "tasks.pools.plan",
    ):
        monkeypatch.setattr(f"{module}.OVERDUE_AFTER", -60.0)


def started(stage: Stage, nodes: Nodes, count: int = 1, **more: Any) -> str:
    """Create a pool with warm Pods on a node that reports; return the node."""
    nodes.add("a")
    node = nodes.add("b")
    stage.pool(replicas=count, **more)
    for name in grown(stage, count):
        bind(stage, name, node)
    kept(stage)
    return node


def swept(stage: Stage, *, later: float = 61) -> None:
    """Run the reconciler, the sweep and the retirements, as if `later` seconds had passed."""
    kept(stage)
    retired(stage)
    stage.rows(
        "UPDATE claims SET created_at = created_at - make_interval(secs => :later) WHERE purpose = 'retire'",
        later=later,
    )
    gone_nodes.run()
    stage.rows("UPDATE claims SET leased_until = NULL")
    retired(stage)
    new_tick(stage)


def repairs(stage: Stage) -> list[str]:
    return [row.why for row in stage.rows("SELECT why FROM repairs WHERE what = 'force deletion'")]


def is_empty(stage: Stage) -> bool:
    """Run the sweeps once; return True if no Pod is left."""
    swept(stage)
    return not all_pods(stage)


@BOTH
@pytest.mark.usefixtures("later", "github")
def test_a_retired_pod_that_its_kubelet_does_not_end_is_forced_with_its_reason(
    stage: Stage, nodes: Nodes, workload: str
) -> None:
    started(stage, nodes, 2, workload=workload)
    spec(stage, replicas=0)
    eventually(lambda: is_empty(stage), within=30)  # a StatefulSet needs a moment until it has left its Pod
    assert repairs(stage) == ["its kubelet has not ended the Pod a minute after its grace period"] * 2
    assert {row.state for row in stage.rows("SELECT state FROM claims")} == {"ended"}


@pytest.mark.usefixtures("github")
def test_a_pod_gets_its_grace_period_and_a_minute_more(stage: Stage, nodes: Nodes) -> None:
    started(stage, nodes)
    spec(stage, replicas=0)
    for _ in range(3):
        swept(stage)
    assert len(all_pods(stage)) == 1
    assert repairs(stage) == []


@pytest.mark.usefixtures("later", "github")
@pytest.mark.parametrize("paused", [False, True])
def test_an_idle_pod_that_somebody_deleted_is_retired_and_forced(stage: Stage, nodes: Nodes, paused: bool) -> None:
    started(stage, nodes)
    (name,) = stage.pods()
    spec(stage, paused=paused)
    delete_gently(stage, name)
    swept(stage, later=0)
    assert name not in all_pods(stage)
    (claim,) = stage.rows("SELECT release_reason FROM claims WHERE purpose = 'retire'")
    assert claim.release_reason == "another client deleted the Pod, and its kubelet does not end it"


@pytest.mark.usefixtures("later")
def test_a_busy_pod_that_somebody_deleted_is_never_forced(stage: Stage, nodes: Nodes, github: StubGitHub) -> None:
    github.runner = "busy"
    started(stage, nodes)
    (name,) = stage.pods()
    stage.job(7, state="running")
    stage.claim(name, job_id=7, state="executing", age=60, runner=RUNNER)
    delete_gently(stage, name)
    for _ in range(3):
        swept(stage)
    assert name in all_pods(stage)
    assert repairs(stage) == []


def used(stage: Stage, github: StubGitHub, *, claim: str) -> str:
    """Let a Pod execute a job that ended an hour ago, let another client delete the Pod, and return its name."""
    (name,) = stage.pods()
    stage.job(7, state="running")
    claim_id = stage.claim(name, job_id=7, state="executing", age=7200, runner=RUNNER)
    stage.execute_job(name)
    stage.rows(
        "INSERT INTO executions (job_id, claim_id, account_id, vcpu, memory, runner_name, started_at)"
        " SELECT 7, :claim, 1, 2000, 4096, :runner, now() - interval '2 h'",
        claim=claim_id,
        runner=RUNNER,
    )
    stage.rows(
        "UPDATE jobs SET state = 'completed', conclusion = 'failure', started_at = now() - interval '2 h',"
        " completed_at = now() - interval '1 h', changed_at = now() - interval '1 h' WHERE id = 7"
    )
    if claim == "ended":
        stage.rows(
            "UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now() - interval '1 h',"
            " changed_at = now() - interval '1 h' WHERE id = :claim",
            claim=claim_id,
        )
    github.job = ("completed", "failure", RUNNER)
    delete_gently(stage, name)
    return name


def finished(stage: Stage) -> None:
    """Run the sweeps over finished jobs and over overdue Pods four times, two minutes apart."""
    for _ in range(4):
        finished_jobs.run()
        swept(stage)
        stage.later(120)


@BOTH
@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("claim", ["ended", "executing"])
def test_a_used_pod_that_somebody_deleted_is_forced_when_github_removed_its_runner(
    stage: Stage, nodes: Nodes, github: StubGitHub, claim: str, workload: str
) -> None:
    started(stage, nodes, workload=workload)
    name = used(stage, github, claim=claim)
    finished(stage)
    assert name not in all_pods(stage)
    assert github.deleted == [77]
    assert repairs(stage) == ["its kubelet has not ended the Pod a minute after its grace period"]


@BOTH
@pytest.mark.usefixtures("later")
def test_a_used_pod_is_not_forced_while_its_runner_is_busy(
    stage: Stage, nodes: Nodes, github: StubGitHub, workload: str
) -> None:
    github.runner = "busy"
    started(stage, nodes, workload=workload)
    name = used(stage, github, claim="executing")
    finished(stage)
    assert name in all_pods(stage)
    assert (github.deleted, repairs(stage)) == ([], [])


def test_a_used_pod_gets_its_grace_period_and_a_minute_more(stage: Stage, nodes: Nodes, github: StubGitHub) -> None:
    started(stage, nodes)
    name = used(stage, github, claim="ended")
    finished(stage)
    assert name in all_pods(stage)
    assert [row.purpose for row in stage.rows("SELECT purpose FROM claims")] == ["job"]


@pytest.mark.usefixtures("later", "github")
@pytest.mark.parametrize("doubt", ["unreachable", "most nodes unreachable"])
def test_nothing_is_forced_on_a_node_that_does_not_report(stage: Stage, nodes: Nodes, doubt: str) -> None:
    node = started(stage, nodes)
    nodes.dies(node, seconds_ago=SHORT)
    if doubt == "most nodes unreachable":
        nodes.dies(nodes.add("c"), seconds_ago=SHORT)
    spec(stage, replicas=0)
    for _ in range(3):
        swept(stage)
    assert len(all_pods(stage)) == 1
    assert repairs(stage) == []


@pytest.mark.cluster
@pytest.mark.usefixtures("later", "github")
def test_a_pod_with_a_volume_waits_for_its_kubelet(stage: Stage, nodes: Nodes) -> None:
    claim = object_path("persistentvolumeclaims", namespace=stage.namespace)
    body = {
        "metadata": {"name": "cache"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    stage.kube.request("POST", claim, body=body)
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}
    started(stage, nodes, podTemplate={"spec": {"volumes": [volume]}})
    spec(stage, replicas=0)
    for _ in range(3):
        swept(stage)
    assert len(all_pods(stage)) == 1
    assert repairs(stage) == []


@pytest.mark.cluster
@pytest.mark.usefixtures("later", "github")
def test_a_stateful_set_pod_with_a_volume_waits_for_its_kubelet(stage: Stage, nodes: Nodes) -> None:
    started(stage, nodes, workload="StatefulSet", volumes=CACHE)
    spec(stage, replicas=0)
    for _ in range(3):
        swept(stage)
    assert len(all_pods(stage)) == 1
    assert repairs(stage) == []
