"""Retries of every kind of call: each status and each network failure, through the one retry layer."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ProtocolError, ReadTimeoutError

from container_hooks.cluster import (
    Made,
    create_docker_secret,
    create_env_secret,
    create_job_pod,
    create_step_pod,
    delete,
    read,
)
from container_hooks.ports import World
from container_hooks.starts import wait_until_ready
from k8s_adapters.cluster.access import Right, may
from ostler.errors import ConfigurationError, UpstreamError
from rules.upstream.retry import HOOKS, RETRIED_STATUSES
from tests.unit.container_hooks.test_cluster import BODY, LOGIN
from tests.unit.container_hooks.worlds import UID, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def _made(world: World, kind: str) -> Made:
    found = world.client.request("GET", f"/api/v1/namespaces/runners/{kind}/x")
    return Made(kind, "x", found["metadata"]["uid"])


CALLS: dict[str, tuple[str, str, Callable[[World], object]]] = {
    "create the job's Pod": ("POST", "pods", lambda world: create_job_pod(world, BODY, nonce="n")),
    "create a step's Pod": ("POST", "pods", lambda world: create_step_pod(world, BODY, nonce="n")),
    "create a login": ("POST", "secrets", lambda world: create_docker_secret(world, LOGIN, nonce="n")),
    "create an environment": ("POST", "secrets", lambda world: create_env_secret(world, {"a": "b"}, nonce="n")),
    "read a Pod": ("GET", "pods", lambda world: read(world, "pods", "x")),
    "read a Secret": ("GET", "secrets", lambda world: read(world, "secrets", "x")),
    "delete a Pod": ("DELETE", "pods", lambda world: delete(world, _made(world, "pods"))),
    "delete a Secret": ("DELETE", "secrets", lambda world: delete(world, _made(world, "secrets"))),
    "wait for a Pod": (
        "GET",
        "pods",
        lambda world: wait_until_ready(world, Made("pods", "x", _uid(world)), images={}, patience={}),
    ),
    "check a permission": (
        "POST",
        "reviews",
        lambda world: may(world.client, Right("get", "pods"), namespace="runners"),
    ),
}


def _uid(world: World) -> str:
    return _made(world, "pods").uid


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


POOL: Any = object()
NETWORK: dict[str, BaseException] = {
    "refused": caused(NewConnectionError(POOL, "x"), ConnectionRefusedError(111, "refused")),
    "reset": ProtocolError("Connection aborted.", ConnectionResetError(104, "reset")),
    "broken pipe": caused(ProtocolError("x"), BrokenPipeError(32, "pipe")),
    "read timed out": ReadTimeoutError(POOL, "/", "timed out"),
    "connect timed out": ConnectTimeoutError("timed out"),
    "network unreachable": caused(NewConnectionError(POOL, "x"), OSError(101, "unreachable")),
    "host unreachable": caused(NewConnectionError(POOL, "x"), OSError(113, "no route")),
    "name": caused(NewConnectionError(POOL, "x"), socket.gaierror(-3, "again")),
    "TLS": caused(ProtocolError("x"), ssl.SSLError(1, "handshake")),
    "reset behind another error": caused(RuntimeError("x"), caused(ValueError("y"), ConnectionResetError(104, "z"))),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", sorted(RETRIED_STATUSES))
def test_each_passing_status_is_retried_in_each_call(stage: Stage, call: str, status: int) -> None:
    method, kind, do = CALLS[call]
    _prepare(stage)
    stage.api.fail(method, kind, status, status, status)

    do(stage.world())

    assert len([each for each in stage.api.clock.slept if each >= 0.75]) == 3


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("failure", NETWORK)
def test_each_network_failure_is_retried_in_each_call(stage: Stage, call: str, failure: str) -> None:
    method, kind, do = CALLS[call]
    _prepare(stage)
    stage.api.fail(method, kind, NETWORK[failure], NETWORK[failure])

    do(stage.world())

    assert stage.api.clock.slept[:2] == [1.0, 3.5]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [400, 401, 403, 422])
def test_each_final_status_is_asked_for_once_in_each_call(stage: Stage, call: str, status: int) -> None:
    method, kind, do = CALLS[call]
    _prepare(stage)
    stage.api.fail(method, kind, status)
    renews = pytest.raises((UpstreamError, ConfigurationError))
    with renews:
        do(stage.world())
    assert stage.api.clock.slept == []


@pytest.mark.parametrize("call", [call for call in CALLS if not call.startswith("wait")])
def test_fourth_failure_is_the_last(stage: Stage, call: str) -> None:
    method, kind, do = CALLS[call]
    _prepare(stage)
    stage.api.fail(method, kind, *[503] * 5)
    with pytest.raises(UpstreamError):
        do(stage.world())
    assert len(stage.api.faults) == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("header", "waited"), [("7", 7.0), ("0", 0.0), ("600", 30.0), ("soon", 1.0)])
def test_server_that_names_a_time_is_waited_for(stage: Stage, status: int, header: str, waited: float) -> None:
    stage.api.fail("POST", "pods", status, Retry_After=header)
    create_job_pod(stage.world(), BODY, nonce="n")
    assert stage.api.clock.slept == [waited]


def test_time_may_be_a_date(stage: Stage) -> None:
    stage.api.fail("POST", "pods", 429, Retry_After="Wed, 25 Nov 2099 00:00:00 GMT")
    create_job_pod(stage.world(), BODY, nonce="n")
    assert stage.api.clock.slept == [30.0]


def test_four_attempts_outlast_an_outage_of_twelve_seconds() -> None:
    shortest = sum(HOOKS.base * HOOKS.growth**n for n in range(HOOKS.attempts - 1)) * HOOKS.jitter[0]
    assert shortest > 12
    assert HOOKS.deadline is not None
    assert HOOKS.deadline > 3 * 30


def test_no_call_exceeds_the_deadline(stage: Stage) -> None:
    def slow() -> None:
        stage.api.clock.now += 70

    for _ in range(4):
        stage.api.before("POST", "pods", slow)
    stage.api.fail("POST", "pods", *[503] * 4)
    with pytest.raises(UpstreamError, match="deadline"):
        create_job_pod(stage.world(), BODY, nonce="n")
    assert len(stage.api.faults) == 2


def test_wait_outlasts_an_api_server_that_is_replaced(stage: Stage) -> None:
    _prepare(stage)
    world = stage.world()
    uid = _uid(world)
    stage.api.fail("GET", "pods", *[ConnectionRefusedError(111, "refused")] * 20)
    assert wait_until_ready(world, Made("pods", "x", uid), images={}, patience={})["metadata"]["uid"] == uid


def _prepare(stage: Stage) -> None:
    for kind in ("pods", "secrets"):
        stage.api.put(kind, "x", owner=UID)
