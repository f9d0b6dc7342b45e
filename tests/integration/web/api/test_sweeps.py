"""The sweeps' switches and their ledger over the API."""

from __future__ import annotations

from typing import Any

import pytest

from models.db.engine import transaction
from models.sweeps import repairs, sweep_runs
from models.sweeps.repairs import Case, Page
from ostler.clock import utcnow
from ostler.task_names import SWEEPS
from rules.sweeps.limits import Repaired, Source, Witness
from tests.integration.web.api.conftest import Stage


def repair(stage: Stage, *, sweep: str = "rematch", dry: bool = False, **case: Any) -> int:
    outcome = Repaired.DRY if dry else Repaired.DONE
    (made,) = transaction(
        stage.engine,
        lambda db: repairs.write(
            db,
            Page(sweep=sweep, run_id=1, dry=dry),
            [Case(what="match", why="the reason to hold the job no longer applies", **case)],
            outcome=outcome,
            settle_after=600,
            now=utcnow(),
        ),
    )
    return made


def test_every_sweep_is_listed_also_before_its_first_tick(stage: Stage) -> None:
    items = stage.get("/sweeps").json()["items"]
    assert [item["name"] for item in items] == list(SWEEPS)
    assert {item["outcome"] for item in items} == {None}


def test_a_pause_says_who_and_why_and_holds_until_it_is_taken_back(stage: Stage) -> None:
    answer = stage.put("/sweeps/rematch", {"paused": True, "why": "we restore Postgres"})
    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["paused_by"], shown["paused_why"]) == ("writer (API)", "we restore Postgres")
    stage.put("/sweeps/rematch", {"paused": True, "why": "again"})
    listed = {item["name"]: item for item in stage.get("/sweeps").json()["items"]}
    assert (listed["rematch"]["paused_at"], listed["rematch"]["paused_why"]) == (
        shown["paused_at"],
        "we restore Postgres",
    )
    taken = transaction(
        stage.engine, lambda db: sweep_runs.take(db, "rematch", holder="w", lease=9, again=False, now=utcnow())
    )
    assert isinstance(taken, sweep_runs.Refused)
    assert stage.put("/sweeps/rematch", {"paused": False}).json()["paused_at"] is None


def test_only_a_token_that_may_write_switches_and_only_what_there_is(stage: Stage) -> None:
    answer = stage.client.call("PUT", "/api/v1/sweeps/rematch", token=stage.reader, json={"paused": True})
    assert answer.status_code == 403
    assert stage.put("/sweeps/broom", {"paused": True}).status_code == 404
    assert stage.put("/sweeps/rematch", {"paused": 1}).status_code == 422
    assert stage.execute("SELECT * FROM sweeps") == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [4, 3, 2, 1]),
        ({"sweep": "resume"}, [2]),
        ({"outcome": "dry"}, [3]),
        ({"dry": "true"}, [3]),
        ({"dry": "false"}, [4, 2, 1]),
        ({"claim_id": 7}, [2]),
        ({"job_id": 9}, [4, 1]),
        ({"pod_uid": "u"}, [4]),
        ({"run_id": 2}, []),
    ],
)
def test_each_filter_of_repairs_leaves_what_it_names(stage: Stage, query: dict[str, Any], expected: list[int]) -> None:
    repair(stage, job_id=9)
    repair(stage, sweep="resume", claim_id=7)
    repair(stage, dry=True)
    repair(stage, job_id=9, pod_uid="u", kills=True, witnesses=(Witness(Source.GITHUB, "absent"),), proof="204")
    found: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        page = stage.get("/repairs", limit=1, **query, **cursor).json()
        found += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == expected
    newest = stage.get("/repairs").json()["items"][0]
    assert (newest["witnesses"], newest["outcome"]) == (["github: absent", "proof: 204"], "verified")
