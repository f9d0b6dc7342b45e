"""Events about a Pod that a job lost: they are read once, bounded and only shown, and nothing waits for them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from k8s_adapters.calls.client import Json
from models.claims import pod_ends
from models.db.engine import transaction
from ostler.errors import Forbidden, Retryable
from rules.claims.pod_ends import describe
from tasks.claims.pod_events import MOST_A_MINUTE, pod_events
from tasks.pools.watch_reports import pod_gone, pods_changed
from tests.integration.tasks.conftest import RUNNER, Stage

AT = "2026-11-23T12:03:04+00:00"


def uid_of(stage: Stage, pod: str) -> str:
    return stage.pods()[pod].uid


def delete(stage: Stage, pod: str) -> None:
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")


def write(stage: Stage, pod: str, uid: str, reason: str, note: str, *, by: str) -> None:
    """Write an Event as another component."""
    body: Json = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2026-11-23T12:03:04.000000Z",
        "metadata": {"name": f"{pod}.{reason.lower()}", "namespace": stage.namespace},
        "reportingController": by,
        "reportingInstance": f"{by}-1",
        "action": reason,
        "reason": reason,
        "type": "Normal",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": stage.namespace, "uid": uid},
        "note": note,
    }
    stage.kube.request("POST", f"/apis/events.k8s.io/v1/namespaces/{stage.namespace}/events", body=body)


def lose(stage: Stage, pod: str) -> str:
    """Let the Pod of an executing claim be deleted, report it as the watch, and return the UID of the Pod."""
    stage.job(7, state="running")
    stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    uid = uid_of(stage, pod)
    delete(stage, pod)
    hint(stage, uid)
    return uid


def hint(stage: Stage, uid: str) -> None:
    """Send the hint of the watch, and run the worker that ends the claim."""
    endings = {uid: {"deletion_at": AT, "deleted_first": True, "reason": None, "runner_exit_code": None}}
    pods_changed.run(namespace=stage.namespace, gone=[uid], endings=endings)
    for message in stage.outbox.take("ostler.pod_gone"):
        pod_gone.run(**message)


def read(stage: Stage) -> int:
    """Run the requested reads, and return their number."""
    messages = stage.outbox.take("ostler.pod_events")
    for message in messages:
        pod_events.run(**message)
    return len(messages)


def told(stage: Stage, uid: str) -> str | None:
    return describe(transaction(stage.rt.engine, lambda db: pod_ends.read(db, uid)))


def count_calls(stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[str]:
    """Record the calls to Events from now on, which are short and are not repeated. With `error` they fail."""
    calls: list[str] = []
    real = stage.kube.request

    def request(method: str, path: str, **more: Any) -> Json:
        if path.endswith("/events"):
            assert (more["policy"].attempts, more["policy"].deadline) == (1, 2.0)
            calls.append(method)
            if error is not None:
                raise error
        return real(method, path, **more)

    monkeypatch.setattr(stage.rt.kube, "request", request)
    return calls


def test_pod_that_the_cluster_autoscaler_removes_is_told_with_its_words(stage: Stage, pod: str) -> None:
    uid = uid_of(stage, pod)
    write(stage, pod, uid, "Killing", "Stopping container runner", by="kubelet")
    write(stage, pod, uid, "ScaleDown", "deleting pod for\n node scale down", by="cluster-autoscaler")
    lose(stage, pod)

    assert read(stage) == 1

    assert told(stage, uid) == (
        "the Pod was deleted at 2026-11-23 12:03:04 UTC, by a client other than Ostler; "
        "event ScaleDown by cluster-autoscaler: deleting pod for node scale down"
    )


def test_claim_has_ended_before_events_are_read_and_they_are_read_once(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(stage, monkeypatch)
    uid = lose(stage, pod)
    (claim,) = stage.rows("SELECT end_reason FROM claims")
    assert (claim.end_reason, calls) == ("pod_gone", [])

    for _ in range(2):
        hint(stage, uid)
        read(stage)
        pod_events.run(pod_uid=uid)

    assert calls == ["GET"]


@pytest.mark.parametrize("error", [Forbidden("no"), Retryable("away")])
def test_list_that_fails_is_tried_once_and_changes_nothing(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    uid = lose(stage, pod)
    calls = count_calls(stage, monkeypatch, error)
    before = told(stage, uid)

    assert read(stage) == 1

    assert (calls, told(stage, uid)) == (["GET"], before)
    assert stage.outbox.take("ostler.pod_events") == []


def test_row_that_is_locked_is_left_out(stage: Stage, pod: str) -> None:
    uid = uid_of(stage, pod)
    write(stage, pod, uid, "Evicted", "The node was low on resource: memory", by="kubelet")
    lose(stage, pod)
    with stage.rt.engine.begin() as other:
        other.execute(text("SELECT FROM runner_pods WHERE uid = :uid FOR UPDATE"), {"uid": uid})
        read(stage)
    assert "Evicted" not in str(told(stage, uid))


def test_no_more_than_a_few_a_minute_are_read(stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = lose(stage, pod)
    calls = count_calls(stage, monkeypatch)
    stage.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at, gone_at,
                                 events_read_at)
        SELECT p.id, p.namespace, 'lost-' || n, 'lost-' || n, 'a', 'h', now(), now(), now()
        FROM pools p, generate_series(1, :most) n
        """,
        most=MOST_A_MINUTE,
    )
    pod_events.run(pod_uid=uid)
    assert calls == []
    stage.rows("UPDATE runner_pods SET events_read_at = now() - interval '61 s' WHERE name = 'lost-1'")
    pod_events.run(pod_uid=uid)
    assert calls == ["GET"]


@pytest.mark.parametrize(("ended_after", "asked"), [(3600, 1), (-5, 0), (0, 0)])
def test_pod_that_was_deleted_before_github_ended_its_claim_is_asked_about(
    stage: Stage, pod: str, ended_after: int, asked: int
) -> None:
    """The webhook `completed` can end the claim before the Pod is seen gone. The Pod is then deleted anyway."""
    stage.job(7, state="completed")
    stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    stage.rows(
        "UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = CAST(:at AS timestamptz) "
        "+ make_interval(secs => :after)",
        at=AT,
        after=ended_after,
    )
    uid = uid_of(stage, pod)
    delete(stage, pod)

    hint(stage, uid)

    assert len(stage.outbox.take("ostler.pod_events")) == asked


def test_nothing_is_asked_about_a_pod_that_ostler_retired(stage: Stage, pod: str) -> None:
    retire = stage.retire_claim(pod)
    stage.rows("UPDATE claims SET ended_at = now(), state = 'ended', end_reason = 'retired' WHERE id = :id", id=retire)
    stage.rows("UPDATE claims SET created_at = CAST(:at AS timestamptz) WHERE id = :id", at=AT, id=retire)
    assert asked_about_ended(stage, pod, "pod_spent") == 0


@pytest.mark.parametrize(("reason", "asked"), [("Completed", 0), ("Error", 1)])
def test_nothing_is_asked_about_a_pod_whose_runner_ended_well(stage: Stage, pod: str, reason: str, asked: int) -> None:
    stage.rows("UPDATE runner_pods SET exit_reason = :reason WHERE name = :pod", reason=reason, pod=pod)
    assert asked_about_ended(stage, pod, "pod_spent") == asked


def asked_about_ended(stage: Stage, pod: str, end_reason: str) -> int:
    """Let the Pod of an ended claim be seen gone, and return the number of Pods whose Events must be read."""
    stage.job(7, state="completed")
    stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    stage.rows(
        "UPDATE claims SET state = 'ended', end_reason = :why, ended_at = now() WHERE job_id = 7", why=end_reason
    )
    uid = uid_of(stage, pod)
    delete(stage, pod)
    hint(stage, uid)
    return len(stage.outbox.take("ostler.pod_events"))


def test_nothing_is_asked_about_a_pod_that_no_job_had(stage: Stage, pod: str) -> None:
    uid = uid_of(stage, pod)
    delete(stage, pod)
    hint(stage, uid)
    pod_events.run(pod_uid=uid)
    assert stage.outbox.take("ostler.pod_events") == []
    assert stage.rows("SELECT 1 FROM runner_pods WHERE events_read_at IS NOT NULL") == []
