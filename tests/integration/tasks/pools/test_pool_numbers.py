"""Numbers of a pool: the object's status, `ostler pool list`, `ostler pool show` and the API have the same ones."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from k8s_adapters.calls.client import Json
from ostler.clock import utcnow
from rules.pools.pod_states import PodState
from tests.database import Database
from tests.integration.cli.test_operator import Operator
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import tick
from tests.integration.tasks.pools.fleet import beats, kept, polls, status, the_pool
from tests.integration.tasks.pools.test_persistent_runners import LIFE, GitHub, github, no_chains, offers, online, runs
from tests.integration.tasks.pools.test_stateful_sets import grown
from tests.integration.web.api.conftest import serving

__all__ = ["github", "no_chains"]

NUMBERS = ("replicas", *map(str, PodState), "stale", "lost")
WORKLOADS = pytest.mark.parametrize("workload", ["Pod", pytest.param("StatefulSet", marks=pytest.mark.cluster)])


def shown(stage: Stage, database: Database) -> dict[str, Json]:
    """Return the status of the pool `small` as each command and each request shows it."""
    operator = Operator(database)
    pool_id = the_pool(stage).id
    with serving(database) as api:
        return {
            "pool list": operator.json("pool", "list")[0]["status"],
            "pool show": operator.json("pool", "show", "small")["status"],
            "list of the API": api.get("/pools").json()["items"][0]["status"],
            "pool of the API": api.get(f"/pools/{pool_id}").json()["status"],
        }


def compare(stage: Stage, database: Database, **expected: int) -> None:
    """Write the status of the pool, and check that every view has these numbers and those of the object."""
    stage.rows("UPDATE pools SET status_at = NULL")
    tick(stage)
    written = status(stage)
    assert {name: written[name] for name in expected} == expected
    for view, found in shown(stage, database).items():
        assert {name: found[name] for name in NUMBERS} == {name: written[name] for name in NUMBERS}, view
        assert found["observed_generation"] == written["observedGeneration"]
        assert abs(utcnow() - datetime.fromisoformat(found["at"])) < timedelta(minutes=5)
        assert found["age_seconds"] < 300


@WORKLOADS
def test_numbers_of_ephemeral_runners_are_those_of_the_object(stage: Stage, database: Database, workload: str) -> None:
    stage.pool(replicas=6, workload=workload)
    busy, reserved, ending, silent, lost, _ = grown(stage, 6)
    for number, (pod, state) in enumerate([(busy, "executing"), (reserved, "claimed"), (ending, "executing")]):
        stage.job(number)
        stage.claim(pod, job_id=number, state=state)
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now() WHERE job_id = 2")
    stage.rows("UPDATE runner_pods SET polled_at = now() - interval '1 hour' WHERE name = :name", name=silent)
    stage.rows("UPDATE runner_pods SET node_gone_at = now() WHERE name = :name", name=lost)

    compare(stage, database, warm=1, reserved=1, busy=1, ending=1, unresponsive=1, lost=1, retiring=0, replicas=5)


@WORKLOADS
@pytest.mark.usefixtures("no_chains")
def test_numbers_of_persistent_runners_are_those_of_the_object(
    stage: Stage, github: GitHub, database: Database, workload: str
) -> None:
    stage.pool(replicas=3, workload=workload, **LIFE)
    grown(stage, 3)
    offers(stage)
    claims = online(stage, github, 3)
    stage.job(7, state="queued")
    github.show(str(stage.see(claims[0]).runner_name), busy=True)
    runs(stage, claims[0], 7, "in_progress")

    compare(stage, database, warm=2, busy=1, reserved=0, retiring=0, replicas=3)


def test_status_grows_old_only_while_no_reconcile_confirms_it(stage: Stage, database: Database) -> None:
    stage.pool(replicas=1)
    kept(stage)
    polls(stage)
    beats(stage)
    stage.rows("UPDATE pools SET status_at = NULL")
    kept(stage)
    stage.rows("""
        UPDATE pools SET status_at = now() - interval '1 hour', status_checked_at = now() - interval '50 minutes'
    """)
    assert {round(found["age_seconds"] / 60) for found in shown(stage, database).values()} == {50}

    kept(stage)

    assert the_pool(stage).status_at < utcnow() - timedelta(minutes=59), "the object is not written again"
    assert all(found["age_seconds"] < 60 for found in shown(stage, database).values())


def test_refused_status_keeps_its_age_in_every_view(
    stage: Stage, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.pool(replicas=1)
    kept(stage)
    stage.rows("""
        UPDATE pools SET status_at = now() - interval '1 hour', status_checked_at = now() - interval '1 hour'
    """)
    monkeypatch.setattr("tasks.pools.report.patch_pool_status", refuse)
    polls(stage)
    kept(stage)
    for found in shown(stage, database).values():
        assert found["warm"] == status(stage)["warm"] == 0
        assert found["age_seconds"] > 3000


def refuse(*_: Any, **__: Any) -> None:
    from ostler.errors import Forbidden  # noqa: PLC0415

    raise Forbidden("no")
