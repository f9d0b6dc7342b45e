"""The Celery application: names, policies and settings that the laws lean on."""

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
from ostler.task_names import QUEUES
from ostler.task_names import ROUTES as ROUTES_BY_NAME
from ostler.timings import Timings
from ostler.wakes import producer
from tasks.worker.app import MODULES, ROUTES, SETTINGS, VISIBILITY_TIMEOUT, app, assert_in_force, configure
from tasks.worker.base import DISPATCH, MINT, RELEASE, RETIRE, STAMP, SWEEP

NAMES = {
    "ostler.dispatch": "dispatch",
    "ostler.stamp": "dispatch",
    "ostler.unstamp": "dispatch",
    "ostler.mint": "github",
    "ostler.ask_run": "github",
    "ostler.ask_owner": "github",
    "ostler.release": "dispatch",
    "ostler.retire": "retire",
    "ostler.pools": "pools",
    "ostler.autoscale": "pools",
    "ostler.reconcile": "pools",
    "ostler.epoch": "sweeps",
    "ostler.resume": "sweeps",
    "ostler.rematch": "sweeps",
    "ostler.stale_claims": "sweeps",
    "ostler.missing_pods": "sweeps",
    "ostler.missing_stamps": "sweeps",
    "ostler.unused_runners": "sweeps",
    "ostler.redelivery": "sweeps",
    "ostler.unresolved_jobs": "sweeps",
    "ostler.orphaned_stamps": "sweeps",
    "ostler.unresponsive_pods": "sweeps",
    "ostler.gone_nodes": "sweeps",
    "ostler.prune": "sweeps",
    "ostler.finished_jobs": "sweeps",
    "ostler.orphaned_runners": "sweeps",
    "ostler.orphaned_service_accounts": "sweeps",
    "ostler.unidentified_executions": "sweeps",
    "ostler.pods_changed": "dispatch",
    "ostler.pod_gone": "dispatch",
    "ostler.pod_executes": "dispatch",
    "ostler.poller_ended": "dispatch",
    "ostler.pod_events": "sweeps",
    "ostler.pool_changed": "pools",
    "ostler.gates": "sweeps",
    "ostler.catch_up": "sweeps",
}


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    for module in MODULES:
        __import__(module)


def ours() -> dict[str, Any]:
    return {name: task for name, task in app.tasks.items() if name.startswith("ostler.")}


def test_task_names_and_queues_are_stable() -> None:
    assert set(ours()) == set(NAMES)
    assert {name: route["queue"] for name, route in ROUTES.items()} == NAMES
    assert set(NAMES.values()) == set(QUEUES)


@pytest.mark.parametrize("name", NAMES)
def test_task_sent_by_name_alone_lands_in_its_queue(name: str) -> None:
    router = producer(Secret("redis://unused")).amqp.router
    assert router.route({}, name)["queue"].name == NAMES[name]


def test_every_periodic_task_exists_and_expires_after_its_period() -> None:
    for line in schedule(Timings()).values():
        assert line["task"] in NAMES
        assert line["options"]["queue"] == NAMES[line["task"]]
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
    for policy in (DISPATCH, STAMP, MINT, RELEASE, RETIRE, SWEEP):
        assert min(policy.adapter_attempts, policy.task_retries + 1) == 1


def test_no_retry_waits_longer_than_half_the_visibility_timeout() -> None:
    assert MINT.longest_wait(MINT.task_retries) < VISIBILITY_TIMEOUT / 2
    mint = ours()["ostler.mint"]
    assert mint.max_retries == MINT.task_retries
    assert mint.retry_jitter is True


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
    assert list(ast.literal_eval(shown).items()) == list(ROUTES_BY_NAME.items())
