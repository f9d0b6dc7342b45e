"""Effects of repairs: the outcome of a repair stays open until rows show its effect."""

from __future__ import annotations

import pytest

from models.db.engine import transaction
from models.sweeps import repairs
from models.sweeps.repairs import Case, Page
from ostler.clock import utcnow
from rules.sweeps.limits import Expect, Repaired
from tests.integration.tasks.conftest import Stage


@pytest.mark.parametrize(
    ("expects", "other", "came"),
    [
        (Expect.UNSTAMPED, "stamp = 'removing'", "stamp = 'off'"),
        (
            Expect.POD_GONE,
            "state = 'ended', ended_at = now(), end_reason = 'released'",
            "state = 'ended', ended_at = now(), end_reason = 'retired'",
        ),
    ],
    ids=["unstamped", "pod_gone"],
)
def test_repair_is_verified_once_its_claim_shows_the_effect(
    clusterless: Stage, expects: Expect, other: str, came: str
) -> None:
    stage = clusterless
    stage.add_pod("pod-1")
    stage.job(7)
    claim = stage.claim("pod-1", job_id=7, state="claimed")
    case = Case(what="test", why="test", claim_id=claim, pod_uid="pod-1", expects=expects)
    page = Page("stub", 1, dry=False)
    transaction(
        stage.rt.engine,
        lambda db: repairs.write(db, page, [case], outcome=Repaired.DONE, settle_after=600, now=utcnow()),
    )

    def outcome_after(change: str) -> str:
        stage.rows(f"UPDATE claims SET {change}")  # noqa: S608
        transaction(stage.rt.engine, lambda db: repairs.verify(db, "stub", now=utcnow()))
        (row,) = stage.rows("SELECT outcome FROM repairs")
        return str(row.outcome)

    assert outcome_after(other) == "done"
    assert outcome_after(came) == "verified"
