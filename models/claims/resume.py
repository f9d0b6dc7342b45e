"""Queries of `resume`: live claims past their due time, and queued jobs beside offered Pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.claims.matching import WEB_ALIVE
from models.claims.steps import notify_minted
from models.db import epochs
from models.db.sql import text
from models.tables import claim_leases
from models.tables.transitions import move_claim
from models.upstream.backoffs import PROBE_DUE, PROBE_JOB

PAGE = 200
"""Claims of one statement."""

UNSTAMPS = 50
"""Un-stamps of one transaction: it holds the claims of Pods that may come back at that very moment."""


@dataclass(frozen=True, slots=True)
class Due:
    """A claim whose next step is due; its older chains do nothing any more.

    `waited`: a rate limit had put the step off until now. Otherwise it was not done in time.
    """

    claim_id: int
    chain_no: int
    purpose: str
    state: str
    stamp: str
    waited: bool


def claim_due(db: Connection, *, due_after: float, heads: Mapping[str, datetime | None], now: datetime) -> list[Due]:
    """Raise the chain number of the claims that are due and put their next check `due_after` away.

    What made one wait is over: from now on it is lost if nothing takes it up.

    `heads`: per queue when the message was sent that comes next from it. A step that was due before that is lost; one
    that is due since then may wait behind it. Sent again it would make the queue longer, and raising its chain number
    would have the message that waits do nothing in its turn: a queue with waits of over `due_after` would never end.
    """
    rows = claim_leases.raise_chains(db, limit=PAGE, due_after=due_after, heads=heads, now=now)
    for row in rows:
        if row.state == "minted":
            notify_minted(db, row.id, row.pod_uid)
    return [Due(row.id, row.chain_no, row.purpose, row.state, row.stamp, row.waited) for row in rows]


def begin_unstamps(db: Connection, *, unstamp_after: float, now: datetime, who: str) -> list[int]:
    """Mark minted claims whose Pod stopped polling: the stamp may have cut its way to us.

    From the commit on nothing is delivered until the un-stamp is confirmed. None while these rows may be an earlier
    state: offers do not outlive a crash of Postgres, and a Pod that was served meanwhile polls no more. At most
    `UNSTAMPS`; a claim that another session has locked is left to the next tick (law L14).
    """
    rows = db.execute(
        text(f"""
            SELECT c.id FROM claims c LEFT JOIN offers o ON o.pod_uid = c.pod_uid
            WHERE c.ended_at IS NULL AND c.state = 'minted' AND c.stamp IN ('on', 'gave_up')
              AND c.minted_at < :before AND (o.until IS NULL OR o.until < :before)
              AND (c.leased_until IS NULL OR c.leased_until < :now) AND {epochs.TRUSTED}
            ORDER BY c.id LIMIT :limit FOR NO KEY UPDATE OF c SKIP LOCKED
        """),
        {"before": now - timedelta(seconds=unstamp_after), "now": now, "limit": UNSTAMPS},
    )
    return [
        claim_id
        for claim_id in rows.scalars().all()
        if move_claim(
            db,
            "stamp_removing",
            claim_id,
            now=now,
            who=who,
            why="its Pod stopped polling",
            guard="AND state = 'minted' AND (leased_until IS NULL OR leased_until < :now)",
        )
    ]


def pools_with_work(db: Connection, *, probe_every: float, now: datetime) -> list[int]:
    """Return the pools that have dispatchable jobs, or one to probe with, beside Pods that could be claimed."""
    rows = db.execute(
        text(f"""
            SELECT p.id FROM pools p
            WHERE p.deleted_at IS NULL AND NOT p.draining
              AND (EXISTS (SELECT FROM jobs j
                           WHERE j.pool_id = p.id AND j.state = 'queued' AND j.hold_reason IS NULL)
                   OR EXISTS (SELECT FROM backoffs b WHERE {PROBE_DUE}
                              AND EXISTS (SELECT FROM jobs j WHERE j.pool_id = p.id AND {PROBE_JOB})))
              AND EXISTS (
                SELECT FROM offers o JOIN web_instances w ON w.id = o.web_id AND w.beat_at > :web_alive
                WHERE o.pool_id = p.id AND o.until > :now
                  AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = o.pod_uid
                                  AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL)))
            ORDER BY p.id
        """),
        {"now": now, "web_alive": now - WEB_ALIVE, "probed_before": now - timedelta(seconds=probe_every)},
    )
    return list(rows.scalars())
