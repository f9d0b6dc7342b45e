"""Pods that wait for another program: scheduling gates before the start, and finalizers after the end."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, Json, object_path
from k8s_adapters.runners.pods import list_pods
from models.browse.jobs import job_story
from models.db.engine import transaction
from ostler.clock import utcnow
from rules.waiting.jobs import explain
from tasks.pools import report
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.embedded import embedded, proxy
from tests.integration.tasks.pools.fleet import beats, condition, kept, new_tick, polls, reasons, spec, the_pool

__all__ = ["embedded", "proxy"]

GATE = "kueue.example/admission"


@pytest.fixture
def gating(embedded: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each new Pod a scheduling gate, as a mutating admission webhook does."""
    request = embedded.rt.kube.request

    def gated(method: str, path: str, **more: Any) -> Json:
        if (method, path) == ("POST", object_path("pods", namespace=embedded.namespace)):
            more["body"]["spec"]["schedulingGates"] = [{"name": GATE}]
        return request(method, path, **more)

    monkeypatch.setattr(embedded.rt.kube, "request", gated)


def pool(stage: Stage, *, timeout: str) -> None:
    stage.pool(replicas=2, provisioning={"startTimeout": timeout})


def patch(stage: Stage, name: str, **body: object) -> None:
    path = object_path("pods", namespace=stage.namespace, name=name)
    stage.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@pytest.mark.usefixtures("gating")
def test_gated_pod_waits_beyond_the_start_timeout_and_the_condition_names_the_gate(embedded: Stage) -> None:
    beats(embedded)
    pool(embedded, timeout="0s")
    for _ in range(4):
        kept(embedded)
        new_tick(embedded)

    assert len(embedded.pods()) == 2
    assert (reasons(embedded), the_pool(embedded).failed_starts) == ({}, 0)
    for kind in ("Ready", "Degraded"):
        found = condition(embedded, kind)
        assert (found["status"], found["reason"]) == ("False", "PodsGated")
        assert found["message"].startswith("Pods wait until another program removes their scheduling gates (2 Pods, ")
        assert found["message"].endswith(f"Z: {GATE})")
    embedded.job(7, state="queued")
    story = transaction(embedded.rt.engine, lambda db: job_story(db, 7, timings=embedded.rt.timings, now=utcnow()))
    assert story is not None
    assert GATE in explain(story.facts).summary


@pytest.mark.usefixtures("gating")
def test_start_timeout_begins_when_the_gate_is_removed(embedded: Stage) -> None:
    beats(embedded)
    pool(embedded, timeout="300s")
    kept(embedded)
    kept(embedded)
    (gated,) = embedded.rows("SELECT count(*) AS many FROM runner_pods WHERE gated_at > now() - interval '1 min'")
    assert gated.many == 2
    first = min(embedded.pods())
    patch(embedded, first, spec={"schedulingGates": None})
    kept(embedded)
    assert reasons(embedded) == {}

    spec(embedded, provisioning={"startTimeout": "0s"})
    kept(embedded)
    assert set(reasons(embedded)) == {first}  # the other Pod still has its gate


def test_pods_that_a_foreign_finalizer_keeps_are_named_with_count_and_age(
    embedded: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.pool(replicas=2)
    kept(embedded)
    polls(embedded)
    for name in sorted(embedded.pods()):
        patch(embedded, name, metadata={"finalizers": ["audit.example/hold"]})
        embedded.finish(name)
    kept(embedded)
    kept(embedded)
    assert condition(embedded, "Degraded")["reason"] == "AsExpected"  # the Pods were deleted a moment ago

    monkeypatch.setattr(report, "HELD_SECONDS", -1)
    found = condition(embedded, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "FinalizersRemain")
    assert found["message"].startswith("Deleted Pods stay because of finalizers of another program (2 Pods, the oldest")
    assert "Z: audit.example/hold): repair this program" in found["message"]

    for pod in list_pods(embedded.kube, namespace=embedded.namespace):
        if pod.held_by:
            patch(embedded, pod.name, metadata={"finalizers": None})
    assert condition(embedded, "Degraded")["reason"] == "AsExpected"
