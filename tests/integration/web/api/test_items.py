"""Single items: why a job waits, its history, and the wakes after a changed budget."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from models.pools import scaling
from ostler.clock import utcnow
from ostler.task_names import REMATCH
from tests.integration.models.webhook_rows import add_claim
from tests.integration.web.api.conftest import Stage


def test_a_job_without_a_pool_says_what_is_missing_and_how_to_mend_it(stage: Stage) -> None:
    stage.account()
    stage.pool()
    stage.job(1, labels=["linux", "gpu"], hold_reason="no_pool", queued_at=utcnow() - timedelta(minutes=5))
    body = stage.get("/jobs/1").json()
    assert body["why"]["waits_for"] == "pool"
    assert "The closest pool is small, which lacks the labels gpu." in body["why"]["summary"]
    assert "runnerLabels" in body["why"]["cure"]
    assert 300 <= body["age_seconds"] < 330


def test_an_account_that_may_run_nothing_is_told_the_command(stage: Stage) -> None:
    stage.account(count=0)
    stage.job(1, pool_id=stage.pool(), hold_reason="budget_zero")
    why = stage.get("/jobs/1").json()["why"]
    assert why["waits_for"] == "budget"
    assert "ostler account set 7 --count" in why["cure"]


def test_a_job_over_budget_says_what_is_used_and_how_many_come_first(stage: Stage) -> None:
    stage.account(count=1)
    pool = stage.pool()
    now = utcnow()
    stage.job(1, pool_id=pool)
    add_claim(stage.engine, pool, 1, account_id=7)
    for number in range(3):
        stage.job(10 + number, pool_id=pool, queued_at=now + timedelta(seconds=number))
    stage.job(20, pool_id=pool, queued_at=now + timedelta(seconds=9), priority=5)
    why = stage.get("/jobs/12").json()["why"]
    assert (why["waits_for"], why["ahead"]) == ("budget", 3)
    assert "it uses 1 of 1 Pods" in why["summary"]
    assert stage.get("/jobs/20").json()["why"]["ahead"] == 0


def test_a_queued_job_with_room_waits_for_a_pod(stage: Stage) -> None:
    stage.account()
    stage.job(1, pool_id=stage.pool())
    why = stage.get("/jobs/1").json()["why"]
    assert why["waits_for"] == "pod"
    assert "No Pod of pool small is warm: 0 of 3 Pods have a job, and the others start" in why["summary"]


def test_a_claimed_job_shows_its_claim_and_a_claim_its_events_and_no_jit(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    stage.job(1, pool_id=pool)
    stage.execute(
        """
        INSERT INTO job_events (job_id, at, transition, from_state, to_state, who, why, latency_ms)
        VALUES (1, now(), 'job_seen', NULL, 'queued', 'webhook', 'queued', NULL),
               (1, now(), 'job_claim', 'queued', 'claimed', 'dispatch', 'matched', 42)
        """
    )
    claim = add_claim(stage.engine, pool, 1, state="minted", runner="small-1", account_id=7)
    body = stage.get("/jobs/1").json()
    assert body["why"]["waits_for"] == "delivery"
    assert [event["transition"] for event in body["events"]] == ["job_seen", "job_claim"]
    assert body["events"][1]["latency_ms"] == 42
    assert [each["id"] for each in body["claims"]] == [claim]
    shown = stage.get(f"/claims/{claim}")
    assert shown.json()["attempts"][0]["runner_name"] == "small-1"
    assert "jit" not in shown.text
    assert "encrypted" not in shown.text
    assert [item["id"] for item in stage.get("/claims", live="true", state="minted").json()["items"]] == [claim]
    assert stage.get("/claims", live="false").json()["items"] == []
    assert stage.get("/claims", state="ended", live="true").json()["items"] == []


def test_a_pool_shows_its_numbers(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    stage.job(1, pool_id=pool)
    stage.job(2, pool_id=pool)
    stage.job(3, pool_id=pool, hold_reason="backoff", not_before=datetime(2030, 1, 1, tzinfo=UTC))
    add_claim(stage.engine, pool, 1, account_id=7)
    body = stage.get(f"/pools/{pool}").json()
    assert (body["vcpu"], body["memory_gib"]) == (2.0, 4.0)
    counts = body["counts"]
    assert (counts["queued"], counts["held"], body["status"]) == (1, 1, None)
    assert (body["autoscaled"], body["paused"], body["scaling"]) == (False, False, None)


def test_a_pool_shows_what_the_autoscaler_decided(stage: Stage) -> None:
    pool = stage.pool()
    told = {
        "at": "2026-11-22T10:00:00+00:00",
        "verdict": "up",
        "from": 1,
        "replicas": 6,
        "load": 3,
        "queue": 2,
        "usual": 0,
        "min_warm": 1,
        "max_replicas": 10,
        "why": "3 with jobs + 2 queued + 1 warm = 6",
    }
    with stage.engine.begin() as db:
        scaling.record_decision(db, pool, told, up=True, now=utcnow())
    body = stage.get(f"/pools/{pool}").json()
    assert (body["scaling"]["verdict"], body["scaling"]["replicas"], body["scaling"]["why"]) == ("up", 6, told["why"])
    assert body["scaled_up_at"] is not None
    assert stage.get("/pools").json()["items"][0]["scaling"]["load"] == 3


def test_a_pool_shows_its_conditions(stage: Stage) -> None:
    pool = stage.pool()
    assert stage.get(f"/pools/{pool}").json()["conditions"] == []
    stage.execute("""
        UPDATE pools SET status = '{"conditions": [{"type": "Ready", "status": "True", "reason": "PodsAvailable",
            "message": "Pods serve", "observedGeneration": 1, "lastTransitionTime": "2026-11-22T10:00:00Z"}]}'
    """)
    (condition,) = stage.get(f"/pools/{pool}").json()["conditions"]
    assert condition == {
        "type": "Ready",
        "status": "True",
        "reason": "PodsAvailable",
        "message": "Pods serve",
        "since": "2026-11-22T10:00:00Z",
    }


def test_a_new_budget_is_kept_shown_and_wakes_where_the_account_waits(stage: Stage) -> None:
    stage.account(count=0)
    stage.account(8, "globex")
    small, large, other = stage.pool(), stage.pool("large"), stage.pool("other")
    stage.job(1, pool_id=small)
    stage.job(2, pool_id=large, hold_reason="budget_zero")
    stage.job(3, pool_id=other, account_id=8)
    answer = stage.put("/accounts/7/budget", {"count": 3, "vcpu": 1.5, "memory_gib": 0.5})
    assert answer.status_code == 200
    assert answer.json()["budget"] == {"count": 3, "vcpu": 1.5, "memory_gib": 0.5}
    (row,) = stage.execute("SELECT budget_count, budget_vcpu, budget_memory FROM accounts WHERE id = 7")
    assert tuple(row) == (3, 1500, 512)
    assert stage.outbox.wakes == [small]
    assert stage.outbox.sent == [(REMATCH, {})]  # it lifts the hold of job 2 and wakes its pool


def test_a_new_weight_is_kept_and_wakes_too(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    stage.job(1, pool_id=pool)
    assert stage.put("/accounts/7/weight", {"weight": 2.5}).json()["weight"] == 2.5
    assert stage.outbox.wakes == [pool]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("budget", {"count": -1, "vcpu": 1, "memory_gib": 1}, "count"),
        ("budget", {"count": 1.5, "vcpu": 1, "memory_gib": 1}, "count"),
        ("budget", {"count": "1", "vcpu": 1, "memory_gib": 1}, "count"),
        ("budget", {"count": True, "vcpu": 1, "memory_gib": 1}, "count"),
        ("budget", {"count": 2**70, "vcpu": 1, "memory_gib": 1}, "count"),
        ("budget", {"count": 1, "vcpu": 1e300, "memory_gib": 1}, "vcpu"),
        ("budget", {"count": 1, "vcpu": 1}, "memory_gib"),
        ("budget", {"count": 1, "vcpu": 1, "memory_gib": 1, "memory": 1}, "memory"),
        ("budget", [], "body"),
        ("budget", None, "body"),
        ("weight", {"weight": 0}, "weight"),
        ("weight", {"weight": 1e9}, "weight"),
        ("weight", {"weight": None}, "weight"),
    ],
)
def test_a_wild_budget_or_weight_is_422_and_changes_nothing(stage: Stage, path: str, body: object, field: str) -> None:
    stage.account()
    answer = stage.put(f"/accounts/7/{path}", body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == field
    (row,) = stage.execute("SELECT budget_count, weight FROM accounts WHERE id = 7")
    assert tuple(row) == (10, 1)
    assert stage.outbox.wakes == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b'{"weight": NaN}',
        b'{"weight": Infinity}',
        b"[" * 9000,
        b'{"weight": 1' + b"0" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_json_is_a_problem_and_no_failure(stage: Stage, content: bytes) -> None:
    stage.account()
    answer = stage.client.call(
        "PUT",
        "/api/v1/accounts/7/weight",
        token=stage.writer,
        content=content,
        headers={"content-type": "application/json"},
    )
    assert answer.status_code in {400, 422}, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_account_is_let_in_and_its_held_jobs_are_matched_again(stage: Stage) -> None:
    stage.account()
    stage.execute("UPDATE accounts SET access = 'held'")
    stage.job(1, pool_id=stage.pool(), hold_reason="unknown_account")
    assert stage.get("/accounts/7").json()["access"] == "held"
    assert "ostler account allow acme" in stage.get("/jobs/1").text

    answer = stage.put("/accounts/7/access", {"access": "allowed"})

    assert (answer.status_code, answer.json()["access"]) == (200, "allowed")
    assert stage.outbox.sent == [(REMATCH, {})]
    assert stage.put("/accounts/7/access", {"access": "refused"}).status_code == 422


def test_an_account_shows_the_pods_that_outlive_their_job(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    stage.job(1, pool_id=pool)
    claim = add_claim(stage.engine, pool, 1, account_id=7)
    stage.execute("UPDATE runner_pods SET charged_account_id = 7, charged_vcpu = 2000, charged_memory = 4096")
    assert stage.get("/accounts/7").json()["ending_pods"] == 0
    stage.execute(
        "UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now(), jit = NULL WHERE id = :id",
        id=claim,
    )
    shown = stage.get("/accounts/7").json()
    assert (shown["ending_pods"], shown["usage"]["count"]) == (1, 1)


def test_an_account_that_is_not_there_cannot_be_changed(stage: Stage) -> None:
    assert stage.put("/accounts/7/weight", {"weight": 1}).status_code == 404
    assert stage.outbox.sent == []


def test_accounts_show_what_they_use(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    stage.job(1, pool_id=pool)
    add_claim(stage.engine, pool, 1, account_id=7)
    (item,) = stage.get("/accounts", login="ACME").json()["items"]
    assert item["usage"] == {"count": 1, "vcpu": 2.0, "memory_gib": 4.0}


def test_pools_have_the_version_of_their_runner(stage: Stage) -> None:
    stage.pool("tagged")
    gone = stage.pool("gone", labels=("other",))
    stage.execute("UPDATE pools SET image = 'ghcr.io/actions/actions-runner:2.330.0'")
    stage.execute("UPDATE pools SET deleted_at = now() WHERE id = :id", id=gone)
    warning = {"type": "RunnerOutdated", "status": "True", "reason": "VersionExpires", "message": "ends on Friday"}
    status = {
        "stale": 2,
        "busy": 3,
        "warm": 1,
        "conditions": [warning | {"lastTransitionTime": "2026-11-29T12:00:00Z"}],
    }
    stage.execute("UPDATE pools SET status = CAST(:status AS jsonb) WHERE name = 'tagged'", status=json.dumps(status))
    tagged, deleted = stage.get("/pools").json()["items"]
    assert tagged["versions"] == {
        "runner": "2.330.0",
        "ends_at": None,
        "warning": "ends on Friday",
        "old_pods": 2,
        "with_job": 3,
        "replaced": 1,
    }
    assert (deleted["name"], deleted["versions"]) == ("gone", None)


def test_accounts_say_what_they_wait_for_if_asked(stage: Stage) -> None:
    stage.account()
    stage.account(8, "globex")
    stage.job(1, pool_id=stage.pool())
    stage.execute("UPDATE accounts SET access = 'held' WHERE id = 8")
    assert [each["waits_for"] for each in stage.get("/accounts").json()["items"]] == [None, None]
    waits, held = (each["waits_for"] for each in stage.get("/accounts", explain=True).json()["items"])
    assert waits.startswith("The job is the next job of its account")
    assert held == "The account is not allowed."


def test_pod_shows_how_it_ended_and_its_claims_by_name_and_by_uid(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    stage.job(1, pool_id=pool, state="running")
    claim = add_claim(stage.engine, pool, 1, state="executing", runner="small-1", account_id=7)
    (pod,) = stage.execute(
        """
        UPDATE runner_pods SET uid = 'uid-of-it', deletion_at = '2026-11-23 12:03:04+00', gone_at = now(),
               exit_reason = 'EvictionByEvictionAPI', runner_exit_code = 143, event_reason = 'ScaleDown',
               event_by = 'cluster-autoscaler', event_message = 'node scale down'
        RETURNING name
        """
    )
    stage.execute("UPDATE claims SET pod_uid = 'uid-of-it', state = 'ended', ended_at = now(), end_reason = 'pod_gone'")

    for name in (pod.name, "uid-of-it"):
        shown = stage.get(f"/pods/{name}").json()
        assert (shown["name"], shown["uid"], shown["runner_exit_code"]) == (pod.name, "uid-of-it", 143)
        assert shown["end"].startswith("it was deleted at 2026-11-23 12:03:04 UTC, evicted through the eviction API")
        assert shown["end"].endswith("; event ScaleDown by cluster-autoscaler: node scale down")
        event = (shown["event_reason"], shown["event_by"], shown["event_message"])
        assert event == ("ScaleDown", "cluster-autoscaler", "node scale down")
        assert [(each["id"], each["job_id"], each["end_reason"]) for each in shown["claims"]] == [
            (claim, 1, "pod_gone")
        ]
        assert [each["id"] for each in stage.get("/claims", pod=name).json()["items"]] == [claim]
    item = stage.get(f"/claims/{claim}").json()
    assert (item["exit_reason"], item["runner_exit_code"]) == ("EvictionByEvictionAPI", 143)
    assert item["pod_end"].startswith("the Pod was deleted at 2026-11-23 12:03:04 UTC")
    job = stage.get("/jobs/1").json()
    assert job["claims"][0]["pod_end"] == item["pod_end"]
    assert item["pod_end"].endswith("; event ScaleDown by cluster-autoscaler: node scale down")
    assert "kubectl drain" in job["why"]["summary"]
    assert stage.get("/pods/nobody").status_code == 404
    assert stage.get("/claims", pod="nobody").json()["items"] == []


def test_a_persistent_runner_is_named_with_its_job_in_every_list(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    stage.job(1, pool_id=pool, state="running")
    claim = add_claim(stage.engine, pool, 1, state="delivered", runner="small-1-ab", account_id=7)
    stage.execute("UPDATE claims SET purpose = 'register', job_id = NULL")
    stage.execute(
        """
        INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at)
        VALUES (1, 'small-1-ab', :claim, 7, 2000, 4096, now())
        """,
        claim=claim,
    )
    (job,) = stage.get("/jobs").json()["items"]
    assert (job["id"], job["runner"], stage.get("/jobs/1").json()["runner"]) == (1, "small-1-ab", "small-1-ab")
    (item,) = stage.get("/claims").json()["items"]
    assert (item["id"], item["job_id"], item["executes_job_id"]) == (claim, None, 1)
    (execution,) = stage.get(f"/pods/{item['pod']}").json()["executions"]
    assert (execution["job_id"], execution["runner_name"], execution["ended_at"]) == (1, "small-1-ab", None)


@pytest.mark.parametrize(
    ("conclusion", "over_after", "told"), [("failure", 60, True), ("failure", -60, False), ("success", 60, False)]
)
def test_finished_job_tells_of_pod_that_was_deleted_before_it_was_over(
    stage: Stage, conclusion: str, over_after: int, *, told: bool
) -> None:
    """The webhook `completed` can end the claim before the Pod is seen gone."""
    stage.account()
    pool = stage.pool()
    stage.job(1, pool_id=pool, state="completed", conclusion=conclusion)
    add_claim(stage.engine, pool, 1, state="executing", account_id=7)
    stage.execute("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed'")
    stage.execute("UPDATE runner_pods SET deletion_at = '2026-11-23 12:03:04+00', deleted_first = true")
    stage.execute(
        "UPDATE jobs SET completed_at = timestamptz '2026-11-23 12:03:04+00' + make_interval(secs => :s)", s=over_after
    )
    assert ("by a client other than Ostler" in stage.get("/jobs/1").json()["why"]["summary"]) is told
