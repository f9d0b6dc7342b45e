"""Offers (the rows of Pods that are polling) and the web processes that hold the polls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, ForeignKey, Index, Row
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.channel import CHANNEL
from models.db.sql import text
from rules.claims.machines import ClaimState, Purpose, Stamp
from rules.claims.poll_answers import PolledClaim, PollFacts

POLLED_AT_EVERY = timedelta(minutes=1)
DEAD_AFTER = timedelta(hours=1)


GAP = timedelta(seconds=15)
"""Time without a heartbeat after which an outage of a web process is assumed.

During such an outage, the web process or its connection to Postgres did not work.
"""


class WebInstance(Base):
    """A web process. The process writes a heartbeat only while it receives the notices that it sends to itself.

    The matcher ignores the offers of a process without recent heartbeats. The offers of a process that receives no
    notices are therefore not matched.
    """

    __tablename__ = "web_instances"

    id: Mapped[str] = mapped_column(primary_key=True)
    started_at: Mapped[datetime]
    beat_at: Mapped[datetime]


class Offer(Base):
    """A Pod that polls now and can receive a JIT. If a Pod sends two polls, the offer of the later poll is stored."""

    __tablename__ = "offers"
    __table_args__ = (
        Index("ix_offers_pool_id_until", "pool_id", "until"),
        {"prefixes": ["UNLOGGED"]},
    )

    pod_uid: Mapped[str] = mapped_column(primary_key=True)
    pool_id: Mapped[int] = mapped_column(ForeignKey("pools.id"))
    web_id: Mapped[str]
    poll_id: Mapped[str] = mapped_column(comment="id of the newest poll of the Pod; only this poll can receive the JIT")
    until: Mapped[datetime]


@dataclass(frozen=True, slots=True)
class Polling:
    """One held poll.

    `again` is True if an offer was already written for this poll. The poll then must not replace the offer of a newer
    poll.
    """

    pod_uid: str
    namespace: str
    pod_name: str
    poll_id: str
    until: datetime
    again: bool


@dataclass(frozen=True, slots=True)
class PolledPod:
    """The state of a Pod, read by the same statement that wrote the Pod's offer.

    `wakes` is True if the poll must wake the Pod's pool, because jobs of the pool wait for Pods.
    """

    pod_uid: str
    pool_id: int | None
    wakes: bool
    facts: PollFacts


@dataclass(frozen=True, slots=True)
class MintedOffer:
    """A claim that can be delivered to a poll of this web process."""

    claim_id: int
    pod_uid: str
    poll_id: str


_OFFER = text("""
    WITH poll AS (
        SELECT * FROM unnest(
            CAST(:uids AS text[]), CAST(:namespaces AS text[]), CAST(:names AS text[]),
            CAST(:poll_ids AS text[]), CAST(:untils AS timestamptz[])
        ) AS poll (pod_uid, namespace, name, poll_id, until)
    ), before AS MATERIALIZED (
        SELECT offers.pod_uid, offers.web_id, offers.poll_id FROM offers JOIN poll USING (pod_uid)
    ), free_offers AS MATERIALIZED (
        SELECT offers.pod_uid FROM offers JOIN poll USING (pod_uid) FOR NO KEY UPDATE OF offers SKIP LOCKED
    ), known AS MATERIALIZED (
        SELECT poll.pod_uid, poll.poll_id, poll.until, pod.id AS runner_pod_id, pod.pool_id,
               pod.uid IS NOT NULL AS bound,
               pod.terminal_at IS NOT NULL OR pod.gone_at IS NOT NULL AS gone,
               pod.uid IS NULL OR pod.polled_at IS NULL OR pod.polled_at < :refresh_before AS due,
               before.poll_id AS poll_before
        FROM poll
        JOIN runner_pods pod ON pod.id = coalesce(
            (SELECT id FROM runner_pods WHERE uid = poll.pod_uid),
            -- A Pod can poll before its UID is committed. The token of the poll proves the UID.
            (SELECT id FROM runner_pods WHERE namespace = poll.namespace AND name = poll.name AND uid IS NULL
               AND gone_at IS NULL)
        )
        LEFT JOIN before ON before.pod_uid = poll.pod_uid
    ), locked AS MATERIALIZED (
        -- A locked row is skipped, because another session might claim the Pod now. The next poll updates `polled_at`.
        -- A new offer needs this lock. Otherwise the insert would wait for an uncommitted offer of the same Pod.
        SELECT pod.id, known.pod_uid, known.due FROM runner_pods pod JOIN known ON known.runner_pod_id = pod.id
        WHERE known.due OR known.poll_before IS NULL
        ORDER BY pod.id FOR NO KEY UPDATE OF pod SKIP LOCKED
    ), free_pools AS MATERIALIZED (
        -- The insert of an offer locks its pool's row for the foreign key, and would wait if that row is locked.
        SELECT id FROM pools WHERE id IN (SELECT pool_id FROM known WHERE poll_before IS NULL)
        FOR KEY SHARE SKIP LOCKED
    ), touched AS (
        UPDATE runner_pods pod
        SET uid = locked.pod_uid, polled_at = :now, first_polled_at = coalesce(pod.first_polled_at, :now)
        FROM locked WHERE pod.id = locked.id AND locked.due AND (pod.uid IS NULL OR pod.uid = locked.pod_uid)
        RETURNING pod.uid AS pod_uid
    ), judged AS MATERIALIZED (
        SELECT known.pod_uid, known.poll_id, known.until, known.pool_id, known.gone, known.poll_before,
               known.bound OR known.pod_uid IN (SELECT pod_uid FROM touched) AS bound,
               CASE WHEN known.poll_before IS NULL
                   THEN known.pod_uid IN (SELECT pod_uid FROM locked) AND known.pool_id IN (SELECT id FROM free_pools)
                   ELSE known.pod_uid IN (SELECT pod_uid FROM free_offers)
               END AS free,
               claim.id AS claim_id, claim.purpose, claim.state, claim.stamp,
               claim.delivered_at IS NOT NULL AS delivered,
               EXISTS (
                   SELECT FROM claims past
                   WHERE past.pod_uid = known.pod_uid AND past.ended_at IS NOT NULL AND past.delivered_at IS NOT NULL
               ) AS used
        FROM known LEFT JOIN claims claim ON claim.pod_uid = known.pod_uid AND claim.ended_at IS NULL
    ), offered AS (
        INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)
        SELECT pod_uid, pool_id, :web_id, poll_id, until FROM judged
        WHERE free AND bound AND NOT gone AND NOT used
          AND (claim_id IS NULL OR (purpose <> 'retire' AND NOT delivered))
        ORDER BY pod_uid
        ON CONFLICT (pod_uid) DO UPDATE
        SET pool_id = excluded.pool_id, web_id = excluded.web_id, poll_id = excluded.poll_id, until = excluded.until
        WHERE excluded.poll_id = offers.poll_id OR excluded.poll_id = ANY(CAST(:fresh AS text[])) OR offers.until < :now
        RETURNING pod_uid
    ), told AS MATERIALIZED (
        SELECT before.pod_uid,
               pg_notify(:channel, format('superseded %s %s %s', before.pod_uid, before.web_id, before.poll_id))::text
               AS sent
        FROM before JOIN offered USING (pod_uid) WHERE before.web_id <> :web_id
    )
    SELECT poll.pod_uid, judged.pool_id, judged.bound, judged.gone, judged.used, judged.claim_id, judged.purpose,
           judged.state, judged.stamp, judged.delivered,
           offered.pod_uid IS NOT NULL OR coalesce(judged.poll_before = judged.poll_id AND NOT judged.free, false)
           AS offered,
           NOT judged.free AND judged.poll_before IS DISTINCT FROM judged.poll_id AS locked,
           coalesce((pools.wants_pods OR pools.registers_in IS NOT NULL) AND pools.deleted_at IS NULL, false) AS wakes,
           told.sent
    FROM poll
    LEFT JOIN judged USING (pod_uid)
    LEFT JOIN offered USING (pod_uid)
    LEFT JOIN told USING (pod_uid)
    LEFT JOIN pools ON pools.id = judged.pool_id
""")


def offer(db: Connection, polls: Sequence[Polling], *, web_id: str, now: datetime) -> list[PolledPod]:
    """Write the offers of these polls, and return the state of each polling Pod. `polls` contains a Pod at most once.

    An offer is written for a Pod that has a row and no live retire claim, never received a JIT, and is neither terminal
    nor gone. If a Pod has sent two polls, the offer of the newer poll replaces the offer of the older poll. If another
    web process holds the older poll, that process is notified. If the row with the Pod's name has no UID yet, the UID
    of the polling Pod is written into the row. `polled_at` is written at most once a minute.

    One statement handles all polls. The statement does not wait for locked rows (law L14). If a Pod has an offer, the
    Pod is `locked` if another transaction has locked the offer. If a Pod has no offer, the Pod is `locked` if another
    transaction has locked the Pod's row or the pool's row. No offer is written for a locked Pod. If a locked offer
    belongs to the same poll, the Pod is reported as `offered` and not as `locked`.
    """
    ordered = sorted(polls, key=lambda poll: poll.pod_uid)
    rows = db.execute(
        _OFFER,
        {
            "uids": [poll.pod_uid for poll in ordered],
            "namespaces": [poll.namespace for poll in ordered],
            "names": [poll.pod_name for poll in ordered],
            "poll_ids": [poll.poll_id for poll in ordered],
            "untils": [poll.until for poll in ordered],
            "fresh": [poll.poll_id for poll in ordered if not poll.again],
            "web_id": web_id,
            "now": now,
            "refresh_before": now - POLLED_AT_EVERY,
            "channel": CHANNEL,
        },
    )
    fresh = {poll.pod_uid for poll in ordered if not poll.again}
    return [_polled(row, arrived=row.pod_uid in fresh) for row in rows]


def _polled(row: Row[Any], *, arrived: bool) -> PolledPod:
    claim = None
    if row.claim_id is not None:
        claim = PolledClaim(
            id=row.claim_id,
            purpose=Purpose(row.purpose),
            state=ClaimState(row.state),
            stamp=Stamp(row.stamp),
            delivered=row.delivered,
        )
    return PolledPod(
        pod_uid=row.pod_uid,
        pool_id=row.pool_id,
        wakes=row.wakes and row.offered and claim is None,
        facts=PollFacts(
            known=row.pool_id is not None,
            bound=bool(row.bound),
            gone=bool(row.gone),
            offered=row.offered,
            used=bool(row.used),
            claim=claim,
            locked=bool(row.locked),
            arrived=arrived,
        ),
    )


def unanswered(db: Connection, *, web_id: str) -> tuple[list[MintedOffer], list[str]]:
    """Return the polls of this web process that can be answered now.

    The notices about these polls might have been lost.

    The first list contains the claims that can be delivered. The second list contains the UIDs of Pods whose polls need
    a different answer now, because the Pod is being retired, its claim was delivered, or its stamp is being removed.
    """
    rows = db.execute(
        text("""
            SELECT claims.id, claims.pod_uid, offers.poll_id,
                   claims.state = 'minted' AND claims.stamp <> 'removing' AS deliverable
            FROM claims JOIN offers USING (pod_uid)
            WHERE claims.ended_at IS NULL AND offers.web_id = :web_id
              AND (claims.state IN ('minted', 'delivered') OR claims.purpose = 'retire')
            ORDER BY claims.id
        """),
        {"web_id": web_id},
    ).all()
    minted = [MintedOffer(row.id, row.pod_uid, row.poll_id) for row in rows if row.deliverable]
    return minted, [row.pod_uid for row in rows if not row.deliverable]


def withdraw(db: Connection, polls: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Delete the offers of these polls. Each poll is a pair of a Pod's UID and a poll id.

    An offer that belongs to a newer poll of the same Pod is not deleted. Return the polls whose offers were not
    deleted, because another transaction has locked the offers. The caller has to withdraw these polls later.
    """
    rows = db.execute(
        text("""
            WITH stale AS MATERIALIZED (
                SELECT offers.pod_uid, offers.poll_id FROM offers
                JOIN unnest(CAST(:uids AS text[]), CAST(:poll_ids AS text[])) AS poll (pod_uid, poll_id)
                  ON poll.pod_uid = offers.pod_uid AND poll.poll_id = offers.poll_id
            ), free AS MATERIALIZED (
                SELECT offers.pod_uid FROM offers JOIN stale USING (pod_uid, poll_id) FOR UPDATE OF offers SKIP LOCKED
            ), gone AS (
                DELETE FROM offers WHERE pod_uid IN (SELECT pod_uid FROM free)
            )
            SELECT pod_uid, poll_id FROM stale WHERE pod_uid NOT IN (SELECT pod_uid FROM free)
        """),
        {"uids": [uid for uid, _ in polls], "poll_ids": [poll_id for _, poll_id in polls]},
    )
    return [(row.pod_uid, row.poll_id) for row in rows]


def deliver(
    db: Connection,
    *,
    pod_uid: str,
    runner_pod_id: int,
    account_id: int | None,
    vcpu: int,
    memory: int,
    job_id: int | None,
) -> tuple[datetime, tuple[str, str]] | None:
    """Delete the offer of a Pod whose claim is delivered, and charge the Pod to an account.

    Return the time at which the job was queued, and the namespace and the name of the Pod's pool. Return None if
    `job_id` is None. `vcpu` is in millicores and `memory` is in MiB. If `account_id` is None, no account is charged.
    """
    row = db.execute(
        text("""
            WITH gone AS (
                -- A locked offer stays. The matcher ignores it, because the Pod has a delivered claim.
                DELETE FROM offers WHERE pod_uid IN (
                    SELECT pod_uid FROM offers WHERE pod_uid = :pod_uid FOR UPDATE SKIP LOCKED
                )
            ), charged AS (
                UPDATE runner_pods SET charged_account_id = :account, charged_vcpu = :vcpu, charged_memory = :memory
                WHERE id = :runner_pod_id
            )
            SELECT j.queued_at, p.namespace, p.name FROM jobs j
            JOIN pools p ON p.id = (SELECT pool_id FROM runner_pods WHERE id = :runner_pod_id) WHERE j.id = :job_id
        """),
        {
            "pod_uid": pod_uid,
            "job_id": job_id,
            "account": account_id,
            "vcpu": vcpu,
            "memory": memory,
            "runner_pod_id": runner_pod_id,
        },
    ).one_or_none()
    return None if row is None else (row.queued_at, (row.namespace, row.name))


def delete(db: Connection, pod_uid: str) -> None:
    """Delete the offer of a Pod that is gone."""
    db.execute(text("DELETE FROM offers WHERE pod_uid = :uid"), {"uid": pod_uid})


def beat(db: Connection, *, web_id: str, now: datetime) -> None:
    """Record a heartbeat of a web process that receives its notices.

    The matcher ignores the offers of a process without a recent heartbeat. If the previous heartbeat is older than
    `GAP`, `now` is also recorded as the start of the process. If another transaction has locked the row of the process,
    nothing is written.
    """
    db.execute(
        text("""
            WITH new AS (
                INSERT INTO web_instances (id, started_at, beat_at) VALUES (:id, :now, :now) ON CONFLICT DO NOTHING
            ), free AS (
                -- The thread of the heartbeats also receives the notices, so it must not wait for a lock (law L14).
                SELECT id FROM web_instances WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED
            )
            -- During a gap, Pods could not poll the process, so it counts as started again.
            UPDATE web_instances web
            SET beat_at = :now, started_at = CASE WHEN web.beat_at < :gap THEN :now ELSE web.started_at END
            FROM free WHERE web.id = free.id
        """),
        {"id": web_id, "now": now, "gap": now - GAP},
    )


def leave(db: Connection, *, web_id: str) -> None:
    """Delete the offers and the heartbeat of a web process that stops.

    Locked rows are not deleted. They expire later.
    """
    db.execute(
        text("""
            DELETE FROM offers WHERE pod_uid IN (
                SELECT pod_uid FROM offers WHERE web_id = :id FOR UPDATE SKIP LOCKED
            )
        """),
        {"id": web_id},
    )
    db.execute(
        text("""
            DELETE FROM web_instances WHERE id IN (
                SELECT id FROM web_instances WHERE id = :id FOR UPDATE SKIP LOCKED
            )
        """),
        {"id": web_id},
    )


def delete_dead_offers(db: Connection, *, now: datetime) -> None:
    """Delete the offers and heartbeats that expired more than `DEAD_AFTER` ago.

    Killed web processes and deleted Pods leave such rows behind.
    """
    db.execute(
        text("""
            DELETE FROM offers WHERE pod_uid IN (
                SELECT pod_uid FROM offers WHERE until < :before ORDER BY pod_uid FOR UPDATE SKIP LOCKED LIMIT 1000
            )
        """),
        {"before": now - DEAD_AFTER},
    )
    db.execute(
        text("""
            DELETE FROM web_instances WHERE id IN (
                SELECT id FROM web_instances WHERE beat_at < :before FOR UPDATE SKIP LOCKED
            )
        """),
        {"before": now - DEAD_AFTER},
    )


def notify_beat(db: Connection, *, web_id: str, number: int) -> None:
    """Send a notice from this web process to itself. If the notice arrives, the process receives notices."""
    db.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": CHANNEL, "payload": f"beat {web_id} {number}"})


def offering(db: Connection, *, now: datetime) -> frozenset[int]:
    """Return the ids of the pools with an offer that has not expired."""
    found = db.execute(
        text("SELECT id FROM pools p WHERE EXISTS (SELECT FROM offers o WHERE o.pool_id = p.id AND o.until > :now)"),
        {"now": now},
    )
    return frozenset(found.scalars())
