"""Shared Pod lists: a tick lists the Pods of the namespace once and stores them here by pool.

The table is UNLOGGED, so that a crash of Postgres empties it. Each pool then lists its own Pods until the next tick.
`tasks.pools.pod_lists` packs and unpacks the Pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, LargeBinary, Row
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.sql import text

USED_FOR = timedelta(seconds=10)
"""Maximum age of a usable list: the interval of the ticks.

If the message of a reconcile waited longer, the pool lists its own Pods.
"""

AHEAD = timedelta(seconds=1)
"""Maximum clock skew: a list whose time is further in the future than this is not used."""

KEPT = timedelta(hours=1)
"""Retention of the list of a pool that no tick lists any more."""


class PodListRow(Base):
    """The Pods of one pool in the last list of the namespace."""

    __tablename__ = "pod_lists"
    __table_args__ = ({"prefixes": ["UNLOGGED"]},)

    namespace: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True, comment="its name, as in the label of its Pods")
    taken_at: Mapped[datetime] = mapped_column(comment="when the first page was asked for")
    whole_at: Mapped[datetime] = mapped_column(comment="when the last page was there")
    pods: Mapped[bytes] = mapped_column(LargeBinary, comment="deflated JSON: names of fields, and a row per Pod")


def keep(
    db: Connection, *, namespace: str, shares: Mapping[str, bytes], taken_at: datetime, whole_at: datetime
) -> None:
    """Store a complete list: the packed Pods of each pool, by the pool's name.

    `taken_at` is the start of the list, and `whole_at` its end. A stored list that began later is not replaced, unless
    its time is in the future. Lists of the namespace that are older than `KEPT` are deleted.
    """
    db.execute(
        text("DELETE FROM pod_lists WHERE namespace = :namespace AND whole_at < :before"),
        {"namespace": namespace, "before": whole_at - KEPT},
    )
    names = sorted(shares)  # one lock order for two ticks at once
    db.execute(
        text("""
            INSERT INTO pod_lists AS l (namespace, pool, taken_at, whole_at, pods)
            SELECT :namespace, s.pool, :taken_at, :whole_at, s.pods
            FROM unnest(CAST(:names AS text[]), CAST(:packed AS bytea[])) AS s (pool, pods)
            ON CONFLICT (namespace, pool) DO UPDATE
            SET taken_at = excluded.taken_at, whole_at = excluded.whole_at, pods = excluded.pods
            WHERE l.taken_at < excluded.taken_at OR l.taken_at > excluded.whole_at
        """),
        {
            "namespace": namespace,
            "taken_at": taken_at,
            "whole_at": whole_at,
            "names": names,
            "packed": [shares[name] for name in names],
        },
    )


def find(db: Connection, *, pool_id: int, now: datetime) -> Row[Any] | None:
    """Return (taken_at, pods, dealt) of the stored list of a pool, or None if no list is usable.

    A list is usable for `USED_FOR` after its end. `dealt` is True if a reconcile of the pool has already handled this
    list or a newer one. A draining or deleted pool gets None. Its reconcile needs a list that began after the deletion
    request.
    """
    return db.execute(
        text("""
            SELECT l.taken_at, l.pods, coalesce(p.listed_at >= l.taken_at AND p.listed_at <= :ahead, false) AS dealt
            FROM pools p JOIN pod_lists l ON l.namespace = p.namespace AND l.pool = p.name
            WHERE p.id = :id AND NOT p.draining AND p.deleted_at IS NULL
              AND l.taken_at <= l.whole_at AND l.whole_at <= :ahead AND l.whole_at > :since
        """),
        {"id": pool_id, "ahead": now + AHEAD, "since": now - USED_FOR},
    ).one_or_none()


def gone_since(db: Connection, *, uids: Sequence[str], taken_at: datetime) -> frozenset[str] | None:
    """Return the UIDs of the listed Pods that disappeared after the list was taken.

    Return None if the list shows a Pod that has no row, or a Pod that was recorded as gone before the list began. The
    caller then has to list again, because only a current list proves whether that Pod exists.
    """
    found = text("SELECT uid, gone_at FROM runner_pods WHERE uid = ANY(:uids)")
    rows = db.execute(found, {"uids": list(uids)}).all()
    if len(rows) < len(set(uids)) or any(row.gone_at is not None and row.gone_at <= taken_at for row in rows):
        return None
    return frozenset(row.uid for row in rows if row.gone_at is not None)
