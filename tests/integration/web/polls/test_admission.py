"""Pods that may poll, and the answers to all other callers."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from k8s_adapters.runners.identity import KeyUnknown, TokenRejected
from ostler.clock import utcnow
from ostler.errors import Retryable
from rules.claims.pod_view import PodView
from tests.integration.web.polls.stage import NAMESPACE, Stage
from tests.waiting import eventually


def seen(name: str, uid: str, **changes: Any) -> PodView:
    values: dict[str, Any] = {
        "name": name,
        "uid": uid,
        "namespace": NAMESPACE,
        "pool": "small",
        "phase": "Running",
        "reason": None,
        "node": "n",
        "terminating": False,
        "owner": None,
        "stamp": "0.0",
        "digest": "digest",
        "attempt": "attempt",
        "created_at": utcnow(),
        "poller_exit_code": None,
        "runner_ready": False,
        "runner_exit_code": None,
        "runner_exit_signal": None,
        "runner_exit_reason": None,
        "unschedulable": False,
        "waiting_reason": None,
    }
    return PodView(**(values | changes))


def stranger(stage: Stage) -> tuple[str, str]:
    """Return name and UID of a Pod without a row; its token is `stranger`."""
    uid = str(uuid.uuid4())
    name = f"small-{uid[:8]}"
    stage.cluster.tokens["stranger"] = stage.identity(name, uid)
    return name, uid


@pytest.mark.parametrize(
    ("failure", "status"), [(TokenRejected("expired"), 401), (KeyUnknown("unknown"), 503)], ids=["bad", "away"]
)
def test_a_token_is_refused_only_when_it_could_be_judged(stage: Stage, failure: Exception, status: int) -> None:
    stage.cluster.tokens["bad"] = failure
    response = stage.start_web().poll("bad")
    assert response.status_code == status
    assert response.content == b""
    assert ("Retry-After" in response.headers) == (status == 503)


@pytest.mark.parametrize(
    "header",
    [
        {"Authorization": ""},
        {"Authorization": "Basic eDp5"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer " + "x" * 9000},
    ],
    ids=["empty", "basic", "bare", "long"],
)
def test_a_header_without_a_usable_token_is_401(stage: Stage, header: dict[str, str]) -> None:
    assert stage.start_web().poll("", headers=header).status_code == 401


@pytest.mark.parametrize("changes", [{"namespace": "elsewhere"}, {"service_account": "default"}])
def test_a_pod_that_is_not_a_runner_of_ours_is_403_and_learns_nothing(stage: Stage, changes: dict[str, str]) -> None:
    pod = stage.pod(stage.pool())
    stage.cluster.tokens[pod.token] = stage.identity(pod.name, pod.uid, **changes)
    response = stage.start_web().poll(pod.token)
    assert response.status_code == 403
    assert response.content == b""
    assert not stage.is_offered(pod)


def test_pod_of_the_second_namespace_gets_its_job(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    stage.execute("UPDATE pools SET namespace = 'elevated'")
    stage.execute("UPDATE runner_pods SET namespace = 'elevated'")
    stage.cluster.tokens[pod.token] = stage.identity(pod.name, pod.uid, namespace="elevated")
    stage.claim(pod)
    assert stage.start_web().poll(pod.token).status_code == 403
    assert stage.start_web(elevated_namespace="elevated").poll(pod.token).status_code == 200
    assert stage.scalar("SELECT state FROM claims") == "delivered"


def test_a_poll_that_comes_before_the_answer_to_the_creation_binds_the_uid(stage: Stage) -> None:
    pod = stage.pod(stage.pool(), bound=False)
    web = stage.start_web()
    web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    row = stage.execute("SELECT uid, first_polled_at, polled_at FROM runner_pods")[0]
    assert row.uid == pod.uid
    assert row.first_polled_at == row.polled_at
    assert row.polled_at is not None
    assert stage.cluster.looked_up == []


def test_the_time_of_a_poll_is_written_at_most_once_a_minute(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web(poll_hold_min=0.1, poll_hold_max=0.1)
    polled = "SELECT first_polled_at, polled_at FROM runner_pods"

    def poll() -> None:
        """Poll, and wait until its offer is written. The answer does not wait for the offer."""
        before = stage.scalar("SELECT max(until) FROM offers")
        web.poll(pod.token)
        eventually(lambda: stage.scalar("SELECT max(until) FROM offers") not in {None, before})

    poll()
    first = stage.execute(polled)[0]
    poll()
    assert stage.execute(polled)[0] == first
    stage.execute("UPDATE runner_pods SET polled_at = polled_at - interval '2 min'")
    poll()
    again = stage.execute(polled)[0]
    assert again.polled_at > first.polled_at
    assert again.first_polled_at == first.first_polled_at


def test_a_pod_without_a_row_gets_one_from_the_cluster(stage: Stage) -> None:
    pool_id = stage.pool()
    name, uid = stranger(stage)
    stage.cluster.pods[name] = seen(name, uid, stamp="4.2")
    web = stage.start_web()
    web.begin_poll("stranger")
    eventually(lambda: stage.scalar("SELECT count(*) FROM offers WHERE pod_uid = :uid", uid=uid) == 1)
    row = stage.execute("SELECT * FROM runner_pods WHERE uid = :uid", uid=uid)[0]
    assert (row.pool_id, row.name, row.template_hash, row.attempt_id) == (pool_id, name, "digest", "attempt")
    assert row.stamp_value == "4.2"
    assert row.first_polled_at is not None
    assert stage.cluster.looked_up == [name]


@pytest.mark.parametrize(
    ("found", "pool", "status"),
    [
        (None, "small", 403),
        ({"uid": "another"}, "small", 403),
        ({"pool": None}, "small", 403),
        ({"phase": "Succeeded"}, "small", 403),
        ({"pool": "unknown"}, "small", 403),
        ({"pool": "new"}, "small", 503),
        (Retryable("away"), "small", 503),
    ],
    ids=["no Pod", "another UID", "no label", "terminal", "no such pool", "pool without a row yet", "API away"],
)
def test_a_stranger_is_refused_only_when_it_could_be_judged(
    stage: Stage, found: dict[str, str] | Exception | None, pool: str, status: int
) -> None:
    stage.pool(pool)
    stage.cluster.pools = {"small", "new"}
    name, uid = stranger(stage)
    match found:
        case None:
            pass
        case Exception():
            stage.cluster.pods[name] = found
        case _:
            stage.cluster.pods[name] = seen(name, **({"uid": uid} | found))
    web = stage.start_web()
    assert web.poll("stranger").status_code == status
    assert web.poll("stranger").status_code == status
    assert stage.cluster.looked_up == [name]
    assert stage.scalar("SELECT count(*) FROM runner_pods") == 0


def test_a_pod_that_is_known_to_be_gone_is_403(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    stage.execute("UPDATE runner_pods SET gone_at = now()")
    assert stage.start_web().poll(pod.token).status_code == 403


def test_an_old_template_a_drain_and_a_deleted_pool_keep_their_pods_polling(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    stage.execute("UPDATE pools SET draining = true, deleted_at = now(), template_hash = 'new'")
    web = stage.start_web()
    web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))


def test_a_poll_wakes_its_pool_only_when_jobs_wait_for_pods(stage: Stage) -> None:
    idle, wanting = stage.pool("idle"), stage.pool("wanting")
    stage.execute("UPDATE pools SET wants_pods = true WHERE id = :id", id=wanting)
    first, second = stage.pod(idle), stage.pod(wanting)
    web = stage.start_web()
    web.begin_poll(first.token)
    web.begin_poll(second.token)
    eventually(lambda: stage.is_offered(first) and stage.is_offered(second))
    eventually(lambda: web.sender.woken == [wanting])


def test_a_body_larger_than_a_polls_is_refused(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    response = httpx.post(
        f"{web.url}/runners/v1/dispatch",
        headers={"Authorization": f"Bearer {pod.token}"},
        content=b"x" * 2000,
        timeout=90,
    )
    assert response.status_code == 413
