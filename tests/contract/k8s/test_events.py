"""Events of pools and Pods on both API servers. A failure of the recorder has no effect on its caller."""

from __future__ import annotations

import secrets
import threading
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners import events
from k8s_adapters.runners.events import pod_of, pool_of
from ostler import telemetry
from ostler.errors import Forbidden, Retryable
from rules.pools.pool_spec import PoolSpec
from tasks.worker.cluster_events import MOST, Recorder

SPEC = {"image": "runner:1", "runnerLabels": ["linux"]}


def listed(client: KubeClient, namespace: str) -> list[Json]:
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    found: list[Json] = client.request("GET", path)["items"]
    return found


def count(outcome: str) -> float:
    return float(telemetry.KUBERNETES_EVENTS.labels(outcome)._value.get())


def test_events_of_a_pool_and_a_pod_are_what_describe_looks_for(admin: KubeClient, pytestconfig: pytest.Config) -> None:
    client = admin
    namespace = f"events-{secrets.token_hex(4)}"
    client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    pool: PoolSpec = create_pool(client, namespace=namespace, name="small", spec=SPEC)
    recorder = Recorder(client, who="worker:7")
    recorder.record(pool_of(namespace=namespace, name="small", uid=pool.uid), "Normal", "ScaledUp", "1 to 2")
    recorder.record(pod_of(namespace=namespace, name="small-1", uid="u-1"), "Warning", "Retired", "x" * 3000)
    recorder.flush()

    scaled, retired = sorted(listed(client, namespace), key=lambda each: str(each["regarding"]["kind"]), reverse=True)
    assert scaled["regarding"]["uid"] == pool.uid
    assert (scaled["reason"], scaled["note"], scaled["type"]) == ("ScaledUp", "1 to 2", "Normal")
    assert (scaled["reportingController"], scaled["reportingInstance"]) == ("ostler.dev/worker", "worker:7")
    assert (retired["regarding"]["name"], retired["type"], len(retired["note"])) == ("small-1", "Warning", 1024)
    if pytestconfig.getoption("cluster") == "real":  # what `kubectl describe` asks for
        query = {"fieldSelector": f"involvedObject.uid={pool.uid},involvedObject.kind=RunnerPool"}
        core = client.request("GET", f"/api/v1/namespaces/{namespace}/events", query=query)["items"]
        assert [each["message"] for each in core] == ["1 to 2"]


@pytest.mark.parametrize("error", [Forbidden("no"), Retryable("away")])
def test_an_event_that_cannot_be_written_is_counted_and_nothing_else(
    error: Exception,
) -> None:
    class Refusing:
        def request(self, *_: Any, **__: Any) -> Json:
            raise error

    before = count("failed")
    recorder = Recorder(cast("KubeClient", Refusing()), who="w")
    for number in range(2):
        recorder.record(pool_of(namespace="n", name="p", uid=str(number)), "Normal", "ScaledUp", "1 to 2")
        recorder.flush()
    assert count("failed") - before == 2


def test_a_server_that_hangs_delays_nobody_and_what_is_too_much_is_dropped() -> None:
    hang, begun = threading.Event(), threading.Event()

    class Hanging:
        def request(self, *_: Any, **__: Any) -> Json:
            begun.set()
            assert hang.wait(60)
            return {}

    clock = iter(float(1000 * number) for number in range(10_000))
    before = count("dropped")
    recorder = Recorder(cast("KubeClient", Hanging()), who="w", clock=lambda: next(clock))
    recorded = MOST + 20
    for number in range(recorded):
        recorder.record(pool_of(namespace="n", name="p", uid=str(number)), "Normal", "ScaledUp", "1 to 2")
    assert begun.wait(60)
    assert recorded - MOST - 1 <= count("dropped") - before <= recorded - MOST
    hang.set()
    recorder.flush()


def test_names_of_events_differ() -> None:
    about = pool_of(namespace="n", name="p", uid="u")
    event = events.EventNote(about, "Normal", "ScaledUp", "", datetime.now(UTC))
    one, two = (events.event_manifest(event, instance="w" * 500) for _ in range(2))
    assert one["metadata"]["name"] != two["metadata"]["name"]
    assert len(one["reportingInstance"]) == 128
