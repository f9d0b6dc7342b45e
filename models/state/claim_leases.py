"""Leases of claims, and the times at which claims are due.

A step first takes a lease on its claim, for example with `lease_stamp`. Then the step does its one operation outside
Postgres. The step ends with a guarded update that tests `chain_no` again, or with `give_back`. The description of
`_lease` says when a lease is refused.

A transition can write `leased_until` and `due_at` together with the state (`models.state.transitions`). If the state
does not change, only this module writes these columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import Connection, Row

from models.db import epochs
from models.db.engine import record_point
from models.db.sql import refuse_unknown, text
from models.state.claims import Claim
from models.state.stalls import OVERDUE, OVERDUE_SINCE
from rules.claims.machines import allowed

WAITS = "waits for its turn"
"""Value of `last_error` if a rate limit postponed the claim's step until `due_at`. The step has not failed."""

UNDOING = frozenset({"lease_unstamp", "lease_release", "lease_retire"})
"""Steps that could harm a busy Pod if the database does not know the Pod's newest claim."""

QUEUES = ("dispatch", "github", "retire")
"""Queues of steps: `dispatch` for stamps, un-stamps and releases, `github` for mints, `retire` for retirements."""

_FOUND = f"c.stalled_cause IS NULL AND {OVERDUE}"


def _lease(
    db: Connection,
    name: str,
    claim_id: int,
    *,
    chain_no: int | None,
    now: datetime,
    guard: str = "",
    sets: str = "",
    trusted: bool = True,
    **given: Any,
) -> Claim | None:
    """Lease a claim for the step `name`, and return the row of the claim, with the columns of the class `Claim`.

    The transition table determines the duration of the lease. If `chain_no` is None, any chain number is accepted.
    `guard` is a further SQL condition, and `sets` is SQL that sets further columns. `given` has their values.

    Return None if any of these conditions is true:

    - The claim has ended, or it has another purpose than the step.
    - The step is not allowed from the state of the claim.
    - `chain_no` is given, and the claim has another chain number.
    - The claim does not satisfy `guard`.
    - Another step of the claim, or another run of the same step, holds the lease.
    - The database is older than the cluster (`models.db.epochs`).
    - The step undoes a claim (`UNDOING`), `trusted` is True, and the epoch was not confirmed recently.

    Raises TypeError if `given` has a value that neither `guard` nor `sets` refers to.
    """
    refuse_unknown(guard + sets, tuple(given))
    transition = allowed(name)
    rows = epochs.TRUSTED if trusted and name in UNDOING else epochs.CURRENT
    row = db.execute(
        text(f"""
            UPDATE claims SET leased_until = :until,
                   due_at = CASE WHEN state IN ('delivered', 'executing') THEN due_at ELSE :until END{sets}
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
            **given,
        },
    ).one_or_none()
    if row is not None:
        record_point(db, name, machine=transition.machine, rows=1)
    return cast("Claim | None", row)


_WRITES = ", stamp_no = stamp_no + 1"  # before the step writes the annotation of the Pod


def lease_stamp(db: Connection, claim_id: int, *, chain_no: int | None, now: datetime) -> Claim | None:
    """Lease a claim for its stamp, unless it needs no stamp now or has no account."""
    # A claim that was rebuilt after a restore might have no account, and a stamp needs one.
    guard = """AND (state <> 'claimed' OR stamp = 'none') AND stamp <> 'removing' AND account_id IS NOT NULL
        AND (stamp_after IS NULL OR stamp_after <= :now)"""
    return _lease(db, "lease_stamp", claim_id, chain_no=chain_no, now=now, guard=guard, sets=_WRITES)


def lease_mint(db: Connection, claim_id: int, *, chain_no: int | None, now: datetime) -> Claim | None:
    """Lease a claim for its mint, if its stamp is `on` or `gave_up` (law L5)."""
    guard = "AND stamp IN ('on', 'gave_up')"
    return _lease(db, "lease_mint", claim_id, chain_no=chain_no, now=now, guard=guard)


def lease_unstamp(db: Connection, claim_id: int, *, chain_no: int | None, now: datetime) -> Claim | None:
    """Lease a minted claim whose stamp is `removing` for its un-stamp."""
    guard = "AND state = 'minted' AND stamp = 'removing'"
    return _lease(db, "lease_unstamp", claim_id, chain_no=chain_no, now=now, guard=guard, sets=_WRITES)


def lease_unstamp_again(db: Connection, claim_id: int, *, delivered_at: datetime, now: datetime) -> Claim | None:
    """Lease a claim that was last delivered at `delivered_at` for its un-stamp, unless its poller has ended."""
    guard = """
        AND state = 'delivered' AND delivered_at = :delivered_at
        AND (stamp = 'removing'  -- an un-stamp that has begun continues; then the stamp is put on again
             OR stamp = 'on' AND NOT EXISTS (
                 SELECT FROM runner_pods p WHERE p.id = claims.runner_pod_id AND p.poller_ended_at IS NOT NULL))
    """
    return _lease(
        db,
        "lease_unstamp",
        claim_id,
        chain_no=None,
        now=now,
        guard=guard,
        sets=_WRITES,
        delivered_at=delivered_at,
    )


def lease_release(
    db: Connection, claim_id: int, *, chain_no: int | None, undelivered_since: datetime | None = None, now: datetime
) -> Claim | None:
    """Lease a `releasing` claim for its release, and raise its chain number.

    With `undelivered_since`, the epoch need not be confirmed. Only a claim is then leased that was never delivered, and
    that has been `releasing` since that time or longer.
    """
    guard, given = "", dict[str, Any]()
    if undelivered_since is not None:
        guard = "AND delivered_at IS NULL AND changed_at <= :undelivered_since"
        given["undelivered_since"] = undelivered_since
    return _lease(
        db,
        "lease_release",
        claim_id,
        chain_no=chain_no,
        now=now,
        guard=guard,
        sets=f"{_WRITES}, chain_no = chain_no + 1",
        trusted=undelivered_since is None,
        **given,
    )


def lease_retire(db: Connection, claim_id: int, *, chain_no: int | None, now: datetime) -> Claim | None:
    """Lease a `retire` claim for its step."""
    return _lease(db, "lease_retire", claim_id, chain_no=chain_no, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A leased claim, with the chain number and the end of its lease."""

    claim_id: int
    chain_no: int
    lease_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Minting(Leased):
    """A claim that is leased for its mint, with the open attempt and the recorded name of the runner."""

    attempt_id: int
    runner_name: str


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


def postpone_suspects(
    db: Connection, *, delivered_before: datetime, due_at: datetime, limit: int, now: datetime
) -> Sequence[int]:
    """Set the next check of suspects that are due for a check, and return these claims (`models.claims.cuts`).

    A suspect is a stamped claim that was delivered before `delivered_before`, and whose poller has not ended.
    """
    rows = db.execute(
        text(f"""
            UPDATE claims SET due_at = :due_at WHERE id IN (
                SELECT c.id FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
                WHERE c.ended_at IS NULL AND c.state = 'delivered' AND c.stamp = 'on'
                  AND (c.purpose = 'job' OR (c.purpose = 'register' AND c.online_at IS NULL))
                  AND c.spare_since IS NULL AND c.delivered_at <= :before AND (c.due_at IS NULL OR c.due_at < :now)
                  AND (c.leased_until IS NULL OR c.leased_until < :now)
                  AND p.poller_ended_at IS NULL AND p.terminal_at IS NULL AND p.gone_at IS NULL AND {epochs.TRUSTED}
                ORDER BY c.due_at NULLS FIRST LIMIT :limit FOR NO KEY UPDATE OF c SKIP LOCKED)
            RETURNING id
        """),
        {"due_at": due_at, "before": delivered_before, "limit": limit, "now": now},
    )
    return rows.scalars().all()


def set_stamp_due(db: Connection, claim_id: int, *, due_at: datetime, stamp_after: datetime | None) -> None:
    """Make the stamp of a delivered or executing claim due, unless it is on. No stamp is put on before `stamp_after`.

    `stamp_after` None stands for no limit.
    """
    db.execute(
        text("""
            UPDATE claims SET due_at = :due_at, stamp_after = CAST(:stamp_after AS timestamptz)
            WHERE id = :id AND ended_at IS NULL AND state IN ('delivered', 'executing') AND stamp <> 'on'
        """),
        {"id": claim_id, "due_at": due_at, "stamp_after": stamp_after},
    )


def raise_chains(
    db: Connection, *, limit: int, due_after: float, heads: Mapping[str, datetime | None], now: datetime
) -> Sequence[Row[Any]]:
    """Increase the chain number of claims whose `due_at` is in the past, and return these claims.

    The claims become due again after `due_after` seconds. A claim is also marked as stalled if its process or its
    message was lost (`OVERDUE`). At most `limit` claims are returned. A claim is skipped if its lease has not expired,
    or if another session has locked its row. A delivered or executing claim is skipped unless its stamp must be put on
    or removed. `heads` is explained in `models.claims.resume.claim_due`.
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
                  -- A second message of a waiting step would make the queue longer, and a raised chain number would
                  -- make the first message useless. A queue with waits above `due_after` would never become empty.
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
