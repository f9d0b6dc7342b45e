"""Effects of the watch's hints: nothing without the proof of a GET or a row, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from models.browse.diagnoses import told_pod
from models.browse.jobs import job_story
from models.db.engine import transaction
from ostler.clock import utcnow
from ostler.timings import Timings
from rules.waiting.jobs import explain
from tasks.claims.retire import retire
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.pools.watch_reports import pod_executes, pod_gone, pods_changed, poller_ended
from tasks.sweeps.unidentified_executions import unidentified_executions
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub


def kept(stage: Stage) -> None:
    """Run the sent reconciles."""
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)


def told(stage: Stage, **what: Any) -> None:
    """Send a hint as the watch does, and run the worker that receives it."""
    pods_changed.run(namespace=stage.namespace, **what)
    for message in stage.outbox.take("ostler.pod_gone"):
        pod_gone.run(**message)
    for message in stage.outbox.take("ostler.pod_executes"):
        pod_executes.run(**message)
    for message in stage.outbox.take("ostler.poller_ended"):
        poller_ended.run(**message)


def uid_of(stage: Stage, pod: str) -> str:
    return stage.pods()[pod].uid


def delete(stage: Stage, pod: str) -> None:
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")


def test_a_claim_ends_when_a_get_proves_its_pod_gone_and_the_pool_is_filled_again(stage: Stage, pod: str) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    uid = uid_of(stage, pod)
    delete(stage, pod)

    told(stage, gone=[uid])

    after = stage.see(claim)
    assert (after.state, after.end_reason, after.job_state) == ("ended", "pod_gone", "queued")
    assert pod not in stage.service_accounts()
    kept(stage)
    assert len(stage.pods()) == 2


def test_a_hint_about_a_pod_that_is_there_ends_nothing(stage: Stage, pod: str) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)

    told(stage, gone=[uid_of(stage, pod)])

    assert stage.see(claim).state == "executing"


def test_an_event_that_is_late_does_nothing_to_a_namesake_with_another_uid(stage: Stage, pod: str) -> None:
    old = uid_of(stage, pod)
    delete(stage, pod)
    # A Pod of that name again, with a row and a claim of its own.
    body = {
        "metadata": {"name": pod, "labels": {"ostler.dev/pool": "small"}},
        "spec": {"serviceAccountName": pod, "containers": [{"name": "runner", "image": "runner:1"}]},
    }
    stage.kube.request("POST", f"/api/v1/namespaces/{stage.namespace}/pods", body=body)
    stage.rows("UPDATE runner_pods SET uid = :uid WHERE name = :pod", uid=uid_of(stage, pod), pod=pod)
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="delivered", runner=RUNNER)

    for _ in range(2):
        told(stage, gone=[old], executing=[old])

    after = stage.see(claim)
    assert (after.state, after.job_state) == ("delivered", "running")
    assert stage.outbox.sent == []


def test_a_doubled_hint_ends_a_claim_once(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    uid = uid_of(stage, pod)
    delete(stage, pod)

    told(stage, gone=[uid])
    github.job = ("in_progress", None, "another")
    told(stage, gone=[uid, uid])

    assert stage.see(claim).job_state == "queued"
    ends = stage.rows("SELECT 1 FROM claim_events WHERE claim_id = :id AND to_state = 'ended'", id=claim)
    assert len(ends) == 1


def test_a_retirement_ends_as_soon_as_its_pod_is_gone(stage: Stage, pod: str) -> None:
    stage.rows(
        """
        INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, vcpu, memory, state, created_at, changed_at,
                            due_at)
        SELECT 'retire', id, uid, pool_id, 0, 0, 'claimed', now(), now(), now() + interval '1 hour'
        FROM runner_pods WHERE name = :pod
        """,
        pod=pod,
    )
    uid = uid_of(stage, pod)
    delete(stage, pod)

    told(stage, gone=[uid])
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)

    assert stage.rows("SELECT 1 FROM claims WHERE purpose = 'retire' AND ended_at IS NULL") == []


def test_a_pod_that_ended_wakes_the_reconciler_of_its_pool(stage: Stage, pod: str) -> None:
    stage.finish(pod)
    told(stage, pools=["small", "of nobody"])
    kept(stage)
    assert pod not in stage.pods()
    assert len(stage.pods()) == 2


@pytest.mark.parametrize("watched", [True, False])
def test_reconciler_requeues_itself_only_where_no_watch_runs(stage: Stage, pod: str, *, watched: bool) -> None:
    stage.outbox.pods_are_watched = watched
    stage.job(7, state="completed")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    stage.rows("UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :id", id=claim)
    pools.run()
    kept(stage)
    assert len(stage.outbox.take("ostler.reconcile")) == (0 if watched else 1)


@pytest.mark.parametrize("state", ["delivered", "releasing"])
def test_a_runner_that_began_a_job_marks_its_claim_and_leaves_open_which(stage: Stage, pod: str, state: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", runner=RUNNER)
    stage.rows("UPDATE claims SET state = :state, due_at = now() WHERE id = :id", state=state, id=claim)
    stage.execute_job(pod)

    for _ in range(2):
        told(stage, executing=[uid_of(stage, pod)])

    after = stage.see(claim)
    assert (after.state, after.job_id, after.job_state, after.due_at) == ("executing", 7, "claimed", None)
    assert stage.rows("SELECT 1 FROM executions") == []
    events = stage.rows("SELECT transition, why FROM claim_events WHERE claim_id = :id", id=claim)
    assert [tuple(event) for event in events] == [("execute", "the runner of the claim has begun a job")]


@pytest.mark.parametrize("runner", ["polls", "ended", "gone"])
def test_forged_hint_of_an_execution_changes_no_claim(stage: Stage, pod: str, runner: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", runner=RUNNER)
    uid = uid_of(stage, pod)
    stage.rows("UPDATE claims SET jit = 'x' WHERE id = :id", id=claim)
    match runner:
        case "polls":
            stage.poll_on(pod)
        case "ended":
            stage.finish(pod)
        case "gone":
            delete(stage, pod)

    told(stage, executing=[uid])

    (row,) = stage.rows("SELECT state, jit FROM claims WHERE id = :id", id=claim)
    assert (row.state, bytes(row.jit)) == ("delivered", b"x")


def test_forged_hint_of_an_ended_poller_returns_no_stamp(stage: Stage, pod: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", runner=RUNNER)
    stage.rows("UPDATE claims SET stamp = 'off', stamp_after = now() + interval '5 s' WHERE id = :id", id=claim)
    stage.rows("UPDATE runner_pods SET poller_ended_at = NULL")
    stage.poll_on(pod)
    uid = uid_of(stage, pod)

    told(stage, unstamped=[uid])
    (row,) = stage.rows("SELECT poller_ended_at FROM runner_pods WHERE uid = :uid", uid=uid)
    assert row.poller_ended_at is None
    assert stage.outbox.take("ostler.stamp") == []

    stage.execute_job(pod)
    told(stage, unstamped=[uid])
    assert stage.outbox.take("ostler.stamp") == [{"claim_id": claim}]


@pytest.mark.parametrize("state", ["claimed", "minted", "releasing"])
def test_a_claim_whose_jit_never_left_us_is_not_marked(stage: Stage, pod: str, state: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state=state)
    stage.execute_job(pod)
    told(stage, executing=[uid_of(stage, pod)])
    assert stage.see(claim).state == state


def executing_unidentified(stage: Stage, pod: str, *, age: float = 100) -> int:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="delivered", runner=RUNNER, age=age)
    stage.execute_job(pod)
    told(stage, executing=[uid_of(stage, pod)])
    stage.rows("UPDATE claims SET changed_at = now() - make_interval(secs => :age) WHERE id = :id", id=claim, age=age)
    return claim


def test_github_says_that_the_runner_executes_the_job_it_was_claimed_for(
    stage: Stage, pod: str, github: StubGitHub
) -> None:
    claim = executing_unidentified(stage, pod)
    github.job = ("in_progress", None, RUNNER)

    for _ in range(2):
        unidentified_executions.run()

    after = stage.see(claim)
    assert (after.state, after.job_id, after.job_state) == ("executing", 7, "running")
    assert [tuple(row) for row in stage.rows("SELECT job_id, runner_name, claim_id FROM executions")] == [
        (7, RUNNER, claim)
    ]


@pytest.mark.parametrize(
    ("answer", "job_state", "hold"),
    [
        (("queued", None, None), "queued", None),
        (("in_progress", None, "another"), "running", "ask_github"),
        (("completed", "success", "another"), "completed", None),
    ],
    ids=["queued", "elsewhere", "over"],
)
def test_a_job_whose_runner_executes_another_does_not_wait_for_that_ones_end(
    stage: Stage, pod: str, github: StubGitHub, answer: Any, job_state: str, hold: str | None
) -> None:
    claim = executing_unidentified(stage, pod)
    github.job = answer

    unidentified_executions.run()

    after = stage.see(claim)
    assert (after.state, after.job_id) == ("executing", None)
    (job,) = stage.rows("SELECT state, hold_reason FROM jobs WHERE id = 7")
    assert tuple(job) == (job_state, hold)
    unidentified_executions.run()  # there is nothing left to ask


@pytest.mark.parametrize("age", [10, 100])
def test_a_young_mark_and_a_github_that_does_not_answer_change_nothing(
    stage: Stage, pod: str, github: StubGitHub, age: float
) -> None:
    claim = executing_unidentified(stage, pod, age=age)
    github.broken = age > 60
    unidentified_executions.run()
    after = stage.see(claim)
    assert (after.state, after.job_id, after.job_state) == ("executing", 7, "claimed")


def ending(**what: Any) -> dict[str, Any]:
    """Return the watch's last observation of a Pod that is gone."""
    return {"deletion_at": None, "deleted_first": None, "reason": None, "runner_exit_code": None, **what}


def test_lost_pod_is_reported_as_observed_and_its_runner_is_named(stage: Stage, pod: str, github: StubGitHub) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    uid = uid_of(stage, pod)
    delete(stage, pod)
    github.job = ("in_progress", None, RUNNER)

    at = "2026-11-23T12:03:04+00:00"
    told(stage, gone=[uid], endings={uid: ending(deletion_at=at, reason="EvictionByEvictionAPI", runner_exit_code=143)})

    (end,) = stage.rows("SELECT why FROM claim_events WHERE claim_id = :id AND to_state = 'ended'", id=claim)
    assert end.why == (
        "the Pod was deleted at 2026-11-23 12:03:04 UTC, evicted through the eviction API, as `kubectl drain` does; "
        "container `runner` exited 143; reason EvictionByEvictionAPI; GitHub says that the job is in_progress on "
        "runner " + RUNNER
    )
    story = transaction(stage.rt.engine, lambda db: job_story(db, 7, timings=Timings(), now=utcnow()))
    assert story is not None
    summary = explain(story.facts).summary
    assert f"Pod {pod} of the job was deleted at 2026-11-23 12:03:04 UTC, evicted through the eviction API" in summary


@pytest.mark.parametrize("nonsense", [None, 7, [], ending(deletion_at="soon"), ending(runner_exit_code="x")])
def test_ending_that_makes_no_sense_is_not_recorded_and_hinders_nothing(stage: Stage, pod: str, nonsense: Any) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    uid = uid_of(stage, pod)
    delete(stage, pod)

    told(stage, gone=[uid], endings={uid: nonsense, "nobody": ending(reason="Evicted")})

    assert stage.see(claim).end_reason == "pod_gone"
    (row,) = stage.rows("SELECT deletion_at, exit_reason, runner_exit_code FROM runner_pods WHERE uid = :uid", uid=uid)
    assert tuple(row) == (None, None, None)


def test_ending_of_a_pod_that_is_there_ends_nothing(stage: Stage, pod: str) -> None:
    stage.job(7, state="running")
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    uid = uid_of(stage, pod)

    told(stage, gone=[uid], endings={uid: ending(reason="Evicted", runner_exit_code=0)})

    assert stage.see(claim).state == "executing"


def test_ending_is_left_out_where_its_row_is_locked(stage: Stage, pod: str) -> None:
    uid = uid_of(stage, pod)
    with stage.rt.engine.begin() as other:
        other.execute(text("SELECT FROM runner_pods WHERE uid = :uid FOR UPDATE"), {"uid": uid})
        told(stage, endings={uid: ending(reason="Evicted")})
    (row,) = stage.rows("SELECT exit_reason FROM runner_pods WHERE uid = :uid", uid=uid)
    assert row.exit_reason is None


HOOK = {
    "name": "small-1-workflow",
    "phase": "Running",
    "node": "node-2",
    "problem": None,
    "created_at": "2026-11-23T12:00:00+00:00",
    "seen_at": "2026-11-23T12:00:01+00:00",
    "gone": False,
}
KILLED = HOOK | {"problem": "container job used more memory than its limit (OOMKilled)", "seen_at": "2026-11-23T12:01Z"}


def why(stage: Stage, pod: str, check: str) -> str:
    """Return the evidence of a check in the explanation of a Pod."""
    told = transaction(stage.rt.engine, lambda db: told_pod(db, pod, timings=Timings(), now=utcnow()))
    assert told is not None
    (found,) = (each for each in told["why"]["checks"] if each["check"] == check)
    return str(found["evidence"])


def test_hook_pods_are_shown_with_their_runner_pod(stage: Stage, pod: str) -> None:
    uid = uid_of(stage, pod)
    assert why(stage, pod, "hook pods") == "the watch has seen none"
    told(stage, hooks={uid: [HOOK], "nobody": [HOOK]})
    assert why(stage, pod, "hook pods") == "small-1-workflow (Running on node node-2)"
    told(stage, hooks={uid: [KILLED | {"gone": True}]})
    told(stage, hooks={uid: [HOOK]})  # a late message
    shown = why(stage, pod, "hook pods")
    assert shown == "small-1-workflow (gone; container job used more memory than its limit (OOMKilled))"


@pytest.mark.parametrize("nonsense", [None, 7, [7], [HOOK | {"seen_at": "soon"}], [{}]])
def test_hook_pod_that_makes_no_sense_is_not_recorded(stage: Stage, pod: str, nonsense: Any) -> None:
    told(stage, hooks={uid_of(stage, pod): nonsense})
    assert why(stage, pod, "hook pods") == "the watch has seen none"


def test_hook_pods_are_left_out_where_the_row_is_locked(stage: Stage, pod: str) -> None:
    uid = uid_of(stage, pod)
    with stage.rt.engine.begin() as other:
        other.execute(text("SELECT FROM runner_pods WHERE uid = :uid FOR UPDATE"), {"uid": uid})
        told(stage, hooks={uid: [HOOK]})
    assert why(stage, pod, "hook pods") == "the watch has seen none"


def test_pod_that_is_gone_shows_its_node(stage: Stage, pod: str) -> None:
    uid = uid_of(stage, pod)
    delete(stage, pod)
    told(stage, gone=[uid], endings={uid: ending(node="node-2")})
    kept(stage)
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE uid = :uid AND gone_at IS NULL RETURNING id", uid=uid)
    assert why(stage, uid, "node") == "it was on node node-2"
