"""Ledger of repairs: the repairs of each sweep, with their reasons and results.

The row of a repair is written in the transaction that makes the repair. If the repair is an external call, the row is
committed before the call. Later ticks of the same sweep check whether the repair has its expected effect (`verify`). If
the effect does not appear within the timing `repair_settle_after`, the repair is `failed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import CheckConstraint, Connection, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial
from models.db.sql import text
from rules.sweeps.limits import Expect, Repaired, Witness

LIMIT = 2000
"""Maximum number of repairs that one tick verifies."""

_OPEN = text("outcome IN ('begun', 'done')")


def _one_of(column: str, values: type[Repaired | Expect]) -> str:
    return f"{column} IN (" + ", ".join(f"'{value}'" for value in values) + ")"


class Repair(Base):
    """One repair of one subject.

    Ids of rows in other tables are stored without foreign keys, because a repair is kept longer than those rows.
    """

    __tablename__ = "repairs"
    __table_args__ = (
        CheckConstraint(_one_of("outcome", Repaired), name="outcome_known"),
        CheckConstraint(_one_of("expects", Expect), name="expects_known"),
        Index("ix_repairs_sweep_id", "sweep", "id"),
        Index("ix_repairs_open", "sweep", "id", postgresql_where=_OPEN),
        Index("ix_repairs_claim_id_id", "claim_id", "id", postgresql_where=text("claim_id IS NOT NULL")),
        Index("ix_repairs_job_id_id", "job_id", "id", postgresql_where=text("job_id IS NOT NULL")),
        Index("ix_repairs_pod_uid_id", "pod_uid", "id", postgresql_where=text("pod_uid IS NOT NULL")),
        Index("ix_repairs_run_id_id", "run_id", "id"),
        Index("ix_repairs_outcome_id", "outcome", "id"),
        Index("ix_repairs_dry_id", "id", postgresql_where=text("dry")),
        Index("ix_repairs_kills_id", "id", postgresql_where=text("kills")),
        Index("ix_repairs_at", "at"),
    )

    id: Mapped[Serial]
    sweep: Mapped[str]
    run_id: Mapped[int]
    at: Mapped[datetime]
    what: Mapped[str]
    why: Mapped[str]
    witnesses: Mapped[list[str]]
    kills: Mapped[bool]
    dry: Mapped[bool]
    pod_uid: Mapped[str | None]
    claim_id: Mapped[int | None]
    job_id: Mapped[int | None]
    runner_name: Mapped[str | None]
    subject: Mapped[str | None] = mapped_column(
        comment="subject that is no Pod, claim, job or runner, for example the GUID of a webhook"
    )
    before: Mapped[str | None]
    after: Mapped[str | None]
    expects: Mapped[str]
    outcome: Mapped[str]
    verify_by: Mapped[datetime] = mapped_column(comment="time after which an unverified repair counts as failed")
    verified_at: Mapped[datetime | None]
    note: Mapped[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A repair to make, with its reasons.

    - `what`: the action in one or two words.
    - `why`: the reason for the repair.
    - `before` and `after`: the states of the subject before and after the repair.
    - `expects`: the effect that verifies the repair.
    - `kills`: True if the repair is destructive (law L9). The number of destructive repairs per tick is limited. Each
      of them needs two witnesses (`witnesses`) or a `proof`.
    - `agreed`: True if more destructive repairs are allowed in one tick (`rules.sweeps.limits.allowance`).
    """

    what: str
    why: str
    pod_uid: str | None = None
    claim_id: int | None = None
    job_id: int | None = None
    runner_name: str | None = None
    subject: str | None = None
    before: str | None = None
    after: str | None = None
    expects: Expect = Expect.NOTHING
    kills: bool = False
    witnesses: tuple[Witness, ...] = ()
    proof: str | None = None
    agreed: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """The tick that makes a repair: its sweep, its run, and whether it is a dry run."""

    sweep: str
    run_id: int
    dry: bool


def write(
    db: Connection,
    page: Page,
    cases: Sequence[Case],
    *,
    outcome: Repaired,
    settle_after: float,
    now: datetime,
    once: bool = False,
) -> Sequence[int]:
    """Write repairs with the same outcome into the ledger, and return the ids of the repairs.

    A repair that expects no effect is verified as soon as it is done. Any other repair fails if its effect does not
    appear within `settle_after` seconds. If `once` is True, a repair is skipped if the same sweep has an open repair
    with the same action for the same claim.
    """
    rows = [
        {
            "what": case.what,
            "why": case.why,
            "kills": case.kills,
            "pod_uid": case.pod_uid,
            "claim_id": case.claim_id,
            "job_id": case.job_id,
            "runner_name": case.runner_name,
            "subject": case.subject,
            "before": case.before,
            "after": case.after,
            "expects": case.expects,
            "witnesses": [*map(str, case.witnesses), *([f"proof: {case.proof}"] if case.proof else [])],
        }
        for case in cases
    ]
    inserted = db.execute(
        text("""
            INSERT INTO repairs (sweep, run_id, dry, at, verify_by, what, why, kills, pod_uid, claim_id, job_id,
                                 runner_name, subject, before, after, expects, witnesses, outcome, verified_at)
            SELECT :sweep, :run_id, :dry, :now, :verify_by, what, why, kills, pod_uid, claim_id, job_id, runner_name,
                   subject, before, after, expects, witnesses,
                   CASE WHEN expects = 'nothing' AND :outcome = 'done' THEN 'verified' ELSE :outcome END,
                   CASE WHEN expects = 'nothing' AND :outcome = 'done' THEN CAST(:now AS timestamptz) END
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS new (
                what text, why text, kills boolean, pod_uid text, claim_id bigint, job_id bigint, runner_name text,
                subject text, before text, after text, expects text, witnesses text[])
            WHERE NOT :once OR NOT EXISTS (
                SELECT FROM repairs r WHERE r.claim_id = new.claim_id AND r.sweep = :sweep AND r.what = new.what
                  AND r.outcome IN ('begun', 'done'))
            RETURNING id
        """),
        {
            "sweep": page.sweep,
            "run_id": page.run_id,
            "dry": page.dry,
            "now": now,
            "outcome": outcome,
            "verify_by": now + timedelta(seconds=settle_after),
            "rows": json.dumps(rows),
            "once": once,
        },
    )
    return list(inserted.scalars())


def finish(db: Connection, repair_id: int, *, outcome: Repaired, note: str | None, now: datetime) -> bool:
    """Record the result of an open repair. Return False without a change if a result was already recorded."""
    settled = db.execute(
        text("""
            UPDATE repairs SET outcome = :outcome, note = coalesce(CAST(:note AS text), note),
                   verified_at = CASE WHEN :outcome = 'verified' THEN CAST(:now AS timestamptz) END
            WHERE id = :id AND outcome IN ('begun', 'done') RETURNING id
        """),
        {"id": repair_id, "outcome": outcome, "note": note, "now": now},
    ).one_or_none()
    return settled is not None


_VERIFY = text("""
    WITH looked AS (
        SELECT r.id, r.verify_by, CASE r.expects
            WHEN 'nothing' THEN r.outcome = 'done'
            WHEN 'claim_moved' THEN EXISTS (SELECT FROM claims c WHERE c.id = r.claim_id
                                            AND (c.state IS DISTINCT FROM r.before OR c.ended_at IS NOT NULL))
            WHEN 'claim_ended' THEN EXISTS (SELECT FROM claims c WHERE c.id = r.claim_id AND c.ended_at IS NOT NULL)
            WHEN 'stamped' THEN EXISTS (SELECT FROM claims c WHERE c.id = r.claim_id
                                        AND (c.stamp = 'on' OR c.ended_at IS NOT NULL))
            WHEN 'unstamped' THEN EXISTS (SELECT FROM claims c WHERE c.id = r.claim_id
                                          AND (c.stamp <> 'removing' OR c.ended_at IS NOT NULL))
            WHEN 'pod_gone' THEN EXISTS (SELECT FROM runner_pods p WHERE p.uid = r.pod_uid AND p.gone_at IS NOT NULL)
                              OR EXISTS (SELECT FROM claims c WHERE c.pod_uid = r.pod_uid AND c.end_reason = 'retired')
            WHEN 'accepted' THEN EXISTS (SELECT FROM deliveries d WHERE d.guid = r.subject)
            ELSE false END AS came
        FROM repairs r
        WHERE r.sweep = :sweep AND r.outcome IN ('begun', 'done') ORDER BY r.id LIMIT :limit
        FOR NO KEY UPDATE OF r SKIP LOCKED
    )
    UPDATE repairs r SET outcome = CASE WHEN l.came THEN 'verified' ELSE 'failed' END,
           verified_at = CASE WHEN l.came THEN CAST(:now AS timestamptz) END,
           note = CASE WHEN l.came THEN r.note
                       ELSE coalesce(r.note, CASE r.outcome WHEN 'begun' THEN 'its process ended during the call'
                                                            ELSE 'its effect was not observed in time' END) END
    FROM looked l WHERE r.id = l.id AND r.outcome IN ('begun', 'done') AND (l.came OR l.verify_by < :now)
    RETURNING r.outcome
""")


def verify(db: Connection, sweep: str, *, now: datetime) -> Mapping[Repaired, int]:
    """Verify the open repairs of a sweep. Return how many repairs were verified and how many have failed."""
    found = list(db.execute(_VERIFY, {"sweep": sweep, "limit": LIMIT, "now": now}).scalars())
    return {outcome: found.count(outcome) for outcome in (Repaired.VERIFIED, Repaired.FAILED) if outcome in found}


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete old repairs whose result is known, and return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM repairs WHERE id = ANY(:ids)"), {"ids": ids}).rowcount
