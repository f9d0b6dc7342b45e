"""Shared Pod lists: one list of the Pods of each runner namespace per interval, stored by pool.

Once per interval, a tick lists all Pods of each runner namespace for the reconciles of the pools of this namespace. The
table is UNLOGGED, so that a crash of Postgres empties the table. After a crash, each reconcile lists the Pods of its
own pool, until the next tick stores a list. `tasks.pools.pod_lists` packs and unpacks the Pods.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.sql import text

USED_FOR = timedelta(seconds=10)
"""Maximum age of a usable list. It equals the default interval of the ticks (`pools_every`).

If the stored list is older, the reconcile of a pool lists the pool's Pods itself.
"""

AHEAD = timedelta(seconds=1)
"""Maximum clock skew. A list is not used if its time is further in the future than `AHEAD`."""

KEPT = timedelta(hours=1)
"""Time after which the list of a pool is deleted, if no later tick has replaced the list."""


class PodListRow(Base):
    """The Pods of one pool in the last list of its namespace."""

    __tablename__ = "pod_lists"
    __table_args__ = ({"prefixes": ["UNLOGGED"]},)

    namespace: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True, comment="name of the pool, as in the label of its Pods")
    taken_at: Mapped[datetime] = mapped_column(comment="time at which the first page was requested")
    whole_at: Mapped[datetime] = mapped_column(comment="time at which the last page had arrived")
    pods: Mapped[bytes] = mapped_column(
        LargeBinary, comment="deflated JSON: the names of the fields, and one row per Pod"
    )


def store(
    db: Connection, *, namespace: str, shares: Mapping[str, bytes], taken_at: datetime, whole_at: datetime
) -> None:
    """Store a complete list. `shares` maps the name of each pool to the packed Pods of the pool.

    `taken_at` is the time at which the list began, and `whole_at` is the time at which the list was complete. A stored
    list that began later is not replaced, unless the time of the stored list is in the future. Stored lists of the
    namespace are deleted if they are older than `KEPT`.
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


class StoredList(NamedTuple):
    """The stored list of a pool. `dealt` is True if a reconcile has already handled this list or a newer list."""

    taken_at: datetime
    pods: bytes
    dealt: bool


def find(db: Connection, *, pool_id: int, now: datetime) -> StoredList | None:
    """Return the stored list of a pool, or None if no list is usable.

    A list is usable for `USED_FOR` after it was complete. For a draining or deleted pool, the result is None: the
    reconcile of such a pool needs a list that began after the deletion request.
    """
    row = db.execute(
        text("""
            SELECT l.taken_at, l.pods, coalesce(p.listed_at >= l.taken_at AND p.listed_at <= :ahead, false) AS dealt
            FROM pools p JOIN pod_lists l ON l.namespace = p.namespace AND l.pool = p.name
            WHERE p.id = :id AND NOT p.draining AND p.deleted_at IS NULL
              AND l.taken_at <= l.whole_at AND l.whole_at <= :ahead AND l.whole_at > :since
        """),
        {"id": pool_id, "ahead": now + AHEAD, "since": now - USED_FOR},
    ).one_or_none()
    return None if row is None else StoredList(*row)


def gone_since(db: Connection, *, uids: Sequence[str], taken_at: datetime) -> frozenset[str] | None:
    """Return the UIDs of the listed Pods that were recorded as gone after the list began.

    `uids` are the UIDs of all Pods in the list, and `taken_at` is the time at which the list began. Return None if the
    list shows a Pod that has no row, or a Pod that was recorded as gone before the list began. In both cases the caller
    must list the Pods of the pool again, because only a current list proves whether such a Pod exists.
    """
    found = text("SELECT uid, gone_at FROM runner_pods WHERE uid = ANY(:uids)")
    rows = db.execute(found, {"uids": list(uids)}).all()
    if len(rows) < len(set(uids)) or any(row.gone_at is not None and row.gone_at <= taken_at for row in rows):
        return None
    return frozenset(row.uid for row in rows if row.gone_at is not None)


def seen(db: Connection, *, namespace: str, pool: str) -> tuple[datetime, Sequence[Mapping[str, Any]]] | None:
    """Return the time and the Pods of the last list of a pool, for an explanation. Return None if there is no list.

    The keys of a Pod are the fields that the version of Ostler stored which made the list. Times are texts.
    """
    row = db.execute(
        text("SELECT taken_at, pods FROM pod_lists WHERE namespace = :namespace AND pool = :pool"),
        {"namespace": namespace, "pool": pool},
    ).one_or_none()
    if row is None:
        return None
    content = orjson.loads(zlib.decompress(row.pods))
    return row.taken_at, [dict(zip(content["fields"], values, strict=True)) for values in content["pods"]]


def obstacle(pod: Mapping[str, Any]) -> str | None:
    """Return why a listed Pod does not start, or None if the list shows no obstacle."""
    gates = pod.get("gates")
    waits = f"it waits until another program removes its scheduling gates: {gates}" if gates else None
    return pod["waiting_reason"] or pod["no_node_because"] or waits


def nodes_of_pods(db: Connection) -> Mapping[tuple[str, str], Sequence[tuple[str, str | None]]]:
    """Return the UIDs of the Pods of all stored lists with their nodes, by the namespace and the name of the pool."""
    found = {}
    for row in db.execute(text("SELECT namespace, pool, pods FROM pod_lists")):
        content = orjson.loads(zlib.decompress(row.pods))
        uid, node = (content["fields"].index(name) for name in ("uid", "node"))
        found[row.namespace, row.pool] = [(values[uid], values[node]) for values in content["pods"]]
    return found
