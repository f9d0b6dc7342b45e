"""Kubernetes Events of pools and Pods: each once, with its reason."""

from __future__ import annotations

from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import kept, polls, retired, spec


def told(stage: Stage, reason: str) -> list[tuple[str, str, str]]:
    """Return (object, type, note) of the Events of one reason."""
    return [(name, kind, note) for name, kind, found, note in stage.rt.events.told if found == reason]


def test_retirements_are_told_of_the_pool_and_of_each_pod_with_their_reason(stage: Stage) -> None:
    stage.pool(replicas=3)
    kept(stage)
    polls(stage)
    before = set(stage.pods())
    spec(stage, replicas=1)
    kept(stage)
    assert told(stage, "Retired") == [("small", "Normal", "2 Pods are retired, reason: the pool has too many Pods")]
    retired(stage)
    gone = sorted(before - set(stage.pods()))
    assert len(gone) == 2
    assert sorted(told(stage, "Retired")[1:]) == [(name, "Normal", "the pool has too many Pods") for name in gone]


def test_a_drained_pool_says_so(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools/small"
    stage.kube.request("DELETE", path)
    for _ in range(3):
        kept(stage)
        retired(stage)
    assert [kind for _, kind, _ in told(stage, "Draining")] == ["Normal"]
    assert [name for name, _, _ in told(stage, "Drained")] == ["small"]
