"""Writes to the API server that keep failing for a pool, in the row of the pool.

Several workers might record their runs at once. A lost update delays the status of the pool by one run at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection

from models.db.sql import text
from rules.pools.failing_calls import FailingCall, after_run


def read(pool: Any) -> tuple[FailingCall, ...]:
    """Return the failing calls in the row of a pool."""
    return tuple(
        FailingCall(
            call=each["call"],
            failures=each["failures"],
            since=datetime.fromisoformat(each["since"]),
            at=datetime.fromisoformat(each["at"]),
            words=each["words"],
        )
        for each in pool.failing_calls or ()
    )


def record(
    db: Connection, uid: str, outcomes: Mapping[str, str | None], *, began: datetime, now: datetime
) -> tuple[FailingCall, ...]:
    """Record the outcomes of a run that began at `began`, and return the failing calls of the pool with this UID.

    `outcomes`: for each call of the run, the text of its last failure, or None if no write of the call failed. If the
    pool has no row, nothing is recorded.
    """
    row = db.execute(text("SELECT failing_calls FROM pools WHERE uid = :uid"), {"uid": uid}).one_or_none()
    if row is None:
        return ()
    known = read(row)
    after = after_run(known, outcomes, began=began, now=now)
    if after != known:
        calls = orjson.dumps([asdict(each) for each in after]).decode() if after else None
        db.execute(
            text("UPDATE pools SET failing_calls = CAST(:calls AS jsonb) WHERE uid = :uid"),
            {"calls": calls, "uid": uid},
        )
    return after
