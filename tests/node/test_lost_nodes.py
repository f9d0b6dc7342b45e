"""Real kubelets and containerds that end: no busy Pod is killed, each job is recorded, and the pool becomes whole."""

from __future__ import annotations

import pytest

from tests.fleet import Fleet
from tests.node.conftest import LOST_AFTER, SILENCE
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]


def test_restarted_kubelet_and_containerd_touch_no_busy_pod(fleet: Fleet) -> None:
    fleet.wait_until_whole()
    jobs = fleet.send(4, duration_seconds=25)
    pods = {fleet.pod_of(job) for job in jobs}

    for node in fleet.system.real_nodes:
        node.kill()
        node.revive()

    for job in jobs:
        over = fleet.wait_for(job, "completed")
        assert (over["conclusion"], over["executions"]) == ("success", 1)
    assert not {each["pod"] for each in fleet.events("killed")} & pods
    fleet.wait_until_whole()


def test_job_on_a_node_without_kubelet_runs_to_its_end_and_is_recorded(fleet: Fleet) -> None:
    fleet.wait_until_whole()
    [job] = fleet.send(duration_seconds=SILENCE + LOST_AFTER + 40)
    node = fleet.system.real_nodes[fleet.node_of(fleet.pod_of(job))]

    node.kill()
    eventually(
        lambda: fleet.degraded() == "NodeLost", "the lost node is not reported", within=SILENCE + LOST_AFTER + 40
    )
    assert fleet.job(job)["status"] == "in_progress"

    over = fleet.wait_for(job, "completed")
    assert (over["conclusion"], over["executions"]) == ("success", 1)
    node.revive()
    fleet.wait_until_whole()
    assert [each["job"] for each in fleet.events("killed") if each["job"] == job] == []


def test_dead_node_gives_its_pods_up_and_the_pool_becomes_whole(fleet: Fleet) -> None:
    fleet.wait_until_whole()
    [job] = fleet.send(duration_seconds=600)
    pod = fleet.pod_of(job)
    node = fleet.system.real_nodes[fleet.node_of(pod)]

    node.kill()
    assert node.kill_containers() > 0

    over = fleet.wait_for(job, "completed")
    assert (over["conclusion"], over["executions"]) != ("success", 1)
    eventually(lambda: pod not in fleet.pods(), "the dead Pod stays", within=SILENCE + LOST_AFTER + 180)
    fleet.wait_until_whole()  # on the other node
    node.revive()
    [job] = fleet.send(duration_seconds=1)
    assert fleet.wait_for(job, "completed")["conclusion"] == "success"
