"""Pods that end before their job begins: the job is queued again within seconds, and the runner is removed."""

from __future__ import annotations

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, object_path
from ostler.timings import Timings
from tasks.pools import finished_pods
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub
from tests.integration.tasks.pools.embedded import embedded, proxy
from tests.integration.tasks.pools.fleet import condition, kept, polls

__all__ = ["embedded", "proxy"]


@pytest.fixture
def github(embedded: Stage) -> StubGitHub:
    stub = StubGitHub()
    embedded.rt.github = stub
    return stub


def offered(stage: Stage) -> str:
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    stage.job(7)
    (name,) = stage.pods()
    return name


def evicted(stage: Stage, name: str) -> None:
    """Write the status of a kubelet whose node has too little memory."""
    path = object_path("pods", namespace=stage.namespace, name=name)
    body = {"status": {"phase": "Failed", "reason": "Evicted", "containerStatuses": []}}
    stage.kube.request("PATCH", f"{path}/status", body=body, content_type=MERGE_PATCH)


@pytest.mark.parametrize("state", ["claimed", "minted"])
def test_job_of_a_pod_evicted_before_the_delivery_is_queued_again_at_once(
    embedded: Stage, github: StubGitHub, state: str
) -> None:
    name = offered(embedded)
    claim_id = embedded.claim(name, job_id=7, state=state, runner=RUNNER if state == "minted" else None)
    github.runner = "offline" if state == "minted" else None
    evicted(embedded, name)

    kept(embedded)
    embedded.released()

    seen = embedded.see(claim_id)
    assert (seen.state, seen.job_state) == ("ended", "queued")
    assert github.runner is None
    kept(embedded)
    assert len(embedded.pods()) == 1
    assert name not in embedded.pods()


def test_job_of_a_runner_that_exits_without_a_job_is_queued_again_within_seconds(
    embedded: Stage, github: StubGitHub
) -> None:
    name = offered(embedded)
    claim_id = embedded.claim(name, job_id=7, state="delivered", runner=RUNNER)
    github.runner = "offline"
    embedded.finish(name)  # exit code 0, two seconds after it listened

    kept(embedded)
    assert embedded.see(claim_id).state == "delivered"  # the webhooks of a short job might arrive now
    embedded.rows(
        "UPDATE runner_pods SET terminal_at = terminal_at - make_interval(secs => :s)", s=finished_pods.IDLE_SECONDS
    )
    kept(embedded)
    embedded.released()

    seen = embedded.see(claim_id)
    assert (seen.state, seen.job_state) == ("ended", "queued")
    assert github.deleted == [77]
    (failure,) = embedded.rows("SELECT exit_code, job_id FROM runner_failures")
    assert (failure.exit_code, failure.job_id) == (0, 7)
    assert condition(embedded, "Degraded")["reason"] == "AsExpected"


def test_claim_that_executes_waits_for_the_webhook(embedded: Stage, github: StubGitHub) -> None:
    name = offered(embedded)
    claim_id = embedded.claim(name, job_id=7, state="executing", runner=RUNNER)
    embedded.finish(name)
    kept(embedded)
    embedded.rows(
        "UPDATE runner_pods SET terminal_at = terminal_at - make_interval(secs => :s)", s=Timings().spent_after - 5
    )
    kept(embedded)
    assert (embedded.see(claim_id).state, github.optional) == ("executing", [])
