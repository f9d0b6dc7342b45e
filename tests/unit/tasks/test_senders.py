"""Senders: none repeats the queue of a task, and none bypasses the debounce of the waker."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ostler.task_names import QUEUES

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "ostler",
    "cli",
    "watch",
    "tasks",
    "models",
    "k8s_adapters",
    "github_adapters",
    "rules",
    "container_hooks",
    "deploys",
    "web",
    "lab",
)
WAKER = ROOT / "ostler" / "wakes.py"
"""The only module that gives Celery the queue of a message and debounces the messages of three tasks."""

SENDS = {"send", "send_task", "apply_async", "signature", "partial", "task", "sweep"}
DEBOUNCED = {"DISPATCH", "RECONCILE", "AUTOSCALE"}


def sources() -> Iterator[Path]:
    yield ROOT / "beat_schedule.py"
    for package in PACKAGES:
        yield from (path for path in (ROOT / package).rglob("*.py") if path != WAKER)


def calls(source: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def repeats_a_queue(call: ast.Call) -> bool:
    queues = [keyword.value for keyword in call.keywords if keyword.arg == "queue"]
    named = any(isinstance(queue, ast.Constant) and queue.value in QUEUES for queue in queues)
    return named or (bool(queues) and last_name(call.func) in SENDS)


def evades_the_debounce(call: ast.Call) -> bool:
    sends = last_name(call.func) in {"send", "send_task"} or any(last_name(each) == "send" for each in call.args)
    return sends and any(last_name(each) in DEBOUNCED for each in call.args)


def found(judge: Callable[[ast.Call], bool]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sources()
        for call in calls(path.read_text())
        if judge(call)
    ]


def test_no_sender_repeats_a_queue() -> None:
    assert found(repeats_a_queue) == []


def test_no_sender_evades_the_debounce() -> None:
    assert found(evades_the_debounce) == []


@pytest.mark.parametrize(
    "mistake",
    [
        'waker.send(STAMP, queue="dispatch", claim_id=1)',
        "app.send_task(name, queue=queue)",
        'partial(waker.send, ASK_RUN, queue="github")',
        'task("mint", queue="github", policy=MINT)',
        'Message(name=STAMP, queue="dispatch")',
    ],
)
def test_repeated_queue_is_found(mistake: str) -> None:
    assert [repeats_a_queue(call) for call in calls(mistake)] == [True]


@pytest.mark.parametrize(
    "mistake",
    [
        "rt.waker.send(RECONCILE, pool_id=1)",
        "publisher().send(task_names.AUTOSCALE)",
        "partial(waker.send, RECONCILE, pool_id=1)",
        "app.send_task(DISPATCH)",
    ],
)
def test_evaded_debounce_is_found(mistake: str) -> None:
    assert any(evades_the_debounce(call) for call in calls(mistake))


@pytest.mark.parametrize(
    "right", ["stuck(queue=depth, idle=2)", "log.warning(event, queue=queue)", "waker.send(STAMP)"]
)
def test_right_call_is_not_found(right: str) -> None:
    assert not any(repeats_a_queue(call) or evades_the_debounce(call) for call in calls(right))
