"""States of a Pod: over, terminal, and prevented by another container from becoming terminal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from k8s_adapters.calls.client import Json
from k8s_adapters.runners.pods import read_pod
from rules.claims.pod_view import PodView

RUNS: Json = {"running": {}}
ENDED: Json = {"terminated": {"exitCode": 0}}
WAITS: Json = {"waiting": {"reason": "ImagePullBackOff"}}


def pod(phase: str = "Running", *, restarts: tuple[str, ...] = (), **containers: Json) -> PodView:
    """Return a Pod whose containers are in these states. `restarts` are native sidecars, which still run."""
    return read_pod(
        {
            "metadata": {"name": "p", "uid": "u", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "containers": [{"name": name} for name in containers],
                "initContainers": [{"name": name, "restartPolicy": "Always"} for name in restarts],
            },
            "status": {
                "phase": phase,
                "containerStatuses": [{"name": name, "state": state} for name, state in containers.items() if state],
                "initContainerStatuses": [{"name": name, "state": RUNS} for name in restarts],
            },
        }
    )


@pytest.mark.parametrize(
    ("seen", "over", "outlived"),
    [
        (pod(poller=RUNS, runner=RUNS), False, False),
        (pod(poller=ENDED, runner=RUNS), False, False),
        (pod(poller=RUNS, runner=ENDED, dind=ENDED), False, False),
        (pod("Pending", poller=WAITS, runner=WAITS, dind=ENDED), False, False),
        (pod(poller=ENDED, runner=ENDED), True, False),
        (pod(poller=ENDED, runner=ENDED, dind=ENDED), True, False),
        (pod(poller=ENDED, runner=ENDED, dind=RUNS), True, True),
        (pod("Pending", poller=ENDED, runner=ENDED, dind=WAITS), True, True),
        (pod(poller=ENDED, runner=ENDED, dind={}), True, True),
        (pod(poller=ENDED, runner=ENDED, restarts=("mesh",)), True, False),
        (pod("Succeeded", poller=ENDED, runner=ENDED), True, False),
        (pod("Failed", poller={}, runner={}, dind={}), True, False),
    ],
)
def test_a_pod_is_over_when_poller_and_runner_have_terminated(seen: PodView, *, over: bool, outlived: bool) -> None:
    assert (seen.is_over, seen.is_outlived) == (over, outlived)
    assert seen.is_terminal == (seen.phase in {"Succeeded", "Failed"})


def test_deletion_counts_from_when_it_was_asked_for() -> None:
    metadata = {
        "name": "p",
        "uid": "u",
        "namespace": "n",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T01:00:30Z",
        "deletionGracePeriodSeconds": 30,
    }
    seen = read_pod({"metadata": metadata})
    assert seen.deletion_at == datetime(2026, 1, 1, 1, tzinfo=UTC)
    assert pod().deletion_at is None


@pytest.mark.parametrize(
    ("seen", "terminating", "first"),
    [
        (pod(poller=RUNS, runner=RUNS), False, None),
        (pod(poller=ENDED, runner=RUNS), True, True),
        (pod("Pending"), True, True),
        (pod(poller=ENDED, runner=ENDED, dind=RUNS), False, False),
        (pod("Succeeded", poller=ENDED, runner=ENDED), False, False),
        (pod("Failed", poller=ENDED, runner=ENDED), True, None),
        (pod(poller=ENDED, runner=ENDED), True, None),
    ],
)
def test_state_shows_whether_deletion_came_before_the_end(
    seen: PodView, *, terminating: bool, first: bool | None
) -> None:
    assert replace(seen, terminating=terminating).deleted_first is first


@pytest.mark.parametrize(("ready", "reason"), [("True", "ContainerCreating"), ("False", "NoSandbox")])
def test_pod_without_a_sandbox_is_told_from_one_whose_containers_start(ready: str, reason: str) -> None:
    seen = read_pod(
        {
            "metadata": {"name": "p", "uid": "u", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {
                "conditions": [{"type": "PodReadyToStartContainers", "status": ready}],
                "containerStatuses": [
                    {"name": name, "state": {"waiting": {"reason": "ContainerCreating"}}}
                    for name in ("poller", "runner")
                ],
            },
        }
    )
    assert seen.waiting_reason == reason


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (({"waiting": {"reason": "CrashLoopBackOff"}},), "CrashLoopBackOff"),
        ((ENDED, WAITS, {"waiting": {"reason": "PodInitializing"}}), "ImagePullBackOff"),
        ((RUNS,), "PodInitializing"),
        ((), "PodInitializing"),
    ],
)
def test_the_init_container_that_keeps_a_pod_from_starting_is_named(before: tuple[Json, ...], reason: str) -> None:
    waiting: Json = {"waiting": {"reason": "PodInitializing"}}
    seen = read_pod(
        {
            "metadata": {"name": "p", "uid": "u", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {
                "containerStatuses": [{"name": name, "state": waiting} for name in ("poller", "runner")],
                "initContainerStatuses": [{"name": f"init-{i}", "state": state} for i, state in enumerate(before)],
            },
        }
    )
    assert seen.waiting_reason == reason


@pytest.mark.parametrize(
    ("reason", "unschedulable"),
    [("Unschedulable", True), ("SchedulerError", True), ("SchedulingGated", False), (None, False)],
)
def test_pod_without_a_node_has_the_message_of_the_scheduler(reason: str | None, unschedulable: bool) -> None:
    told = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/3 nodes: a full zone " * 40}
    seen = read_pod(
        {
            "metadata": {"name": "p", "uid": "u", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"conditions": [told]},
        }
    )
    assert (seen.unschedulable, len(seen.no_node_because)) == (unschedulable, 300 if unschedulable else 0)


def test_pod_has_its_scheduling_gates_and_the_finalizers_of_other_programs() -> None:
    metadata = {"name": "p", "uid": "u", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}
    bare = read_pod({"metadata": metadata, "status": {}})
    assert (bare.gates, bare.held_by) == ("", "")
    finalizers = ["z.example/hold", "ostler.dev/exit", "a.example/hold"]
    gates = [{"name": "kueue.x-k8s.io/admission"}, {"name": "a.example/quota"}]
    seen = read_pod(
        {"metadata": {**metadata, "finalizers": finalizers}, "spec": {"schedulingGates": gates}, "status": {}}
    )
    assert seen.gates == "a.example/quota, kueue.x-k8s.io/admission"
    assert seen.held_by == "a.example/hold, z.example/hold"
