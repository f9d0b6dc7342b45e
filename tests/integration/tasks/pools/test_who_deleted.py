"""Explanations name the client that deleted a Pod by records, whatever the clock of the API server shows."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from models.browse.pods import pod_story
from models.claims import pod_ends
from models.db.engine import transaction
from ostler.clock import utcnow
from ostler.task_names import RETIRE
from rules.claims.pod_ends import describe
from tasks.pools.watch_reports import pods_changed
from tests.integration.tasks.conftest import RUNNER, Stage
from tests.integration.tasks.pools.fleet import kept, polls, retired

ACCUSED = "by a client other than Ostler"


@pytest.fixture
def pod(stage: Stage) -> str:
    """The name of the only Pod of a pool."""
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    (name,) = stage.pods()
    return name


def uid_of(stage: Stage, name: str) -> str:
    (row,) = stage.rows("SELECT uid FROM runner_pods WHERE name = :name", name=name)
    return str(row.uid)


def told(stage: Stage, name: str, *, deletion_at: datetime, deleted_first: bool | None) -> str:
    """Report the end of a Pod as the watch does, and return the explanation of the end."""
    uid = uid_of(stage, name)
    ending = {"deletion_at": deletion_at.isoformat(), "deleted_first": deleted_first}
    pods_changed.run(namespace=stage.namespace, gone=[uid], endings=json.loads(json.dumps({uid: ending})))
    story = transaction(stage.rt.engine, lambda db: pod_story(db, name))
    assert story is not None
    return describe(pod_ends.end_of(story.pod)) or ""


def test_spent_pod_is_deleted_by_the_reconciler_and_nobody_is_accused(stage: Stage, pod: str) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :c", c=claim)
    stage.finish(pod)
    kept(stage)
    assert pod not in stage.pods()

    at = utcnow() - timedelta(hours=1)
    assert told(stage, pod, deletion_at=at, deleted_first=False) == (
        f"the Pod has ended, and Ostler deleted it at {at:%Y-%m-%d %H:%M:%S} UTC"
    )


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_retired_pod_is_deleted_by_ostler_whatever_the_clock_shows(stage: Stage, pod: str, hours: int) -> None:
    stage.retire_claim(pod)
    for claim in stage.rows("SELECT id FROM claims WHERE purpose = 'retire'"):
        stage.outbox.send(RETIRE, claim_id=claim.id)
    retired(stage)
    assert pod not in stage.pods()

    at = utcnow() + timedelta(hours=hours)
    assert told(stage, pod, deletion_at=at, deleted_first=True) == (
        f"the Pod was deleted at {at:%Y-%m-%d %H:%M:%S} UTC, by Ostler, which retired it"
    )


def test_pod_that_another_client_was_deleting_is_not_claimed_by_ostler(stage: Stage, pod: str) -> None:
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{pod}"
    target = {"apiVersion": "v1", "kind": "Node", "name": "far"}
    stage.kube.request("POST", f"{path}/binding", body={"metadata": {"name": pod}, "target": target})
    stage.poll_on(pod)
    stage.kube.request("DELETE", path)  # a person; the kubelet does not end the Pod
    at = utcnow() - timedelta(minutes=5)
    stage.retire_claim(pod)
    for claim in stage.rows("SELECT id FROM claims WHERE purpose = 'retire'"):
        stage.outbox.send(RETIRE, claim_id=claim.id)
    retired(stage)

    assert ACCUSED in told(stage, pod, deletion_at=at, deleted_first=True)


def test_pod_of_a_pool_that_is_deleted_might_be_the_collectors(stage: Stage, pod: str) -> None:
    at = utcnow()
    stage.rows(
        "UPDATE pools SET draining = true, draining_since = date_trunc('second', CAST(:at AS timestamptz))", at=at
    )
    end = told(stage, pod, deletion_at=at, deleted_first=True)
    assert "by the garbage collector of Kubernetes or another client, while its pool was being deleted" in end
    earlier = "UPDATE pools SET draining_since = CAST(:at AS timestamptz) + interval '1 s'"
    stage.rows(earlier, at=at)
    assert ACCUSED in told(stage, pod, deletion_at=at, deleted_first=True)


def test_request_is_not_recorded_where_the_row_is_locked_and_nothing_waits(stage: Stage, pod: str) -> None:
    uid = uid_of(stage, pod)
    with stage.rt.engine.begin() as other:
        other.execute(text("SELECT FROM runner_pods WHERE uid = :uid FOR UPDATE"), {"uid": uid})
        transaction(stage.rt.engine, lambda db: pod_ends.record_request(db, uid, now=utcnow()))
    assert stage.rows("SELECT 1 FROM runner_pods WHERE deletion_sent_at IS NOT NULL") == []
    for _ in range(2):
        transaction(stage.rt.engine, lambda db: pod_ends.record_request(db, uid, now=utcnow()))
    assert len(stage.rows("SELECT 1 FROM runner_pods WHERE deletion_sent_at IS NOT NULL")) == 1
