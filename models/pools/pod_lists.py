"""The list of Pods that a tick takes of the whole namespace: the share of each pool, until the next tick.

UNLOGGED: after a crash there is none, and each pool lists for itself until the next tick. The Pods are packed and
unpacked by `tasks.pools.pod_lists`.
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
"""For how long a whole list is used: the period of the ticks. A message that waited longer has its pool listed anew."""

AHEAD = timedelta(seconds=1)
"""By how much the clock of the process that listed may be ahead; a time further ahead is no time."""

KEPT = timedelta(hours=1)
"""For how long the share of a pool is kept that no tick lists any more."""


class PodListRow(Base):
    """The Pods of one pool, as the last list of the namespace showed them."""

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
    """Keep a whole list, by the name of the pool. A share of a newer list stays, unless it is of the future."""
    db.execute(
        text("DELETE FROM pod_lists WHERE namespace = :namespace AND whole_at < :before"),
        {"namespace": namespace, "before": whole_at - KEPT},
    )
    names = sorted(shares)  # two ticks at once lock the rows in one order
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
    """Return (taken_at, pods, dealt) of the share of a pool; None when there is none that may be used.

    `dealt`: a reconcile by this list, or by a newer one, has dealt with all that it showed. A pool that leaves uses
    none: it goes by a list that began after it was asked to.
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
    """Return those of the listed Pods that went after the list was taken.

    None when the list shows a Pod that has no row, or whose row says that it was gone before: a list of now has to show
    whether it is there.
    """
    found = text("SELECT uid, gone_at FROM runner_pods WHERE uid = ANY(:uids)")
    rows = db.execute(found, {"uids": list(uids)}).all()
    if len(rows) < len(set(uids)) or any(row.gone_at is not None and row.gone_at <= taken_at for row in rows):
        return None
    return frozenset(row.uid for row in rows if row.gone_at is not None)
