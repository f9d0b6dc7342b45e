"""Delivered claims whose stamp might cut off the Pod from Ostler (`rules.claims.cuts`).

Ostler removes the stamp from the Pod of such a claim, and puts the stamp on again later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.claims.names import INSTALLATION_NOW, SCOPE_NOW
from models.claims.steps import StampWork, stamp_work
from models.db.sql import text
from models.state import claim_leases, claim_transitions, pod_facts
from rules.claims.machines import Stamp

MOST_CHECKS = 50
"""Greatest number of Pods that are checked in one run of `resume`."""


def suspects(db: Connection, *, cut_off_after: float, due_after: float, now: datetime) -> list[int]:
    """Return delivered claims whose Pods must be checked, because no end of their pollers is recorded.

    A claim is first returned `cut_off_after` seconds after its delivery. It is returned again at most once every
    `due_after` seconds. A registration is returned until its runner is online. The reconciler records the end of most
    pollers earlier, so the claims of most Pods are never returned. Spares, leased or locked claims, and claims whose
    stamp is not on are left out. No claim is returned while the rows are not trusted (`models.db.epochs`).
    """
    found = claim_leases.postpone_suspects(
        db,
        delivered_before=now - timedelta(seconds=cut_off_after),
        due_at=now + timedelta(seconds=due_after),
        limit=MOST_CHECKS,
        now=now,
    )
    return list(found)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A delivered claim whose stamp is on or is being removed.

    `scope` and `installation_id` are current (`models.claims.names`), not the values stored with the claim.
    """

    claim_id: int
    delivered_at: datetime
    stamp: str
    namespace: str
    pod_name: str
    pod_uid: str
    runner_name: str
    installation_id: int
    scope: str


def suspect(db: Connection, claim_id: int) -> Suspect | None:
    """Return the facts about a claim if its Pod can be un-stamped, or None otherwise.

    The Pod can be un-stamped if the claim is delivered, its stamp is on or is being removed, and its runner, scope and
    installation are known. The un-stamp also needs evidence from the cluster and from GitHub, which the caller
    collects.
    """
    row = db.execute(
        text(f"""
            SELECT c.id, c.delivered_at, c.stamp, p.namespace, p.name, c.pod_uid, c.runner_name,
                   {INSTALLATION_NOW}, {SCOPE_NOW}
            FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
            WHERE c.id = :id AND c.ended_at IS NULL AND c.state = 'delivered' AND c.stamp IN ('on', 'removing')
              AND c.runner_name IS NOT NULL AND c.installation_id IS NOT NULL AND c.scope IS NOT NULL
        """),
        {"id": claim_id},
    ).one_or_none()
    return None if row is None else Suspect(*row)


def begin(db: Connection, seen: Suspect, *, why: str, due_after: float, now: datetime, who: str) -> StampWork | None:
    """Lease a claim for its un-stamp. `seen` is the claim as `suspect` returned it.

    If the un-stamp has not begun yet, this function begins the un-stamp. Returns None in these cases:

    - The claim has left the state `delivered`, was delivered again, or is leased by another step.
    - The stamp of the claim is neither on nor being removed.
    - The poller ended before the un-stamp began.
    - The rows are not trusted (`models.db.epochs`).
    """
    row = claim_leases.lease_unstamp_again(db, seen.claim_id, delivered_at=seen.delivered_at, now=now)
    if row is None:
        return None
    if row.stamp != Stamp.REMOVING:
        due_at = now + timedelta(seconds=due_after)
        claim_transitions.remove_stamp_again(db, seen.claim_id, why=why, due_at=due_at, now=now, who=who)
    return stamp_work(db, row)


def waiting_for_pollers(db: Connection, uids: Sequence[str]) -> list[int]:
    """Return the delivered claims of these Pods that still need a call of `pollers_ended`.

    A claim needs the call if the end of its poller is not recorded yet, or if its stamp must be put on again.
    """
    found = db.execute(
        text("""
            SELECT c.id FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
            WHERE c.pod_uid = ANY(:uids) AND c.ended_at IS NULL AND c.purpose IN ('job', 'register')
              AND c.state IN ('delivered', 'executing')
              AND (p.poller_ended_at IS NULL OR c.stamp IN ('removing', 'off', 'gave_up'))
            ORDER BY c.id
        """),
        {"uids": list(uids)},
    )
    return list(found.scalars())


def pollers_ended(db: Connection, uids: Sequence[str], *, now: datetime) -> list[int]:
    """Record that the pollers of these Pods have ended, and return the claims whose stamps are now put on again.

    After its poller has ended, a Pod can no longer be cut off by its stamp. Rows that another session has locked are
    skipped. The next reconcile of the pool handles the skipped rows.
    """
    pod_facts.record_pollers_ended(db, uids, now=now)
    found = db.execute(
        text("""
            SELECT id FROM claims
            WHERE pod_uid = ANY(:uids) AND ended_at IS NULL AND purpose IN ('job', 'register')
              AND state IN ('delivered', 'executing') AND stamp IN ('removing', 'off', 'gave_up')
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"uids": list(uids)},
    )
    claims = list(found.scalars())
    for claim_id in claims:
        stamp_now(db, claim_id, why="the poller of the Pod has ended", now=now)
    return claims


def stamp_now(db: Connection, claim_id: int, *, why: str, now: datetime) -> None:
    """Make the stamp of a delivered claim due at once, and cancel an un-stamp that has begun."""
    claim_transitions.return_stamp(db, claim_id, why=why, due_at=now, now=now, who="ostler")
