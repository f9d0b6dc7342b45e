"""Parameters of the transitions and leases: a wrong name is refused before Postgres is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from sqlalchemy import Connection

from models.state.claim_leases import _lease
from models.state.transitions import move_claim, move_jobs

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLOSED = cast("Connection", None)
EVENT: dict[str, Any] = {"now": NOW, "who": "test", "why": "test"}


@pytest.mark.parametrize("wrong", ["values", "end_reasons", "timestamptz", "ids"])
def test_transition_refuses_a_value_that_its_sql_does_not_name(wrong: str) -> None:
    sql: dict[str, Any] = {"guard": "AND leased_until = :until::timestamptz", "sets": ", end_reason = :end_reason"}
    given: dict[str, Any] = {"until": NOW, "end_reason": "released", wrong: ""}
    for move in (
        lambda: move_claim(CLOSED, "end_released", 1, **EVENT, **sql, **given),
        lambda: move_jobs(CLOSED, "job_run", [1], **EVENT, **sql, **given),
        lambda: _lease(CLOSED, "lease_mint", 1, chain_no=1, now=NOW, **sql, **given),
    ):
        with pytest.raises(TypeError, match=f"no parameter {wrong}:"):
            move()
