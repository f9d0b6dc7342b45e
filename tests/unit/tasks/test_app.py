"""The Celery application: the names, policies and settings that the laws need."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from beat_schedule import schedule
from ostler.errors import ConfigurationError
from ostler.secrets import Secret
from ostler.task_names import QUEUE_OF, ROUTES, TaskName
from ostler.timings import Timings
from ostler.wakes import producer
from tasks.worker import base
from tasks.worker.app import MODULES, SETTINGS, VISIBILITY_TIMEOUT, app, assert_in_force, configure
from tasks.worker.base import SWEEP, task


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    for module in MODULES:
        __import__(module)


def ours() -> dict[str, Any]:
    return {name: task for name, task in app.tasks.items() if name.startswith("ostler.")}


def test_registered_tasks_are_those_of_the_table() -> None:
    assert set(ours()) == set(QUEUE_OF)


def test_task_outside_the_table_cannot_be_registered() -> None:
    with pytest.raises(LookupError, match=r"ostler\.of_nobody"):
        task(TaskName("ostler.of_nobody"), policy=SWEEP)


@pytest.mark.parametrize("name", QUEUE_OF)
def test_task_sent_by_name_alone_lands_in_its_queue(name: TaskName) -> None:
    outside = producer(Secret("redis://unused")).amqp.router
    app.conf.update(SETTINGS)
    for router in (outside, app.amqp.router):
        assert router.route({}, name)["queue"].name == QUEUE_OF[name]


def test_every_periodic_task_exists_and_expires_after_its_period() -> None:
    for line in schedule(Timings()).values():
        assert line["options"]["queue"] == QUEUE_OF[line["task"]]
        assert line["options"]["expires"] >= max(line["schedule"], 60)


def test_what_workers_show_of_their_settings_hides_a_password_of_redis() -> None:
    before = app.conf.broker_url
    settings: Any = SimpleNamespace(
        redis_url=Secret("redis://:hunter2@host:6379/0"),
        timings=Timings(),
    )
    try:
        configure(settings)
        shown = repr(app.conf.table(with_defaults=True))
    finally:
        app.conf.broker_url = before
    assert "redis://:" in shown
    assert "hunter2" not in shown


def test_attempts_never_multiply() -> None:
    policies = [each for each in vars(base).values() if isinstance(each, base.Policy)]
    assert len(policies) >= 10
    for policy in policies:
        assert min(policy.adapter_attempts, policy.task_retries + 1) == 1


def test_no_message_of_a_retry_waits_longer_than_workers_may_reserve_it() -> None:
    retried = {name: each.max_retries for name, each in ours().items() if each.max_retries}
    names = ("release", "retire", "unstamp", "mint", "ask_run", "ask_owner", "pool_changed", "pod_executes")
    assert retried == dict.fromkeys((*(f"ostler.{name}" for name in names), "ostler.poller_ended"), 4)
    for policy in (base.MINT, base.RELEASE, base.RETIRE, base.UNSTAMP, base.QUESTION, base.HINT):
        assert policy.longest_wait(policy.task_retries) == base.LONGEST_MESSAGE
    assert base.LONGEST_MESSAGE < VISIBILITY_TIMEOUT / 2


def test_a_task_ignores_arguments_of_a_newer_version_and_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    rematch = ours()["ostler.rematch"]
    wrapped = inspect.unwrap(rematch.run)
    assert wrapped.__name__ == "rematch"
    dispatch = ours()["ostler.dispatch"]
    monkeypatch.setattr(
        "tasks.claims.dispatch.runtime", lambda: SimpleNamespace(waker=SimpleNamespace(wake=woken.append))
    )
    monkeypatch.setattr("tasks.claims.dispatch.ROUNDS", 0)
    assert dispatch.run(pool_id=1, something_new=2) is None
    assert woken == [1]


def test_the_settings_are_asserted_at_boot() -> None:
    app.conf.update(SETTINGS)
    assert_in_force(app)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_acks_late", False),
        ("task_reject_on_worker_lost", False),
        ("worker_prefetch_multiplier", 4),
        ("worker_enable_remote_control", True),
        ("accept_content", ["json", "pickle"]),
        ("task_create_missing_queues", True),
        ("result_backend", "redis://localhost/1"),
        ("broker_transport_options", {"socket_timeout": 10, "visibility_timeout": 300}),
    ],
)
def test_a_setting_that_something_else_changed_stops_the_process(name: str, value: object) -> None:
    app.conf.update(SETTINGS)
    app.conf[name] = value
    try:
        with pytest.raises(ConfigurationError, match=name):
            assert_in_force(app)
    finally:
        app.conf.update(SETTINGS)


def test_standby_beat_takes_over_within_fifteen_seconds() -> None:
    interval, lock = SETTINGS["beat_max_loop_interval"], SETTINGS["redbeat_lock_timeout"]
    assert lock + interval <= 15
    assert lock >= 5 * interval, "the active beat must be able to extend its lock although a tick takes long"


def test_nothing_runs_eagerly() -> None:
    assert app.conf.task_always_eager is False


def test_page_about_waking_shows_the_routes_that_are_in_force() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations" / "waking.md").read_text()
    shown = page.partition("task_routes=")[2].partition("\n    },\n")[0] + "}"
    assert list(ast.literal_eval(shown).items()) == list(ROUTES.items())
