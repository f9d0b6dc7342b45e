"""Queries of the sweep `resume`: live claims past their due time, and pools with both queued jobs and offered Pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.claims.matching import WEB_ALIVE
from models.claims.steps import notify_minted
from models.db import epochs
from models.db.sql import text
from models.state import claim_leases, claim_transitions
from models.upstream.backoffs import PROBE_DUE, PROBE_JOB

PAGE = 200
"""Greatest number of claims in one statement."""

UNSTAMPS = 50
"""Greatest number of un-stamps in one transaction.

The number is small, because the transaction locks these claims. A poll that arrives meanwhile must retry its delivery.
"""


@dataclass(frozen=True, slots=True)
class Due:
    """A claim whose next step is due. Its chain number was raised, so steps of older chains change nothing.

    `waited` is True if a rate limit had postponed the step until now, and False if the step was not done by its due
    time.
    """

    claim_id: int
    chain_no: int
    purpose: str
    state: str
    stamp: str
    waited: bool
    tried: bool
    """True if an earlier attempt of the step did not finish it and set its due time."""


def claim_due(db: Connection, *, due_after: float, heads: Mapping[str, datetime | None], now: datetime) -> list[Due]:
    """Raise the chain number of claims that are due, and set their next due time to `due_after` seconds from now.

    If a rate limit had postponed a step, the postponement ends now. Like any other step, the step then counts as lost
    if it is not done by its new due time.

    `heads` maps each queue to the time at which its oldest waiting message was sent, or to None if no message waits. A
    step that was due later than that is skipped, because its message might still wait in the queue.
    """
    rows = claim_leases.raise_chains(db, limit=PAGE, due_after=due_after, heads=heads, now=now)
    for row in rows:
        if row.state == "minted":
            notify_minted(db, row.id, row.pod_uid)
    return [Due(row.id, row.chain_no, row.purpose, row.state, row.stamp, row.waited, bool(row.tried)) for row in rows]


def begin_unstamps(db: Connection, *, unstamp_after: float, now: datetime, who: str) -> list[int]:
    """Begin the un-stamp of minted claims whose Pod stopped polling for `unstamp_after` seconds.

    Return at most `UNSTAMPS` claims. The stamp might have cut off the Pod from Ostler. After the commit, no JIT is
    delivered to the Pod until the un-stamp is confirmed or cancelled.
    """
    rows = db.execute(
        text(f"""
            SELECT c.id FROM claims c LEFT JOIN offers o ON o.pod_uid = c.pod_uid
            WHERE c.ended_at IS NULL AND c.state = 'minted' AND c.stamp IN ('on', 'gave_up')
              AND c.minted_at < :before AND (o.until IS NULL OR o.until < :before)
              AND (c.leased_until IS NULL OR c.leased_until < :now)
              -- A crash of Postgres deletes all offers, so a Pod that still polls looks like one that stopped. After a
              -- restore, a claim can look minted although its JIT was delivered: such a Pod does not poll any more.
              AND {epochs.TRUSTED}
            -- Another session has the lock of a skipped claim. It is left to the next run (law L14).
            ORDER BY c.id LIMIT :limit FOR NO KEY UPDATE OF c SKIP LOCKED
        """),
        {"before": now - timedelta(seconds=unstamp_after), "now": now, "limit": UNSTAMPS},
    )
    return [
        claim_id for claim_id in rows.scalars().all() if claim_transitions.remove_stamp(db, claim_id, now=now, who=who)
    ]


def pools_with_work(db: Connection, *, probe_every: float, now: datetime) -> list[int]:
    """Return the pools that have claimable Pods and either dispatchable jobs or a job that can probe a backoff.

    A persistent pool is returned if it has claimable Pods, because such Pods must register their runners.

    An installation is probed at most once every `probe_every` seconds.
    """
    rows = db.execute(
        text(f"""
            SELECT p.id FROM pools p
            WHERE p.deleted_at IS NULL AND NOT p.draining
              AND (p.registers_in IS NOT NULL
                   OR EXISTS (SELECT FROM jobs j
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
