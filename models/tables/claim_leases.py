"""Leases of claims, and the times at which claims are due.

A step first takes a lease on its claim (`lease`). Then the step does its one operation outside Postgres. The step ends
with a guarded update that tests `chain_no` again, or with `give_back`.

A transition can write `leased_until` and `due_at` together with the state (`models.tables.transitions`). If the state
does not change, only this module writes these columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.db import epochs
from models.db.engine import record_point
from models.db.sql import text
from models.tables.stalls import OVERDUE, OVERDUE_SINCE
from rules.claims.machines import allowed

WAITS = "waits for its turn"
"""Value of `last_error` if a rate limit postponed the claim's step until `due_at`. The step has not failed."""

UNDOING = frozenset({"lease_unstamp", "lease_release", "lease_retire"})
"""Steps that could harm a busy Pod if the database does not know the Pod's newest claim."""

QUEUES = ("dispatch", "github", "retire")
"""Queues of steps: `dispatch` for stamps, un-stamps and releases, `github` for mints, `retire` for retirements."""

_FOUND = f"c.stalled_cause IS NULL AND {OVERDUE}"


def lease(
    db: Connection,
    name: str,
    claim_id: int,
    *,
    chain_no: int | None,
    now: datetime,
    guard: str = "",
    values: str = "",
    trusted: bool = True,
    **parameters: Any,
) -> Row[Any] | None:
    """Lease a claim for the step `name`, and return the row of the claim.

    The transition table determines the duration of the lease. If `chain_no` is None, any chain number is accepted.
    `guard` is a further SQL condition, and `values` is SQL that sets further columns.

    Return None if any of these conditions is true:

    - The claim has ended, or it has another purpose than the step.
    - The step is not allowed from the state of the claim.
    - `chain_no` is given, and the claim has another chain number.
    - The claim does not satisfy `guard`.
    - Another step of the claim, or another run of the same step, holds the lease.
    - The database is older than the cluster (`models.db.epochs`).
    - The step undoes a claim (`UNDOING`), `trusted` is True, and the epoch was not confirmed recently.
    """
    transition = allowed(name)
    rows = epochs.TRUSTED if trusted and name in UNDOING else epochs.CURRENT
    row = db.execute(
        text(f"""
            UPDATE claims SET leased_until = :until,
                   due_at = CASE WHEN state IN ('delivered', 'executing') THEN due_at ELSE :until END {values}
            WHERE id = :id AND ended_at IS NULL AND purpose = ANY(:purposes) AND state = ANY(:sources)
              AND (CAST(:chain_no AS bigint) IS NULL OR chain_no = :chain_no)
              AND (leased_until IS NULL OR leased_until < :now) AND {rows} {guard}
            RETURNING *
        """),
        {
            "id": claim_id,
            "purposes": sorted(transition.purposes),
            "sources": sorted(transition.sources),
            "chain_no": chain_no,
            "now": now,
            "until": now + timedelta(seconds=transition.seconds),
            **parameters,
        },
    ).one_or_none()
    if row is not None:
        record_point(db, name, machine=transition.machine, rows=1)
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A leased claim, with the chain number and the end of its lease."""

    claim_id: int
    chain_no: int
    lease_until: datetime


def give_back(db: Connection, work: Leased, *, due_at: datetime, error: str, undoes: bool = False) -> None:
    """End a lease without a transition, so that the step runs again at `due_at` at the latest.

    `error` is the reason. `undoes` is True if the step is a release or a retirement. If the lease has expired and
    another run of a step has leased the claim, nothing changes.

    If `undoes` is False, another process might have requested the release of the claim while the step was running. The
    claim then already has a due time. The earlier of this time and `due_at` applies. If the claim is delivered or
    executing, no step of the claim is due afterwards.
    """
    db.execute(
        text("""
            UPDATE claims SET leased_until = NULL,
                   last_error = CASE WHEN state = 'releasing' AND NOT :undoes THEN NULL ELSE :error END,
                   due_at = CASE WHEN state IN ('delivered', 'executing') THEN NULL
                                 WHEN state = 'releasing' AND NOT :undoes THEN least(due_at, :due)
                                 ELSE CAST(:due AS timestamptz) END
            WHERE id = :id AND chain_no = :chain_no AND leased_until = :until AND ended_at IS NULL
        """),
        {
            "id": work.claim_id,
            "chain_no": work.chain_no,
            "until": work.lease_until,
            "due": due_at,
            "error": error,
            "undoes": undoes,
        },
    )


def set_due(db: Connection, which: str, *, due_at: datetime, values: str = "", **parameters: Any) -> Sequence[int]:
    """Set the time at which claims are due, and return the ids of the changed claims.

    `which` is the SQL condition that selects the claims. `values` is SQL that sets further columns. `which` and
    `values` can refer to the columns of `claims` and to `parameters`.
    """
    rows = db.execute(
        text(f"UPDATE claims SET due_at = :due_at{values} WHERE {which} RETURNING id"),
        {"due_at": due_at, **parameters},
    )
    return rows.scalars().all()


def raise_chains(
    db: Connection, *, limit: int, due_after: float, heads: Mapping[str, datetime | None], now: datetime
) -> Sequence[Row[Any]]:
    """Increase the chain number of claims whose `due_at` is in the past, and return these claims.

    The claims become due again after `due_after` seconds. A claim is also marked as stalled if its process or its
    message was lost (`OVERDUE`). At most `limit` claims are returned. A claim is skipped if its lease has not expired,
    or if another session has locked its row. A claim is also skipped if its message might still wait in a queue
    (`heads`, see `models.claims.resume.claim_due`). A delivered or executing claim is skipped unless its stamp must be
    put on or removed.
    """
    return db.execute(
        text(f"""
            UPDATE claims c SET chain_no = chain_no + 1, due_at = :next, last_error = NULL,
                   stalled_at = CASE WHEN {_FOUND} THEN {OVERDUE_SINCE} ELSE stalled_at END,
                   stalled_cause = CASE WHEN {_FOUND} THEN 'message_lost' ELSE stalled_cause END,
                   stalled_found_by = CASE WHEN {_FOUND} THEN 'resume' ELSE stalled_found_by END
            FROM (
                SELECT id, last_error IS NOT DISTINCT FROM :waits AS waited, last_error <> :waits AS tried FROM claims
                WHERE ended_at IS NULL AND due_at < :now AND (leased_until IS NULL OR leased_until < :now)
                  AND (state NOT IN ('delivered', 'executing') OR stamp IN ('removing', 'off', 'gave_up'))
                  AND due_at < CASE
                      WHEN purpose = 'retire' THEN CAST(:retire AS timestamptz)
                      WHEN state = 'claimed' AND stamp = 'none' THEN CAST(:dispatch AS timestamptz)
                      WHEN state = 'claimed' THEN least(CAST(:dispatch AS timestamptz), CAST(:github AS timestamptz))
                      WHEN state IN ('releasing', 'delivered', 'executing') OR stamp = 'removing'
                          THEN CAST(:dispatch AS timestamptz)
                      ELSE 'infinity' END
                ORDER BY due_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED) found
            WHERE c.id = found.id
            RETURNING c.id, c.chain_no, c.purpose, c.state, c.stamp, c.pod_uid, found.waited, found.tried
        """),
        {
            "now": now,
            "next": now + timedelta(seconds=due_after),
            "limit": limit,
            "waits": WAITS,
            **{queue: heads.get(queue) or "infinity" for queue in QUEUES},
        },
    ).all()
