"""Flower beside a system that ran real jobs: its pages, its refusals, its stored data, and no secrets."""

from __future__ import annotations

import inspect
import json
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from flower.urls import handlers

from k8s_adapters.calls.client import KubeClient
from lab.bootstrap import LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System
from ostler.task_names import QUEUES
from tests.waiting import eventually

pytestmark = pytest.mark.cluster  # a long story

LABELS = ("self-hosted", "linux", "small")
JOBS = 3


@pytest.fixture(scope="module")
def system(
    control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """One system for the module, after its jobs are over."""
    namespace = f"flower-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    options = Options(pools=(LabPool("small", LABELS, 4),), beats=1, real_pods=1)
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, namespace=namespace, control_plane=control_plane) as running:
        running.start_flower()
        running.wait_for_warm_pods(4, timeout=120)
        eventually(lambda: bool(get(running, "/api/workers?status=1").json()), within=240)
        body = {"repository": "acme/shop", "labels": list(LABELS), "count": JOBS, "duration_seconds": 0.2}
        running.lab("POST", "/jobs", body)
        eventually(lambda: len(running.lab("GET", "/jobs?status=completed")["jobs"]) == JOBS, within=240)
        yield running
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


def get(system: System, path: str, *, login: tuple[str, str] | None = None) -> httpx.Response:
    """Return Flower's answer. Wait for it while Flower starts."""
    end = time.monotonic() + 120
    while True:
        try:
            return httpx.get(system.flower_url + path, auth=login or system.flower_login, timeout=30)
        except httpx.TransportError:
            assert time.monotonic() < end
            time.sleep(0.1)


def tasks(system: System) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = get(system, "/api/tasks").json()
    return list(found.values())


def arguments(system: System, name: str) -> set[str]:
    return {task["kwargs"] for task in tasks(system) if task["name"] == name and task["state"] == "SUCCESS"}


def test_tasks_are_named_and_their_arguments_say_what_they_are_about(system: System) -> None:
    eventually(lambda: len(arguments(system, "ostler.mint")) >= JOBS, within=240)
    for name in ("ostler.stamp", "ostler.mint"):
        for kwargs in arguments(system, name):
            assert re.fullmatch(r"\{'claim_id': \d+, 'chain_no': \d+\}", kwargs), kwargs
    for kwargs in arguments(system, "ostler.dispatch"):
        assert re.fullmatch(r"\{'pool_id': \d+\}", kwargs), kwargs
    eventually(lambda: "{}" in arguments(system, "ostler.resume"), within=240)
    known = {task["name"] for task in tasks(system)}
    assert all(name.startswith("ostler.") for name in known if name is not None), known
    assert {task["args"] for task in tasks(system) if task["name"]} <= {"()", "[]", None}
    assert {task["result"] for task in tasks(system)} <= {"None", None, ""}


def test_no_page_and_no_answer_shows_a_secret(system: System) -> None:
    uuids = [task["uuid"] for task in tasks(system)]
    paths = ["/", "/tasks", "/broker", "/workers", "/api/tasks", "/metrics", "/api/task/types"]
    paths += ["/api/workers?refresh=1", "/api/workers?status=1", "/api/queues/length"]
    paths += [f"/task/{uuid}" for uuid in uuids[:50]] + [f"/api/task/info/{uuid}" for uuid in uuids[:50]]
    shown = {path: get(system, path) for path in paths}
    assert {path: answer.status_code for path, answer in shown.items() if answer.status_code != 200} == {}
    text = "".join(answer.text for answer in shown.values()) + (system.folder / "flower.log").read_text()
    assert [secret for secret in system.secrets() if secret in text] == []
    assert "ostler.mint" in text
    # A JIT or a token is long; nothing that a task is about has so long a name.
    told = "".join(answer.text for path, answer in shown.items() if path.startswith("/api/task"))
    assert re.findall(r"[A-Za-z0-9+/=_.-]{100,}", told) == []


def test_it_asks_no_worker_and_shows_workers_and_queues_by_events(system: System) -> None:
    (worker,) = get(system, "/api/workers?status=1").json()
    assert get(system, f"/worker/{worker}").status_code == 404
    assert worker in get(system, "/workers").text
    broker = get(system, "/broker").text
    assert [queue for queue in QUEUES if queue not in broker] == []
    with system.redis.client() as redis:
        assert redis.keys("*pidbox*") == []


@pytest.mark.parametrize("login", [("ostler", "wrong"), ("", ""), ("ostler", "")])
def test_without_the_login_nothing_of_workers_and_tasks_is_shown(system: System, login: tuple[str, str]) -> None:
    for path in ("/", "/tasks", "/broker", "/api/workers", "/api/tasks", "/api/task/types"):
        assert get(system, path, login=login).status_code == 401
        assert httpx.get(system.flower_url + path, timeout=30).status_code == 401


def posts() -> list[str]:
    """Return a path for each handler of Flower that answers a POST, except the one that reads a page of the table."""
    found = []
    for handler in handlers:
        pattern, kind = (handler.regex.pattern, handler.handler_class) if hasattr(handler, "regex") else handler[:2]
        if "post" in vars(kind) and inspect.getmodule(kind).__name__.startswith("flower.api"):  # type: ignore[union-attr]
            found.append(pattern.rstrip("$").replace("(.+)", "{name}"))
    return found


def test_there_are_calls_that_change_things() -> None:
    assert len(posts()) >= 14


@pytest.mark.parametrize("path", posts())
def test_every_call_that_would_change_a_worker_or_a_task_is_refused(system: System, path: str) -> None:
    (worker,) = get(system, "/api/workers?status=1").json()
    for name in (worker, "ostler.resume", tasks(system)[0]["uuid"]):
        answer = httpx.post(
            system.flower_url + path.format(name=name), auth=system.flower_login, json={"args": []}, timeout=30
        )
        assert answer.status_code == 403, answer.text
    assert system.children["worker-0"].running()


def test_what_it_saw_survives_its_restart(system: System) -> None:
    before = {task["uuid"] for task in tasks(system)}
    workers = get(system, "/api/workers?status=1").json()
    assert before
    assert system.children["flower"].stop(timeout=90) == 0

    system.children["flower"].start()

    assert before <= {task["uuid"] for task in tasks(system)}
    eventually(lambda: get(system, "/api/workers?status=1").json().keys() >= workers.keys(), within=240)


def test_it_does_not_start_open(system: System) -> None:
    child = system.children["flower"]
    child.stop(timeout=90)
    login = child.env.pop("OSTLER_FLOWER_BASIC_AUTH")  # type: ignore[union-attr]
    child.env["FLOWER_UNAUTHENTICATED_API"] = "true"  # type: ignore[index]
    child.start()
    assert child.wait(timeout=120) == 2
    assert "OSTLER_FLOWER_BASIC_AUTH: it is not set" in child.tail()

    child.env["OSTLER_FLOWER_WITHOUT_LOGIN"] = "true"  # type: ignore[index]
    child.start()
    assert get(system, "/tasks").status_code == 200
    answer = httpx.get(system.flower_url + "/api/tasks", timeout=30)
    assert answer.status_code == 401
    assert "access-control-allow-origin" not in answer.headers
    child.stop(timeout=90)
    child.env["OSTLER_FLOWER_BASIC_AUTH"] = login  # type: ignore[index]
    child.start()
    json.loads(get(system, "/api/tasks").text)
