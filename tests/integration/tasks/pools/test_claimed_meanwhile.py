"""A Pod that is claimed after the reconciler's list and before its acts is never retired, whatever the reason was."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from k8s_adapters.runners.pods import list_pods
from models.pools import pool_plans
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import NEW, kept, new_tick, polls, reasons, retired, spec, stamp, woken


def fleet(stage: Stage, why: str) -> list[str]:
    """Create three warm Pods that are all to be retired, and return their names in the order of their retirement."""
    stage.pool(replicas=3)
    kept(stage)
    polls(stage)
    if why == "surplus":
        spec(stage, replicas=0)
    else:
        spec(stage, image=NEW, rollout={"maxUnavailablePercent": 100})
    return sorted(stage.pods())


def take(stage: Stage, name: str, *, stamped: bool) -> int:
    """Claim a Pod for a job, and stamp it."""
    stage.job(7)
    claim = stage.claim(name, job_id=7, state="claimed")
    if stamped:
        stamp(stage, stage.pods()[name])
        stage.rows("UPDATE claims SET stamp = 'on' WHERE id = :id", id=claim)
    return claim


@pytest.mark.parametrize("stamped", [True, False], ids=["stamped", "unstamped"])
@pytest.mark.parametrize("why", ["surplus", "template"])
def test_a_pod_claimed_right_after_the_list_survives(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, why: str, stamped: bool
) -> None:
    name = fleet(stage, why)[0]

    def late(*args: Any, **named: Any) -> Any:
        listed = list_pods(*args, **named)
        monkeypatch.setattr("tasks.pools.observe.list_pods", list_pods)
        claims.append(take(stage, name, stamped=stamped))
        return listed

    claims: list[int] = []
    monkeypatch.setattr("tasks.pools.observe.list_pods", late)
    woken(stage)
    retired(stage)
    new_tick(stage)
    kept(stage)
    retired(stage)

    assert name in stage.pods()
    assert name not in reasons(stage)
    assert stage.see(claims[0]).ended_at is None
    assert len(reasons(stage)) == 2


@pytest.mark.parametrize("stamped", [True, False], ids=["stamped", "unstamped"])
@pytest.mark.parametrize("why", ["surplus", "template"])
def test_a_pod_claimed_between_the_plan_and_its_commit_survives(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, why: str, stamped: bool
) -> None:
    name = fleet(stage, why)[0]
    commit: Callable[..., Any] = pool_plans.commit_plan

    def late(*args: Any, **named: Any) -> Any:
        """Claim from a session that does not take the pool's lock. The matcher would wait for it."""
        assert {each.id for each in args[2].retire} >= {
            row.id for row in stage.rows("SELECT id FROM runner_pods WHERE name = :name", name=name)
        }
        monkeypatch.setattr(pool_plans, "commit_plan", commit)
        in_a_thread(lambda: take(stage, name, stamped=stamped))
        return commit(*args, **named)

    monkeypatch.setattr(pool_plans, "commit_plan", late)
    kept(stage)
    retired(stage)

    assert name in stage.pods()
    assert name not in reasons(stage)
    assert len(reasons(stage)) == 2


@pytest.mark.parametrize("why", ["surplus", "template"])
def test_a_pod_whose_delivered_claim_ended_between_the_plan_and_its_commit_survives(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, why: str
) -> None:
    name = fleet(stage, why)[0]
    commit: Callable[..., Any] = pool_plans.commit_plan

    def serve() -> None:
        """Claim and deliver, and then end the claim, which proves nothing about the runner."""
        stage.job(7)
        claim = stage.claim(name, job_id=7, state="delivered")
        stage.rows(
            "UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :id", id=claim
        )

    def late(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(pool_plans, "commit_plan", commit)
        in_a_thread(serve)
        return commit(*args, **named)

    monkeypatch.setattr(pool_plans, "commit_plan", late)
    kept(stage)
    retired(stage)

    assert name in stage.pods()
    assert name not in reasons(stage)
    assert len(reasons(stage)) == 2


@pytest.mark.parametrize("end", ["terminal_at", "gone_at"])
def test_a_pod_that_ended_between_the_plan_and_its_commit_gets_no_retire_claim(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, end: str
) -> None:
    name = fleet(stage, "surplus")[0]
    commit: Callable[..., Any] = pool_plans.commit_plan

    def late(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(pool_plans, "commit_plan", commit)
        in_a_thread(lambda: stage.rows(f"UPDATE runner_pods SET {end} = now() WHERE name = :name", name=name))  # noqa: S608
        return commit(*args, **named)

    monkeypatch.setattr(pool_plans, "commit_plan", late)
    kept(stage)

    assert name not in reasons(stage)
    assert len(reasons(stage)) == 2


def in_a_thread(what: Callable[[], Any]) -> None:
    """Do something in another thread, like another process, because this thread is inside a transaction."""
    thread = Thread(target=what)
    thread.start()
    thread.join()
