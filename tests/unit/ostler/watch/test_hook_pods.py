"""Hook Pods of the watch: from their JSON to the message of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.runners.hook_pods import HookPodView, read_hook_pod
from watch import subjects
from watch.hints import Hints
from watch.subjects import HookPods

DELETED = {"deletionTimestamp": "2026-11-23T12:03:34Z"}
OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
FAILED = {"terminated": {"exitCode": 1, "reason": "Error"}}
SHORT = "container job used more memory than its limit (OOMKilled)"


def hook(state: dict[str, Any] | None = None, *, uid: str = "h", deleted: bool = False, **status: Any) -> HookPodView:
    owner = {"kind": "Pod", "name": "small-1", "uid": "runner"}
    metadata = {"name": "small-1-workflow", "uid": uid, "creationTimestamp": "2026-11-23T12:00:00Z"}
    return read_hook_pod(
        {
            "metadata": {**metadata, "ownerReferences": [owner], **(DELETED if deleted else {})},
            "spec": {"nodeName": "node-1"},
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "job", "state": state or {"running": {}}}],
                **status,
            },
        }
    )


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (hook(), None),
        (hook(OOM), SHORT),
        (hook(OOM, deleted=True), SHORT),
        (hook(FAILED), "container job ended with exit code 1"),
        (hook(FAILED, deleted=True), None),
        (hook({"waiting": {"reason": "ImagePullBackOff"}}), "container job does not start (ImagePullBackOff)"),
        (hook({"waiting": {"reason": "ContainerCreating"}}), None),
        (hook(phase="Failed", reason="Evicted"), "Evicted"),
        (
            hook(conditions=[{"type": "PodScheduled", "reason": "Unschedulable", "message": "0/3 nodes"}]),
            "no node accepts it: 0/3 nodes",
        ),
    ],
)
def test_problem_of_a_hook_pod(seen: HookPodView, problem: str | None) -> None:
    assert seen.pod.problem == problem


def test_pod_without_a_runner_pod_as_owner_is_left_out() -> None:
    orphan = {"metadata": {"name": "x", "uid": "x", "creationTimestamp": "2026-11-23T12:00:00Z"}}
    hints, subject = made()
    subject.observe(read_hook_pod(orphan), deleted=False)
    assert sent(hints) == []


def made() -> tuple[Hints, HookPods]:
    hints = Hints(executing_after=5)
    return hints, HookPods(cast("KubeClient", None), hints, namespace="n")


def sent(hints: Hints) -> list[tuple[str, str | None, bool]]:
    """Return the phase, the problem and the end of each hook Pod in the batch that is due now."""
    hints.close()
    batch = hints.next_batch()
    return [] if batch is None else [(each["phase"], each["problem"], each["gone"]) for each in batch.hooks["runner"]]


def test_batch_has_the_last_state_of_a_hook_pod() -> None:
    hints, subject = made()
    for state in (None, OOM):
        subject.observe(hook(state), deleted=False)
    assert sent(hints) == [("Running", SHORT, False)]


def test_unchanged_hook_pod_is_not_sent_again() -> None:
    hints, subject = made()
    subject.observe(hook(), deleted=False)
    sent(hints)
    subject.observe(hook(), deleted=False)
    assert sent(hints) == []


def test_end_of_a_hook_pod_keeps_the_problem_that_it_had() -> None:
    hints, subject = made()
    subject.observe(hook(FAILED), deleted=False)
    subject.observe(hook({"terminated": {"exitCode": 143}}, deleted=True), deleted=True)
    assert sent(hints) == [("Terminating", "container job ended with exit code 1", True)]


def test_hook_pod_that_a_list_lacks_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    hints, subject = made()
    lists = iter([[hook(OOM)], []])
    monkeypatch.setattr(subjects, "list_hook_pods_at", lambda *_args, **_named: (next(lists), "7"))
    assert subject.list() == (1, "7")
    sent(hints)
    assert subject.list() == (0, "7")
    assert sent(hints) == [("Running", SHORT, True)]


def test_state_that_could_not_be_sent_does_not_replace_a_newer_one() -> None:
    hints, subject = made()
    subject.observe(hook(), deleted=False)
    batch = hints.next_batch()
    assert batch is not None
    subject.observe(hook(OOM), deleted=False)
    hints.put_back(batch)
    assert sent(hints) == [("Running", SHORT, False)]


def test_former_leader_forgets_hook_pods() -> None:
    hints, subject = made()
    subject.observe(hook(), deleted=False)
    hints.clear()
    assert sent(hints) == []


def test_state_that_could_not_be_sent_is_sent_with_the_next_batch() -> None:
    hints, subject = made()
    subject.observe(hook(), deleted=False)
    batch = hints.next_batch()
    assert batch is not None
    hints.put_back(batch)
    assert sent(hints) == [("Running", None, False)]


def test_waiting_hook_pods_and_those_of_a_batch_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watch.hints.MOST", 3)
    monkeypatch.setattr("watch.hints.BATCH", 2)
    hints, subject = made()
    for number in range(4):
        seen = hook(uid=f"h{number}")
        subject.observe(replace(seen, pod=replace(seen.pod, name=f"small-1-step-{number}")), deleted=False)
    assert [len(sent(hints)) for _ in range(3)] == [2, 1, 0]
