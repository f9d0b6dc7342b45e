"""What the keeper reads and writes: the mirror of pools, and the rows of their Pods.

A row stands before its Pod is created, under the pool's lock, so that two keepers never create one too many.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models import gates
from models.busy import Recorded
from models.releases import Registration, insert_retire, registrations_of
from models.rematch import unroute
from models.sql import text
from ostler.upstreams import Upstream


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool as the cluster has it; sizes in millicores and MiB, times in seconds."""

    uid: str
    namespace: str
    name: str
    image: str
    labels: tuple[str, ...]
    runner_group_id: int
    vcpu: int
    memory: int
    replicas: int
    allowed_accounts: tuple[int, ...]
    allowed_repositories: tuple[str, ...]
    routing_priority: int
    template_hash: str
    draining: bool
    draining_since: datetime | None = None
    generation: int = 0
    paused: bool = False
    autoscaled: bool = False
    min_warm: int = 1
    max_replicas: int = 10
    scale_down_delay: float = 600.0
    max_unavailable_percent: int = 10
    start_timeout: float = 300.0
    max_concurrent: int = 100
    drain_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class PodRow:
    """A Pod's row with its live claim, if it has one. `freed_at`: when its last delivered claim ended."""

    id: int
    name: str
    uid: str | None
    attempt_id: str
    created_at: datetime
    terminal_at: datetime | None
    claim_id: int | None
    claim_purpose: str | None
    ever_delivered: bool
    offered: bool
    freed_at: datetime | None

    @property
    def recorded(self) -> Recorded:
        """Its part of the evidence that it holds a JIT; what proves the contrary is left out but for its end."""
        return Recorded(any_delivered=self.ever_delivered, terminal=self.terminal_at is not None)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A Pod as the cluster has it."""

    name: str
    namespace: str
    uid: str
    attempt_id: str
    template_hash: str
    stamp_value: str
    created_at: datetime
    terminal: bool
    poller_exit_code: int | None
    runner_exit_code: int | None
    exit_reason: str | None


_MIRRORED = tuple(field.name for field in fields(PoolFacts) if field.name not in {"uid", "namespace"})
_CASTS = {"labels": "text[]", "allowed_accounts": "bigint[]", "allowed_repositories": "text[]"}
_VALUES = {name: f"CAST(:{name} AS {_CASTS[name]})" if name in _CASTS else f":{name}" for name in _MIRRORED}
_INSERT = f"""
    INSERT INTO pools (uid, namespace, created_at, routed_at, {", ".join(_VALUES)})
    VALUES (:uid, :namespace, :now, :now, {", ".join(_VALUES.values())})
    ON CONFLICT DO NOTHING
"""  # noqa: S608 - names of columns from above
_UPDATE = f"""
    UPDATE pools SET {", ".join(f"{name} = {value}" for name, value in _VALUES.items())}, deleted_at = NULL,
           routed_at = CASE WHEN :rerouted THEN CAST(:now AS timestamptz) ELSE routed_at END
    WHERE uid = :uid
"""  # noqa: S608 - names of columns from above
_ROUTING = ("labels", "allowed_accounts", "allowed_repositories", "routing_priority", "draining")


def mirror_pool(db: Connection, pool: PoolFacts, *, now: datetime) -> bool:
    """Make a pool's row say what the cluster says; return whether jobs may find another pool now.

    Nothing is written when nothing differs. The pool's lock comes first, as everywhere.
    """
    row = db.execute(text("SELECT * FROM pools WHERE uid = :uid"), {"uid": pool.uid}).one_or_none()
    if row is None:
        # A pool of the same name with another UID went and came again between two looks.
        before = db.execute(
            text("SELECT id FROM pools WHERE namespace = :namespace AND name = :name AND deleted_at IS NULL"),
            {"namespace": pool.namespace, "name": pool.name},
        ).scalars()
        for pool_id in before.all():
            end_pool(db, pool_id, now=now)
        made = db.execute(text(_INSERT), _values(pool, now))
        return made.rowcount > 0  # none when another look at the pools was first
    values = _values(pool, now)
    differing = {column for column in _MIRRORED if getattr(row, column) != values[column]}
    if not differing and row.deleted_at is None:
        return False
    rerouted = row.deleted_at is not None or not differing.isdisjoint(_ROUTING)
    db.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": row.id})
    if rerouted:
        unroute(db, row.id, now=now)
    db.execute(text(_UPDATE), {**_values(pool, now), "rerouted": rerouted})
    return rerouted


def _values(pool: PoolFacts, now: datetime) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(pool, name) for name in (*_MIRRORED, "uid", "namespace")}
    lists = {name: list(values[name]) for name in ("labels", "allowed_accounts", "allowed_repositories")}
    return {**values, **lists, "now": now}


def live_pools(db: Connection, *, namespace: str) -> list[Row[Any]]:
    """Return (id, uid, name) of the pools whose object is not known to be gone."""
    return list(
        db.execute(
            text("SELECT id, uid, name FROM pools WHERE namespace = :namespace AND deleted_at IS NULL ORDER BY id"),
            {"namespace": namespace},
        ).all()
    )


def end_pool(db: Connection, pool_id: int, *, now: datetime) -> None:
    """Record that a pool's object is gone, which a GET by name and UID has proven, and give its jobs back."""
    db.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": pool_id})
    unroute(db, pool_id, now=now)
    db.execute(
        text("UPDATE pools SET deleted_at = :now WHERE id = :id AND deleted_at IS NULL"), {"id": pool_id, "now": now}
    )


def kept_pools(db: Connection, *, namespace: str) -> list[Row[Any]]:
    """Return (id, name) of the pools that have Pods or want some."""
    return list(
        db.execute(
            text("""
                SELECT id, name FROM pools p
                WHERE namespace = :namespace
                  AND (deleted_at IS NULL
                       OR EXISTS (SELECT FROM runner_pods r WHERE r.pool_id = p.id AND r.gone_at IS NULL))
                ORDER BY id
            """),
            {"namespace": namespace},
        ).all()
    )


def record_pods(db: Connection, *, pool_id: int, pods: Sequence[PodFacts], now: datetime) -> None:
    """Give every Pod that was seen its row, its UID and its exit facts.

    Only rows that change are touched: the matcher skips rows that others have locked.
    """
    known = {
        row.name: row
        for row in db.execute(
            text("SELECT id, name, uid, attempt_id, gone_at, terminal_at FROM runner_pods WHERE pool_id = :id"
                 " AND name = ANY(:names)"),
            {"id": pool_id, "names": [pod.name for pod in pods]},
        )
    }  # fmt: skip
    # Known rows in the order of their ids, as every lock; new ones after them.
    for pod in sorted(pods, key=lambda pod: known[pod.name].id if pod.name in known else sys.maxsize):
        row = known.get(pod.name)
        if row is None:
            _adopt(db, pool_id, pod)
        elif row.uid is None and row.attempt_id == pod.attempt_id:
            # The answer to its creation was lost; a row that was given up meanwhile is taken up again.
            db.execute(
                text("""
                    UPDATE runner_pods SET uid = :uid, gone_at = NULL
                    WHERE name = :name AND pool_id = :pool_id AND uid IS NULL
                """),
                {"uid": pod.uid, "name": pod.name, "pool_id": pool_id},
            )
        if pod.terminal and (row is None or row.terminal_at is None):
            db.execute(
                text("""
                    UPDATE runner_pods SET terminal_at = :now, poller_exit_code = :poller,
                           runner_exit_code = :runner, exit_reason = :reason
                    WHERE uid = :uid AND terminal_at IS NULL
                """),
                {
                    "uid": pod.uid, "now": now, "poller": pod.poller_exit_code, "runner": pod.runner_exit_code,
                    "reason": pod.exit_reason,
                },
            )  # fmt: skip


def _adopt(db: Connection, pool_id: int, pod: PodFacts) -> None:
    """Insert the row of a Pod that was seen without one."""
    db.execute(
        text("""
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, stamp_value, created_at)
            VALUES (:pool_id, :namespace, :name, :uid, :attempt, :hash, :stamp, :created)
            ON CONFLICT DO NOTHING
        """),
        {
            "pool_id": pool_id, "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
            "attempt": pod.attempt_id, "hash": pod.template_hash, "stamp": pod.stamp_value, "created": pod.created_at,
        },
    )  # fmt: skip


def pod_rows(db: Connection, *, pool_id: int, now: datetime) -> list[PodRow]:
    """Return the Pods of a pool that are not known to be gone, oldest first."""
    rows = db.execute(
        text("""
            SELECT p.id, p.name, p.uid, p.attempt_id, p.created_at, p.terminal_at,
                   c.id AS claim_id, c.purpose AS claim_purpose,
                   EXISTS (SELECT FROM claims d WHERE d.pod_uid = p.uid AND d.delivered_at IS NOT NULL)
                       AS ever_delivered,
                   EXISTS (SELECT FROM offers o WHERE o.pod_uid = p.uid AND o.until > :now) AS offered,
                   (SELECT max(d.ended_at) FROM claims d WHERE d.pod_uid = p.uid AND d.delivered_at IS NOT NULL)
                       AS freed_at
            FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid AND c.ended_at IS NULL
            WHERE p.pool_id = :pool_id AND p.gone_at IS NULL ORDER BY p.id
        """),
        {"pool_id": pool_id, "now": now},
    )
    return [PodRow(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reconcile does: (row id, Pod name, attempt id) to create, and retire claims that were inserted."""

    create: tuple[tuple[int, str, str], ...]
    retire: tuple[int, ...]


def plan_pods(
    db: Connection,
    *,
    pool_id: int,
    names: Sequence[tuple[str, str]],
    warm: Sequence[int],
    due_after: float,
    now: datetime,
    who: str,
) -> Plan:
    """Insert the rows that are missing, or retire claims for what is too many, under the pool's lock.

    `names` are unused (Pod name, attempt id) pairs, as many as may be created in this round. Of the surplus the
    rows that have no Pod yet go first, then warm Pods, at most max(5, 10 %) of them in a run. `warm` are the rows that
    hold no JIT by what the cluster shows; what Postgres says of them is asked again here.
    """
    db.execute(text("SELECT pg_advisory_xact_lock(:pool_id)"), {"pool_id": pool_id})
    pool = db.execute(
        text("SELECT namespace, replicas, template_hash, draining, deleted_at FROM pools WHERE id = :id"),
        {"id": pool_id},
    ).one()
    alive: int = db.execute(
        text("""
            SELECT count(*) FROM runner_pods p
            WHERE p.pool_id = :id AND p.gone_at IS NULL AND p.terminal_at IS NULL
              AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.ended_at IS NULL
                              AND c.purpose = 'retire')
        """),
        {"id": pool_id},
    ).scalar_one()
    wanted = 0 if pool.draining or pool.deleted_at is not None else pool.replicas
    for name, attempt in names[: max(0, wanted - alive)]:
        db.execute(
            text("""
                INSERT INTO runner_pods (pool_id, namespace, name, attempt_id, template_hash, created_at)
                VALUES (:pool_id, :namespace, :name, :attempt, :hash, :now)
            """),
            {
                "pool_id": pool_id, "namespace": pool.namespace, "name": name, "attempt": attempt,
                "hash": pool.template_hash, "now": now,
            },
        )  # fmt: skip
    surplus = max(0, alive - wanted)
    if surplus:
        surplus -= _give_up_rows(db, pool_id, surplus, now=now)
    if surplus and not gates.is_open(db, Upstream.KUBERNETES):
        surplus = 0  # a closed gate stops what deletes Pods, and nothing else here
    retired = _retire_surplus(db, pool_id, surplus, warm=warm, alive=alive, due_after=due_after, now=now, who=who)
    rows = db.execute(
        text("""
            SELECT id, name, attempt_id FROM runner_pods
            WHERE pool_id = :id AND uid IS NULL AND gone_at IS NULL ORDER BY id LIMIT :limit
        """),
        {"id": pool_id, "limit": len(names)},
    )
    return Plan(create=tuple((row.id, row.name, row.attempt_id) for row in rows), retire=retired)


def _give_up_rows(db: Connection, pool_id: int, surplus: int, *, now: datetime) -> int:
    """Give up rows whose Pod was never seen; one that turns up after all is taken up again by its attempt."""
    given_up = db.execute(
        text("""
            UPDATE runner_pods SET gone_at = :now WHERE id IN (
                SELECT id FROM runner_pods WHERE pool_id = :id AND uid IS NULL AND gone_at IS NULL
                ORDER BY id LIMIT :surplus FOR NO KEY UPDATE)
        """),
        {"id": pool_id, "surplus": surplus, "now": now},
    )
    return given_up.rowcount


def _retire_surplus(
    db: Connection, pool_id: int, surplus: int, *, warm: Sequence[int], alive: int, due_after: float, now: datetime,
    who: str,
) -> tuple[int, ...]:  # fmt: skip
    rows = db.execute(
        text("""
            SELECT p.id FROM runner_pods p
            WHERE p.pool_id = :id AND p.id = ANY(:warm) AND p.gone_at IS NULL AND p.terminal_at IS NULL
              AND p.uid IS NOT NULL AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid
                              AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL))
            ORDER BY p.id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"id": pool_id, "warm": list(warm), "limit": min(surplus, budget_of(alive))},
    )
    claims = [
        insert_retire(db, row_id, now=now, who=who, why="the pool has too many Pods", due_after=due_after)
        for row_id in rows.scalars().all()
    ]
    return tuple(claim_id for claim_id in claims if claim_id is not None)


def budget_of(pods: int) -> int:
    """Return how many warm Pods one run may retire of those that are too many."""
    return max(5, pods // 10)


def record_listed(db: Connection, *, pool_id: int, at: datetime) -> None:
    """Note down that all Pods that a list of that time did not show were dealt with, or are known to be stranded."""
    db.execute(text("UPDATE pools SET listed_at = :at WHERE id = :id"), {"id": pool_id, "at": at})


def record_created(db: Connection, *, row_id: int, uid: str) -> None:
    """Write the UID down that the cluster gave; a poll may have done so before.

    A row that was given up while its Pod was being created is taken up again: the Pod exists.
    """
    db.execute(
        text("UPDATE runner_pods SET uid = :uid, gone_at = NULL WHERE id = :id AND uid IS NULL"),
        {"id": row_id, "uid": uid},
    )


def is_wanted(db: Connection, *, row_id: int) -> bool:
    """Return whether a row still waits for its Pod: another keeper may have made it, or given it up."""
    found = db.execute(
        text("SELECT 1 FROM runner_pods WHERE id = :id AND uid IS NULL AND gone_at IS NULL"), {"id": row_id}
    ).one_or_none()
    return found is not None


def forget_row(db: Connection, *, row_id: int, now: datetime) -> None:
    """Give up a row whose Pod was never created (its name is taken by something that is not ours)."""
    db.execute(text("UPDATE runner_pods SET gone_at = :now WHERE id = :id AND uid IS NULL"), {"id": row_id, "now": now})


def pool_name(db: Connection, pool_id: int) -> tuple[str, str] | None:
    """Return namespace and name of a pool."""
    row = db.execute(text("SELECT namespace, name FROM pools WHERE id = :id"), {"id": pool_id}).one_or_none()
    return None if row is None else (row.namespace, row.name)


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """What is asked of GitHub about a claim whose Pod ended, and the Pod."""

    namespace: str
    pod_name: str
    pod_uid: str
    job_id: int | None
    repository: str | None
    installation_id: int | None
    account_id: int | None
    pool_id: int
    executing: bool
    releasing: bool
    delivered: bool
    registrations: tuple[Registration, ...]


def claim_facts(db: Connection, claim_id: int) -> ClaimFacts | None:
    """Return the facts of a live job claim."""
    query = db.execute(
        text("""
            SELECT p.namespace, p.name AS pod_name, c.pod_uid, c.job_id, j.repository, c.installation_id, c.account_id,
                   c.pool_id, c.state = 'executing' AS executing,
                   c.state = 'releasing' AS releasing, c.delivered_at IS NOT NULL AS delivered
            FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id LEFT JOIN jobs j ON j.id = c.job_id
            WHERE c.id = :id AND c.ended_at IS NULL AND c.purpose = 'job'
        """),
        {"id": claim_id},
    )
    row = query.mappings().one_or_none()
    return None if row is None else ClaimFacts(**row, registrations=registrations_of(db, claim_id))
