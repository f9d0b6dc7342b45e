"""Annotations with the job of a Pod: off by default, right after GitHub changed its mind, and harmless if they fail."""

from __future__ import annotations

import pytest

from k8s_adapters.calls.client import Json
from k8s_adapters.names import JOB_ANNOTATIONS
from lab.faults import FaultProxy
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.embedded import answers, embedded, proxy
from tests.integration.tasks.pools.fleet import kept, polls

__all__ = ["embedded", "proxy"]


@pytest.fixture
def busy(embedded: Stage) -> str:
    """A Pod whose runner executes job 1."""
    embedded.with_settings(pod_job_annotations=True)
    embedded.pool(replicas=1)
    kept(embedded)
    polls(embedded)
    (name,) = embedded.pods()
    for job_id in (1, 2):
        embedded.job(job_id)
        embedded.rows(
            "UPDATE jobs SET workflow_name = 'ci', name = :name WHERE id = :id", id=job_id, name=f"test {job_id}"
        )
    claim_id = embedded.claim(name, job_id=1, state="executing")
    runs(embedded, claim_id, 1)
    return name


def runs(stage: Stage, claim_id: int, job_id: int) -> None:
    """Record that the runner of a claim executes a job, and no other."""
    stage.rows("DELETE FROM executions")
    stage.rows(
        "INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at) "
        "VALUES (:job, 'r', :claim, (SELECT account_id FROM jobs WHERE id = :job), 1, 1, now())",
        job=job_id,
        claim=claim_id,
    )


def shown(stage: Stage, name: str) -> list[str | None]:
    pod: Json = stage.kube.request("GET", f"/api/v1/namespaces/{stage.namespace}/pods/{name}")
    return [pod["metadata"]["annotations"].get(key) for key in JOB_ANNOTATIONS]


def test_pod_names_the_job_that_github_runs_on_it(embedded: Stage, busy: str) -> None:
    kept(embedded)
    assert shown(embedded, busy)[0::2] == ["1", "ci"]
    assert shown(embedded, busy)[3] == "test 1"


def test_pod_names_the_other_job_after_github_gave_it_one(embedded: Stage, busy: str) -> None:
    kept(embedded)
    (claim,) = embedded.rows("SELECT id FROM claims")
    runs(embedded, claim.id, 2)
    kept(embedded)
    assert (shown(embedded, busy)[0], shown(embedded, busy)[3]) == ("2", "test 2")


def test_nothing_is_written_by_default(embedded: Stage, busy: str) -> None:
    embedded.with_settings(pod_job_annotations=False)
    kept(embedded)
    assert shown(embedded, busy) == [None] * 4


def test_pod_that_is_right_is_not_written_again(embedded: Stage, busy: str) -> None:
    kept(embedded)
    before = version(embedded, busy)
    kept(embedded)
    assert version(embedded, busy) == before


def version(stage: Stage, name: str) -> str:
    return str(
        stage.kube.request("GET", f"/api/v1/namespaces/{stage.namespace}/pods/{name}")["metadata"]["resourceVersion"]
    )


def test_names_of_strangers_are_cut_and_made_harmless(embedded: Stage, busy: str) -> None:
    embedded.rows("UPDATE jobs SET name = :name WHERE id = 1", name="a\u202eb\n" + "x" * 5000)
    kept(embedded)
    name = str(shown(embedded, busy)[3])
    assert len(name) == 200
    assert not {"\u202e", "\n"} & set(name)


@pytest.mark.parametrize("status", [403, 409, 422, 503])
def test_refused_annotation_is_no_problem_of_the_pool(
    embedded: Stage, busy: str, proxy: FaultProxy, status: int
) -> None:
    proxy.add(answers(status, "no", method="PATCH", path=f".*/pods/{busy}"))
    kept(embedded)
    assert shown(embedded, busy) == [None] * 4
    (pool,) = embedded.rows("SELECT * FROM pools")
    assert not pool.failing_calls
    assert [row.state for row in embedded.rows("SELECT state FROM claims")] == ["executing"]
