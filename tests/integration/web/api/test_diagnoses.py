"""Explanations of Pods, pools and accounts: from rows to the answer of the API."""

from __future__ import annotations

import json
from typing import Any

from models.pools import pod_lists
from ostler.clock import utcnow
from rules.claims.hook_pods import HookPod
from rules.token_scopes import TokenScope
from tasks.pools.pod_lists import pack
from tests.integration.models.webhook_rows import add_claim
from tests.integration.web.api.conftest import Stage
from tests.integration.web.polls.test_admission import seen


def explained(stage: Stage, path: str, *, token: str | None = None) -> dict[str, Any]:
    """Return an explanation of the API, with each of its checks by name."""
    token = token or stage.reader
    answer = stage.client.call("GET", f"/api/v1/{path}/explanation", token=token)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    whole = stage.client.call("GET", f"/api/v1/{path}", token=token).json()
    assert [each["check"] for each in whole["why"]["checks"]] == [each["check"] for each in found["checks"]]
    return found | {each["check"]: each for each in found["checks"]}


def listed(stage: Stage, *pods: Any) -> None:
    """Store a list of Pods as `ostler.pools` does."""
    now = utcnow()
    with stage.engine.begin() as db:
        pod_lists.store(db, namespace="runners", shares={"small": pack(pods)}, taken_at=now, whole_at=now)


def test_pod_is_explained_from_its_four_sources(stage: Stage) -> None:
    pool_id = stage.pool()
    stage.account()
    stage.job(100, pool_id=pool_id)
    add_claim(stage.engine, pool_id, 100, account_id=7, runner="small-1-r")
    (row,) = stage.execute("SELECT uid, name FROM runner_pods")
    listed(stage, seen(row.name, row.uid, node="node-7", attachable_volumes=True))
    found = explained(stage, f"pods/{row.uid}")
    assert found["kubernetes"]["evidence"] == "phase Running, node node-7"
    assert found["claim"]["evidence"].endswith("is delivered for job 100")
    assert found["runner"]["evidence"] == "GitHub has reported no job of its runner"
    assert found["containers"]["result"] == "open"
    assert found["next"]["evidence"].startswith("the sweep resume continues the claim")
    stage.execute("UPDATE runner_pods SET exit_reason = 'OOMKilled', runner_exit_code = 137, terminal_at = now()")
    ended = explained(stage, f"pods/{row.name}")
    assert ended["summary"].startswith("It was killed for lack of memory")
    assert ended["containers"]["evidence"] == "runner ended with exit code 137"
    assert {each["source"] for each in ended["checks"]} == {"postgres", "kubernetes", "github", "pod"}


def test_pod_shows_the_job_that_started_on_it_after_its_claim_ended(stage: Stage) -> None:
    pool_id = stage.pool()
    stage.account()
    stage.job(100, pool_id=pool_id)
    claim = add_claim(stage.engine, pool_id, 100, account_id=7, runner="small-1-r")
    stage.execute(
        """
        INSERT INTO claim_events (claim_id, at, transition, from_state, to_state, who, why)
        VALUES (:id, now(), 'execute', 'delivered', 'executing', 'web', 'job 100 started on small-1-r')
        """,
        id=claim,
    )
    (row,) = stage.execute("SELECT uid FROM runner_pods")
    assert explained(stage, f"pods/{row.uid}")["runner"]["evidence"] == "job 100 started on small-1-r"


def test_pod_that_polls_no_more_and_pod_on_a_gone_node_name_their_sweep(stage: Stage) -> None:
    pool_id = stage.pool()
    stage.execute(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at, first_polled_at,
                                 polled_at)
        VALUES (:pool, 'runners', 'quiet', 'quiet', 'a', 'h', now() - interval '1 h', now() - interval '1 h',
                now() - interval '10 min')
        """,
        pool=pool_id,
    )
    quiet = explained(stage, "pods/quiet")
    assert quiet["summary"].endswith("but the Pod polls no more.")
    assert quiet["next"]["evidence"].startswith("the sweep unresponsive_pods retires")
    stage.execute("UPDATE runner_pods SET node_gone_at = now()")
    assert explained(stage, "pods/quiet")["next"]["evidence"].startswith("the sweep gone_nodes checks")


def test_pool_is_explained_by_what_is_in_its_way(stage: Stage) -> None:
    pool_id = stage.pool()
    stage.account()
    stage.job(100, pool_id=pool_id)
    stage.execute("UPDATE pools SET paused = true")
    found = explained(stage, f"pools/{pool_id}")
    assert found["summary"] == "No Pod is warm: the pool is paused and creates no Pods."
    assert found["cure"] == "Resume the pool: `ostler pool resume small`."
    assert found["queue"]["evidence"] == "1 queued and 0 held jobs"
    assert stage.get("/pools/99/explanation").status_code == 404


def test_pool_with_an_outdated_runner_says_so(stage: Stage) -> None:
    pool_id = stage.pool()
    outdated = {
        "type": "RunnerOutdated",
        "status": "True",
        "reason": "VersionExpires",
        "message": "ends on Friday",
        "lastTransitionTime": "2026-11-29T12:00:00Z",
    }
    stage.execute("UPDATE pools SET status = CAST(:it AS jsonb)", it=json.dumps({"conditions": [outdated]}))
    assert stage.get(f"/pools/{pool_id}").json()["trouble"] == "RunnerOutdated: ends on Friday"


def test_account_is_explained_by_its_oldest_job(stage: Stage) -> None:
    pool_id = stage.pool()
    stage.account(7, "acme")
    stage.account(8, "globex")
    stage.execute("UPDATE accounts SET weight = 3 WHERE id = 8")
    for number, account in ((100, 7), (101, 7), (102, 8)):
        stage.job(number, pool_id=pool_id, account_id=account)
    found = explained(stage, "accounts/7")
    oldest = stage.get("/jobs/100/explanation").json()
    assert found["summary"] == f"Job 100 waits longest: {oldest['summary']}"
    assert found["cure"] == oldest["cure"]
    assert "25% of the weights" in found["share"]["evidence"]


def test_token_of_an_account_sees_no_node_and_no_share(stage: Stage) -> None:
    pool_id = stage.pool()
    stage.account()
    stage.job(100, pool_id=pool_id)
    add_claim(stage.engine, pool_id, 100, account_id=7)
    (row,) = stage.execute("SELECT uid, name FROM runner_pods")
    listed(stage, seen(row.name, row.uid, node="node-7"))
    token = stage.token(TokenScope.READ, accounts=[7])
    assert "node-7" in str(explained(stage, f"pods/{row.uid}"))
    assert "node-7" not in str(explained(stage, f"pods/{row.uid}", token=token))
    assert "% of the weights" not in str(explained(stage, "accounts/7", token=token))


def test_account_that_has_the_pods_is_named_only_to_who_may_see_it(stage: Stage) -> None:
    pool_id = stage.pool()
    stage.account(7, "acme")
    stage.account(8, "globex")
    stage.job(100, pool_id=pool_id, account_id=8)
    stage.job(101, pool_id=pool_id, account_id=8)
    add_claim(stage.engine, pool_id, 100, account_id=8)
    stage.execute("UPDATE jobs SET state = 'claimed' WHERE id = 100")
    stage.job(102, pool_id=pool_id, account_id=7)
    words = "Pods have a job: 1 of globex, which has 1 more queued"
    assert words in stage.get("/jobs/102/explanation").json()["summary"]
    assert words in str(explained(stage, "accounts/7"))
    token = stage.token(TokenScope.READ, accounts=[7])
    assert "Pods have a job" in str(explained(stage, "accounts/7", token=token))
    for path in ("accounts/7", "jobs/102"):
        answer = stage.client.call("GET", f"/api/v1/{path}", token=token)
        assert answer.status_code == 200
        assert "globex" not in answer.text


def test_account_with_only_held_jobs_has_an_oldest_wait_and_a_problem(stage: Stage) -> None:
    stage.account(7, "acme")
    stage.job(100)
    stage.execute("UPDATE jobs SET hold_reason = 'no_pool'")
    found = stage.get("/accounts/7").json()
    assert found["jobs"]["oldest_queued_at"] is not None
    assert found["why"]["summary"] == "0 queued and 1 held jobs."


def test_hook_pods_are_hidden_with_the_end_of_a_pod_that_others_had_too(stage: Stage) -> None:
    pool_id = stage.pool()
    stage.account(7, "acme")
    stage.account(8, "globex")
    stage.job(100, pool_id=pool_id)
    add_claim(stage.engine, pool_id, 100, account_id=7)
    (row,) = stage.execute("SELECT id, uid FROM runner_pods")
    now = utcnow()
    hook = HookPod(name="p-workflow", phase="Running", node="node-7", problem="Evicted", created_at=now, seen_at=now)
    stage.execute("UPDATE runner_pods SET hook_pods = CAST(:it AS jsonb)", it=json.dumps([hook.packed()]))
    token = stage.token(TokenScope.READ, accounts=[7])
    path = f"pods/{row.uid}"
    assert explained(stage, path)["summary"] == "P-workflow (Running on node node-7; Evicted)."
    assert explained(stage, path, token=token)["summary"] == "P-workflow (Running; Evicted)."
    assert "node-7" not in stage.client.call("GET", f"/api/v1/{path}", token=token).text
    stage.job(101, pool_id=pool_id, account_id=8)
    other = add_claim(stage.engine, pool_id, 101, account_id=8)
    stage.execute(
        "UPDATE claims SET pod_uid = :uid, runner_pod_id = :id, ended_at = now(), state = 'ended', jit = NULL "
        "WHERE id = :other",
        uid=row.uid,
        id=row.id,
        other=other,
    )
    assert "p-workflow" not in stage.client.call("GET", f"/api/v1/{path}", token=token).text
    assert "p-workflow" in stage.client.call("GET", f"/api/v1/{path}", token=stage.reader).text


def test_starting_pods_are_listed_with_the_reason_why_they_do_not_poll(stage: Stage) -> None:
    pool_id = stage.pool()
    starting: dict[str, dict[str, Any]] = {
        "pulls": {"node": "n1", "waiting_reason": "ImagePullBackOff"},
        "full": {"unschedulable": True, "no_node_because": "0/3 nodes"},
        "gated": {"gates": "kueue/admission"},
        "placed": {"node": "n1"},
        "new": {},
        "polls": {"node": "n1", "waiting_reason": "ImagePullBackOff"},
    }
    for name in (*starting, "unlisted"):
        stage.execute(
            "INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)"
            " VALUES (:pool, 'runners', :name, :name, 'a', 'h', now())",
            pool=pool_id,
            name=name,
        )
    stage.execute("UPDATE runner_pods SET first_polled_at = now() WHERE uid = 'polls'")
    listed(stage, *(seen(name, name, **{"phase": "Pending", "node": None} | state) for name, state in starting.items()))
    assert {pod["name"]: pod["reason"] for pod in stage.get("/pods").json()["items"]} == {
        "pulls": "ImagePullBackOff",
        "full": "0/3 nodes",
        "gated": "it waits until another program removes its scheduling gates: kueue/admission",
        "placed": "its containers start on node n1",
        "new": "it has no node yet",
        "polls": None,
        "unlisted": None,
    }
    assert explained(stage, "pods/gated")["kubernetes"]["result"] == "waits"
