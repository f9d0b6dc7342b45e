"""Order of a Pod's deletion and its end, as the watch saw them: the first state that shows one of them decides."""

from __future__ import annotations

from typing import cast

import pytest

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.names import POOL_LABEL
from k8s_adapters.runners.pods import read_pod
from rules.claims.pod_view import PodView
from watch.hints import Hints
from watch.subjects import Pods

DELETED = {"deletionTimestamp": "2026-11-23T12:03:34Z", "deletionGracePeriodSeconds": 30}


def pod(*, ended: bool, deleted: bool, phase: str = "Running") -> PodView:
    state = {"terminated": {"exitCode": 0}} if ended else {"running": {}}
    metadata = {"name": "p", "uid": "u", "namespace": "n", "creationTimestamp": "2026-11-23T12:00:00Z"}
    return read_pod(
        {
            "metadata": {**metadata, "labels": {POOL_LABEL: "small"}, **(DELETED if deleted else {})},
            "spec": {"nodeName": "node", "containers": [{"name": "sidecar"}]},
            "status": {
                "phase": phase,
                "containerStatuses": [{"name": name, "state": state} for name in ("poller", "runner")],
            },
        }
    )


@pytest.mark.parametrize(
    ("states", "first"),
    [
        ([pod(ended=False, deleted=False), pod(ended=True, deleted=False), pod(ended=True, deleted=True)], False),
        ([pod(ended=False, deleted=False), pod(ended=False, deleted=True), pod(ended=True, deleted=True)], True),
        ([pod(ended=False, deleted=True)], True),
        ([pod(ended=True, deleted=True)], None),
        ([pod(ended=True, deleted=True), pod(ended=True, deleted=True)], None),
        ([pod(ended=False, deleted=False)], None),
    ],
)
def test_first_state_that_shows_an_end_decides_what_came_first(states: list[PodView], first: bool | None) -> None:
    hints = Hints(executing_after=5)
    subject = Pods(cast("KubeClient", None), hints, namespace="n")
    for state in states:
        subject.observe(state, deleted=False)
    subject.observe(states[-1], deleted=True)
    hints.close()
    batch = hints.next_batch()
    assert batch is not None
    assert batch.endings["u"]["deleted_first"] is first


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_a_list_of_terminal_phases_is_enough_unless_an_ended_pod_still_runs(phase: str) -> None:
    hints = Hints(executing_after=5)
    subject = Pods(cast("KubeClient", None), hints, namespace="n")
    subject.observe(pod(ended=False, deleted=False), deleted=False)
    subject.observe(pod(ended=True, deleted=False, phase=phase), deleted=False)
    hints.close()
    batch = hints.next_batch()
    assert batch is not None
    assert (batch.pools, batch.ended) == (["small"], [] if phase == "Running" else ["small"])
