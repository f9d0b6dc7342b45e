"""Writes to the API server that keep failing are named in the status of the pool, and end with the first success."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from k8s_adapters.calls.client import object_path
from k8s_adapters.pools.pools import delete_pool, get_pool
from lab.faults.fault import Fault
from lab.faults.proxy import FaultProxy
from models.browse.jobs import job_story
from models.db.engine import transaction
from ostler.clock import utcnow
from ostler.errors import Gone, UpstreamError
from rules.pools.failing_calls import REPEATED
from rules.waiting.jobs import explain
from tasks.claims.retire import retire
from tasks.pools.autoscale import autoscale
from tasks.worker import base
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.embedded import WEBHOOK, answers, embedded, proxy
from tests.integration.tasks.pools.fleet import condition, kept, new_tick, polls, spec, status, the_pool
from tests.waiting import eventually

__all__ = ["embedded", "proxy"]

INTERNAL = f"Internal error occurred: {WEBHOOK}: no endpoints available"
CREATE_POD: dict[str, Any] = {"method": "POST", "path": ".*/pods"}


def rounds(stage: Stage, count: int = REPEATED) -> None:
    for _ in range(count):
        stage.rows("UPDATE pools SET status_at = NULL")
        with suppress(UpstreamError):  # the task fails too if the finalizer cannot be removed
            kept(stage)
        new_tick(stage)


def conditions(stage: Stage) -> dict[str, tuple[str, str, str]]:
    """Return the conditions as they are written, by type."""
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in status(stage)["conditions"]}


def warnings(stage: Stage, reason: str) -> set[str]:
    return {note for _, kind, said, note in stage.rt.events.told if (kind, said) == ("Warning", reason)}


def test_failing_webhook_is_named_after_three_reconciles_and_until_a_pod_exists(
    embedded: Stage, proxy: FaultProxy
) -> None:
    proxy.add(answers(500, INTERNAL, **CREATE_POD))
    embedded.pool(replicas=2)

    rounds(embedded, REPEATED - 1)
    assert conditions(embedded)["Degraded"][1] == "AsExpected"
    rounds(embedded, 1)

    degraded, reason, message = conditions(embedded)["Degraded"]
    assert (degraded, reason) == ("True", "FailedCreate")
    assert message.startswith("Calls to create pods have failed since 20")
    assert message.endswith(f"Z: {INTERNAL}")
    assert conditions(embedded)["Ready"][:2] == ("False", "PodsMissing")
    assert warnings(embedded, "FailedCreate") == {message}
    row = the_pool(embedded)
    assert (row.failed_starts, row.start_trouble, row.create_after) == (0, None, None)
    embedded.job(7, state="queued")
    story = transaction(embedded.rt.engine, lambda db: job_story(db, 7, timings=embedded.rt.timings, now=utcnow()))
    assert story is not None
    assert WEBHOOK in explain(story.facts).summary

    proxy.clear()
    rounds(embedded, 1)
    assert len(embedded.pods()) == 2
    assert conditions(embedded)["Degraded"] == ("False", "AsExpected", "No problem detected")
    assert the_pool(embedded).failing_calls is None


def test_denied_request_stays_a_refusal(embedded: Stage, proxy: FaultProxy) -> None:
    said = 'admission webhook "policy.example" denied the request: no'
    proxy.add(answers(400, said, **CREATE_POD))
    embedded.pool(replicas=1)

    rounds(embedded)

    assert conditions(embedded)["Degraded"] == ("True", "PodRefused", f"The API server refuses the Pods: {said}")
    assert the_pool(embedded).failed_starts > 0
    assert the_pool(embedded).failing_calls is None


def test_status_names_a_webhook_that_answers_too_late(
    embedded: Stage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "DEADLINE", 5.0)
    proxy.add(answers(500, INTERNAL, **CREATE_POD, delay_seconds=1.2))
    embedded.pool(replicas=1)

    rounds(embedded)

    assert INTERNAL in conditions(embedded)["Degraded"][2]


def over(stage: Stage) -> None:
    """Let a Pod end without a claim, so that the reconciler deletes it."""
    polls(stage)
    stage.finish(min(stage.pods()))


def limited(stage: Stage) -> None:
    """Let a busy Pod need a deadline."""
    polls(stage)
    name = min(stage.pods())
    stage.job(7)
    stage.claim(name, job_id=7, state="executing")
    stage.execute_job(name)
    path = object_path("pods", namespace=stage.namespace, name=name)
    body = {"status": {"startTime": f"{utcnow():%FT%TZ}"}}
    stage.kube.request("PATCH", f"{path}/status", body=body, content_type="application/merge-patch+json")
    spec(stage, maxJobDuration="1h")


def leaving(stage: Stage) -> None:
    """Delete a pool without Pods, so that the reconciler removes its finalizer."""
    pool = get_pool(stage.kube, namespace=stage.namespace, name="small")
    assert pool is not None
    delete_pool(stage.kube, namespace=stage.namespace, name="small")


def nothing(_: Stage) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("method", "path", "reason", "call", "replicas", "prepare"),
    [
        ("POST", ".*/serviceaccounts", "FailedCreate", "create serviceaccounts", 1, None),
        ("POST", ".*/configmaps", "FailedCreate", "create configmaps", 1, None),
        ("PATCH", ".*/runnerpools/small", "FailedUpdate", "update runnerpools", 1, None),
        ("PUT", ".*/runnerpools/small", "FailedUpdate", "update runnerpools", 0, leaving),
        ("PATCH", ".*/runnerpools/small/status", "FailedUpdate", "update runnerpools/status", 1, nothing),
        ("PATCH", ".*/pods/[^/]+", "FailedUpdate", "update pods", 1, limited),
        ("DELETE", ".*/pods/[^/]+", "FailedDelete", "delete pods", 1, over),
    ],
)
def test_each_write_of_the_reconciler_that_keeps_failing_is_named(
    embedded: Stage,
    proxy: FaultProxy,
    method: str,
    path: str,
    reason: str,
    call: str,
    replicas: int,
    prepare: Any,
) -> None:
    if prepare is None:
        proxy.add(answers(500, INTERNAL, method=method, path=path))
    embedded.pool(replicas=replicas)
    if prepare is not None:
        kept(embedded)
        prepare(embedded)
        proxy.add(answers(500, INTERNAL, method=method, path=path))

    rounds(embedded, REPEATED + 1)

    (note,) = warnings(embedded, reason)
    assert note.startswith(f"Calls to {call} have failed since 20")
    assert note.endswith(INTERNAL)
    if not path.endswith("status"):  # the status cannot say that it cannot be written
        assert note in conditions(embedded)["Degraded"][2]
    proxy.clear()
    rounds(embedded, 2)
    assert the_pool(embedded).failing_calls is None


def test_retirement_that_cannot_delete_its_pod_is_named(embedded: Stage, proxy: FaultProxy) -> None:
    embedded.pool(replicas=1)
    kept(embedded)
    claim = embedded.retire_claim(min(embedded.pods()))
    proxy.add(answers(500, INTERNAL, method="DELETE", path=".*/pods/[^/]+"))

    for _ in range(REPEATED):
        embedded.rows("UPDATE claims SET leased_until = NULL, due_at = now() WHERE id = :id", id=claim)
        with pytest.raises(UpstreamError):
            retire.run(claim_id=claim)
    rounds(embedded, 1)

    assert conditions(embedded)["Degraded"][1] == "FailedDelete"
    assert conditions(embedded)["Degraded"][2].startswith("Calls to delete pods have failed since 20")
    proxy.clear()
    embedded.rows("UPDATE claims SET leased_until = NULL, due_at = now() WHERE id = :id", id=claim)
    retire.run(claim_id=claim)
    assert embedded.see(claim).ended_at is not None


def test_scaling_that_keeps_failing_is_named_until_it_succeeds(embedded: Stage, proxy: FaultProxy) -> None:
    embedded.pool(replicas=0, autoscaling={"enabled": True, "minWarm": 2, "maxReplicas": 5})
    kept(embedded)
    fault = answers(500, INTERNAL, method="PATCH", path=".*/runnerpools/small")
    proxy.add(fault)

    for _ in range(REPEATED):
        autoscale.run()
    rounds(embedded, 1)

    assert conditions(embedded)["Degraded"][1] == "FailedUpdate"
    assert INTERNAL in conditions(embedded)["Degraded"][2]
    proxy.clear()
    autoscale.run()
    assert the_pool(embedded).failing_calls is None


def test_lost_connection_is_named_without_a_text_of_the_server(embedded: Stage, proxy: FaultProxy) -> None:
    proxy.add(Fault(kind="reset_before", method_regex="POST", path_regex=".*/pods"))
    embedded.pool(replicas=1)

    rounds(embedded)

    assert conditions(embedded)["Degraded"][2].endswith("Z: the server did not answer")


def test_condition_of_a_failing_call_shows_no_credential(
    embedded: Stage, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    token = "ghs_" + 36 * "x"
    said = f'Internal error occurred: cannot decode {token}, error found in #10 byte of ...|"value":"s3cret"|...'
    proxy.add(answers(500, said, **CREATE_POD))
    embedded.pool(replicas=1)

    with caplog.at_level(logging.DEBUG):
        rounds(embedded)

    shown = str([condition(embedded, "Degraded"), embedded.rt.events.told, the_pool(embedded), caplog.text])
    assert "cannot decode ***" in shown
    assert token not in shown
    assert "s3cret" not in shown


WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture
def webhook(stage: Stage) -> Iterator[Callable[[], None]]:
    """Add an admission webhook for the Pods of pool `small` that never answers. The value removes the webhook."""
    name = f"{stage.namespace}.example"
    body = {
        "name": "policy.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 1,
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}},
        "objectSelector": {"matchLabels": {"ostler.dev/pool": "small"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    stage.kube.request("POST", WEBHOOKS, body={"metadata": {"name": name}, "webhooks": [body]})

    def remove() -> None:
        with suppress(Gone):
            stage.kube.request("DELETE", f"{WEBHOOKS}/{name}")

    yield remove
    remove()


@pytest.mark.cluster
@pytest.mark.parametrize("workload", ["Pod", "StatefulSet"])
def test_real_webhook_is_named_and_other_pools_go_on(stage: Stage, webhook: Callable[[], None], workload: str) -> None:
    stage.pool(replicas=1, workload=workload)
    stage.pool("other", replicas=1)

    def degraded() -> str:
        rounds(stage, 1)
        told = next(each for each in status(stage)["conditions"] if each["type"] == "Degraded")
        return f"{told['reason']}: {told['message']}"

    eventually(lambda: 'failed calling webhook "policy.example.com"' in degraded(), within=90)
    assert degraded().startswith("FailedCreate: Calls to create pods have failed since ")
    assert {pod.pool for pod in stage.pods().values()} == {"other"}
    assert {row.failed_starts for row in stage.rows("SELECT failed_starts FROM pools")} == {0}

    webhook()
    eventually(lambda: degraded() == "AsExpected: No problem detected", within=90)

    def both() -> bool:
        kept(stage)
        return len(stage.pods()) == 2

    eventually(both)
