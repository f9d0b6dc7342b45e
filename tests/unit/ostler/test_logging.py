"""Log lines: one vocabulary of ids, bound in one place, and no log lines of Celery."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, Literal

import pytest
import redis
import structlog
from alembic.runtime.migration import MigrationContext
from celery.app import trace
from sqlalchemy import create_engine

from ostler import task_names
from ostler.errors import Retryable
from ostler.logging import IDS, about, also_about, configure, get_logger, ids_of
from ostler.task_names import TaskName
from tasks.worker.app import app
from tasks.worker.base import DISPATCH, task

ROOT = Path(__file__).parents[3]
FOLDERS = ("ostler", "cli", "watch", "tasks", "models", "k8s_adapters", "github_adapters", "web", "container_hooks")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
OTHER_NAMES = {
    "job_id",
    "claim_id",
    "pod_name",
    "uid",
    "guid",
    "delivery_id",
    "pool_name",
    "account_id",
    "installation_id",
    "task_name",
    "runner_name",
    "handle",
}


Read = Callable[[], list[dict[str, Any]]]


@contextmanager
def logged(level: Literal["DEBUG", "INFO"] = "INFO") -> Iterator[Read]:
    """Log as the processes do. The value returns the lines so far."""
    root, before, out = logging.getLogger(), structlog.get_config(), io.StringIO()
    handlers, least = list(root.handlers), root.level
    try:
        with redirect_stderr(out):
            configure(process="test", level=level)
        yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    finally:
        configure(process="test")
        structlog.configure(**before)
        root.handlers = handlers
        root.setLevel(least)


def log_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call that logs, or binds ids, with the name of the called function."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(value=ast.Name(id="log"), attr=attr) if attr in LEVELS:
                yield node, "log"
            case ast.Name(id="about" | "also_about" as name):
                yield node, name


def faults_of(source: str) -> list[str]:
    """Return the problems of the names of ids in log calls."""
    found = []
    for call, kind in log_calls(ast.parse(source)):
        for field in call.keywords:
            name = field.arg or "**"
            if name in OTHER_NAMES or (kind != "log" and name not in IDS | {"**"}):
                found.append(f"{call.lineno}: {name} is no name of an id")
            if name == "pod" and isinstance(field.value, ast.Attribute) and field.value.attr.endswith("uid"):
                found.append(f"{call.lineno}: a UID is logged as pod")
    return found


def test_every_log_call_uses_one_vocabulary_of_ids() -> None:
    calls = 0
    wrong = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            calls += sum(1 for _ in log_calls(ast.parse(source)))
            wrong += [f"{path.relative_to(ROOT)}:{fault}" for fault in faults_of(source)]
    assert calls > 150
    assert wrong == []


@pytest.mark.parametrize(
    "line", ['log.info("x", guid=g)', 'log.info("x", claim_id=7)', 'log.error("x", pod=to.pod_uid)', "about(jobs=3)"]
)
def test_another_name_of_an_id_is_found(line: str) -> None:
    assert faults_of(line)


def test_ids_are_on_every_line_of_block_and_on_none_after_it() -> None:
    with logged() as lines:
        log = get_logger("test")
        with about(task="ostler.stamp", claim=7):
            log.info("one")
            also_about(job=11, pod="small-1", pod_uid=None)
            with about(claim=8, runner="r"):
                log.info("two", claim=9)
            log.info("three")
        log.info("four")
    one, two, three, four = [
        {name: value for name, value in line.items() if name in IDS or name == "event"} for line in lines()
    ]
    assert one == {"event": "one", "task": "ostler.stamp", "claim": 7}
    assert two == {"event": "two", "task": "ostler.stamp", "claim": 9, "job": 11, "pod": "small-1", "runner": "r"}
    assert three == {"event": "three", "task": "ostler.stamp", "claim": 7, "job": 11, "pod": "small-1"}
    assert four == {"event": "four"}


def test_task_logs_its_ids_and_neither_lists_nor_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    name = TaskName("ostler.of_a_test_of_logs")
    monkeypatch.setattr(task_names, "QUEUE_OF", {name: "dispatch"})
    arguments = {"claim_id": 7, "chain_no": 1, "reason": "r", "gone": ["u"], "pool_id": 3, "endings": {}}
    assert ids_of(arguments) == {"claim": 7, "chain_no": 1, "pool_id": 3}

    @task(name, policy=DISPATCH)
    def of_a_test(*, claim_id: int, gone: list[str]) -> None:
        del claim_id, gone
        also_about(job=11)
        get_logger("test").info("within")

    with logged() as lines:
        try:
            of_a_test.run(claim_id=7, gone=["u"] * 500)
        finally:
            forget(of_a_test.name)
        get_logger("test").info("after")
    within, after = lines()
    assert (within["task"], within["claim"], within["job"]) == ("ostler.of_a_test_of_logs", 7, 11)
    assert "gone" not in within
    assert not IDS & after.keys()


def forget(name: str) -> None:
    """Remove a task of a test from the application."""
    app.tasks.pop(name)


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_celery_logs_no_line_about_a_task_except_at_debug(level: Literal["DEBUG", "INFO"]) -> None:
    about_task = {"name": "n", "id": "i", "runtime": 1, "return_value": None, "exc": "e", "internal": False}
    with logged(level) as lines:
        for severity, template in (
            (logging.INFO, trace.LOG_RECEIVED),
            (logging.INFO, trace.LOG_SUCCESS),
            (logging.INFO, trace.LOG_RETRY),
            (logging.WARNING, trace.LOG_REJECTED),
            (logging.ERROR, trace.LOG_FAILURE),
            (logging.CRITICAL, trace.LOG_INTERNAL_ERROR),
        ):
            where = "celery.worker.strategy" if template is trace.LOG_RECEIVED else "celery.app.trace"
            internal = severity == logging.CRITICAL
            given = {**about_task, "internal": internal}
            logging.getLogger(where).log(severity, template.strip(), defaultdict(str, given))
        told = [line["level"] for line in lines()]
    assert told == (["info", "info", "critical"] if level == "DEBUG" else ["critical"])


@pytest.mark.parametrize(
    ("error", "cause", "explained"),
    [
        (redis.ReadOnlyError("hunter2"), "Redis is a read-only replica", True),
        (Retryable("x", status=503), "the server answered 503", True),
        (ValueError("x"), "an unexpected error (ValueError)", False),
    ],
)
def test_failed_task_logs_one_event_without_an_id_in_its_name(
    monkeypatch: pytest.MonkeyPatch, error: Exception, cause: str, explained: bool
) -> None:
    name = TaskName("ostler.of_a_test_of_failures")
    monkeypatch.setattr(task_names, "QUEUE_OF", {name: "dispatch"})

    @task(name, policy=DISPATCH)
    def of_a_test(*, claim_id: int) -> None:
        del claim_id
        raise error

    with logged() as lines:
        try:
            of_a_test.apply(kwargs={"claim_id": 7})
        finally:
            forget(of_a_test.name)
    (line,) = lines()
    assert (line["event"], line["level"], line["task"], line["claim"]) == ("task.failed", "error", name, 7)
    assert line["error"] == cause
    assert ("exception" in line) is not explained


def test_alembic_logs_migrations_that_run_and_no_check_of_the_revision() -> None:
    with logged("INFO") as lines:
        with create_engine("sqlite://").connect() as db:
            MigrationContext.configure(db).get_current_revision()
        logging.getLogger("alembic.runtime.migration").info("Running %s", "upgrade  -> 0100")
        found = [line["event"] for line in lines()]
    assert found == ["Running upgrade  -> 0100"]
