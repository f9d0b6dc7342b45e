"""What the keeper reads and writes: the mirror of pools, and the rows of their Pods.

A row stands before its Pod is created, under the pool's lock, so that two keepers never create one too many.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, text

from models.matching import WEB_ALIVE
from models.releases import insert_retire
from models.rematch import unroute


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool as the cluster has it; sizes in millicores and MiB."""

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


@dataclass(frozen=True, slots=True)
class PodRow:
    """A Pod's row with its live claim, if it has one."""

    id: int
    name: str
    uid: str | None
    attempt_id: str
    created_at: datetime
    polled_at: datetime | None
    terminal_at: datetime | None
    claim_id: int | None
    claim_purpose: str | None
    claim_state: str | None
    ever_delivered: bool
    offered: bool


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


def mirror_pools(
    db: Connection, *, namespace: str, pools: Sequence[PoolFacts], kept: Collection[str], now: datetime
) -> bool:
    """Make the rows say what the cluster says; return whether jobs may find another pool now.

    `kept` are the UIDs of all pools that exist, those included that cannot be used as they are written.
    """
    changed = False
    for pool in sorted(pools, key=lambda pool: pool.uid):
        before = db.execute(
            text("""
                SELECT id, labels, allowed_accounts, allowed_repositories, routing_priority, draining
                FROM pools WHERE uid = :uid FOR NO KEY UPDATE
            """),
            {"uid": pool.uid},
        ).one_or_none()
        values: dict[str, Any] = {
            "uid": pool.uid, "namespace": pool.namespace, "name": pool.name, "image": pool.image,
            "labels": list(pool.labels), "group": pool.runner_group_id, "vcpu": pool.vcpu, "memory": pool.memory,
            "replicas": pool.replicas, "accounts": list(pool.allowed_accounts),
            "repositories": list(pool.allowed_repositories), "priority": pool.routing_priority,
            "hash": pool.template_hash, "draining": pool.draining, "now": now,
        }  # fmt: skip
        if before is None:
            # A pool of the same name with another UID went and came again between two looks.
            gone = db.execute(
                text("""
                    UPDATE pools SET deleted_at = :now
                    WHERE namespace = :namespace AND name = :name AND deleted_at IS NULL RETURNING id
                """),
                values,
            ).scalars()
            for pool_id in gone.all():
                unroute(db, pool_id, now=now)
            db.execute(
                text("""
                    INSERT INTO pools (uid, namespace, name, image, labels, runner_group_id, vcpu, memory, replicas,
                                       allowed_accounts, allowed_repositories, routing_priority, template_hash,
                                       draining, created_at)
                    VALUES (:uid, :namespace, :name, :image, CAST(:labels AS text[]), :group, :vcpu, :memory,
                            :replicas, CAST(:accounts AS bigint[]), CAST(:repositories AS text[]), :priority, :hash,
                            :draining, :now)
                """),
                values,
            )
            changed = True
            continue
        db.execute(
            text("""
                UPDATE pools SET image = :image, labels = CAST(:labels AS text[]), runner_group_id = :group,
                       vcpu = :vcpu, memory = :memory, replicas = :replicas,
                       allowed_accounts = CAST(:accounts AS bigint[]),
                       allowed_repositories = CAST(:repositories AS text[]), routing_priority = :priority,
                       template_hash = :hash, draining = :draining
                WHERE uid = :uid
            """),
            values,
        )
        routing = (
            list(before.labels), list(before.allowed_accounts), list(before.allowed_repositories),
            before.routing_priority, before.draining,
        )  # fmt: skip
        if routing != (
            list(pool.labels), list(pool.allowed_accounts), list(pool.allowed_repositories), pool.routing_priority,
            pool.draining,
        ):  # fmt: skip
            unroute(db, before.id, now=now)
            changed = True
    gone = db.execute(
        text("""
            UPDATE pools SET deleted_at = :now
            WHERE namespace = :namespace AND deleted_at IS NULL AND NOT (uid = ANY(:uids)) RETURNING id
        """),
        {"now": now, "namespace": namespace, "uids": list(kept)},
    ).scalars()
    for pool_id in gone.all():
        unroute(db, pool_id, now=now)
        changed = True
    return changed


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
    """Give every Pod that was seen its row, its UID and its exit facts."""
    for pod in sorted(pods, key=lambda pod: pod.name):
        db.execute(
            text("""
                INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, stamp_value,
                                         created_at)
                VALUES (:pool_id, :namespace, :name, :uid, :attempt, :hash, :stamp, :created)
                ON CONFLICT (namespace, name) DO UPDATE SET uid = excluded.uid
                WHERE runner_pods.uid IS NULL AND runner_pods.attempt_id = excluded.attempt_id
            """),
            {
                "pool_id": pool_id, "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
                "attempt": pod.attempt_id, "hash": pod.template_hash, "stamp": pod.stamp_value,
                "created": pod.created_at,
            },
        )  # fmt: skip
    ended = [pod for pod in pods if pod.terminal]
    for pod in sorted(ended, key=lambda pod: pod.name):
        db.execute(
            text("""
                UPDATE runner_pods SET terminal_at = :now, poller_exit_code = :poller, runner_exit_code = :runner,
                       exit_reason = :reason
                WHERE uid = :uid AND terminal_at IS NULL
            """),
            {
                "uid": pod.uid, "now": now, "poller": pod.poller_exit_code, "runner": pod.runner_exit_code,
                "reason": pod.exit_reason,
            },
        )  # fmt: skip


def pod_rows(db: Connection, *, pool_id: int, now: datetime) -> list[PodRow]:
    """Return the Pods of a pool that are not known to be gone, oldest first."""
    rows = db.execute(
        text("""
            SELECT p.id, p.name, p.uid, p.attempt_id, p.created_at, p.polled_at, p.terminal_at,
                   c.id AS claim_id, c.purpose AS claim_purpose, c.state AS claim_state,
                   EXISTS (SELECT FROM claims d WHERE d.pod_uid = p.uid AND d.delivered_at IS NOT NULL)
                       AS ever_delivered,
                   EXISTS (SELECT FROM offers o WHERE o.pod_uid = p.uid AND o.until > :now) AS offered
            FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid AND c.ended_at IS NULL
            WHERE p.pool_id = :pool_id AND p.gone_at IS NULL ORDER BY p.id
        """),
        {"pool_id": pool_id, "now": now},
    )
    return [PodRow(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Pods to create now, and how many there are too many."""

    create: tuple[tuple[int, str, str], ...]
    surplus: int


def plan_rows(db: Connection, *, pool_id: int, names: Sequence[tuple[str, str]], now: datetime) -> Wanted:
    """Insert the rows that are missing, under the pool's lock, and return every row without a Pod.

    `names` are unused (Pod name, attempt id) pairs, as many as may be created in this round.
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
    rows = db.execute(
        text("""
            SELECT id, name, attempt_id FROM runner_pods
            WHERE pool_id = :id AND uid IS NULL AND gone_at IS NULL ORDER BY id
        """),
        {"id": pool_id},
    )
    create = tuple((row.id, row.name, row.attempt_id) for row in rows) if wanted else ()
    return Wanted(create=create, surplus=max(0, alive - wanted))


def record_created(db: Connection, *, row_id: int, uid: str) -> None:
    """Write the UID down that the cluster gave; a poll may have done so before."""
    db.execute(text("UPDATE runner_pods SET uid = :uid WHERE id = :id AND uid IS NULL"), {"id": row_id, "uid": uid})


def forget_row(db: Connection, *, row_id: int, now: datetime) -> None:
    """Give up a row whose Pod was never created (its name is taken by something that is not ours)."""
    db.execute(text("UPDATE runner_pods SET gone_at = :now WHERE id = :id AND uid IS NULL"), {"id": row_id, "now": now})


def web_beats(db: Connection, *, since: datetime, now: datetime) -> bool:
    """Return whether a web process beats now and did so all the time since: silence counts only then."""
    found = db.execute(
        text("SELECT 1 FROM web_instances WHERE beat_at > :alive AND started_at < :since LIMIT 1"),
        {"alive": now - WEB_ALIVE, "since": since},
    ).one_or_none()
    return found is not None


def silent_since(row: PodRow) -> datetime:
    """Return when the Pod was last heard; polls are recorded at most once a minute."""
    return max(row.created_at, row.polled_at + timedelta(seconds=60) if row.polled_at else row.created_at)


def pool_name(db: Connection, pool_id: int) -> tuple[str, str] | None:
    """Return namespace and name of a pool."""
    row = db.execute(text("SELECT namespace, name FROM pools WHERE id = :id"), {"id": pool_id}).one_or_none()
    return None if row is None else (row.namespace, row.name)


def retire_surplus(
    db: Connection, *, pool_id: int, surplus: int, due_after: float, now: datetime, who: str
) -> list[int]:
    """Retire warm Pods that are too many, at most max(5, 10 %) of the pool's in one run (L9)."""
    total: int = db.execute(
        text("SELECT count(*) FROM runner_pods WHERE pool_id = :id AND gone_at IS NULL AND terminal_at IS NULL"),
        {"id": pool_id},
    ).scalar_one()
    rows = db.execute(
        text("""
            SELECT p.id FROM runner_pods p
            WHERE p.pool_id = :id AND p.gone_at IS NULL AND p.terminal_at IS NULL AND p.uid IS NOT NULL
              AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid
                              AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL))
            ORDER BY p.id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"id": pool_id, "limit": min(surplus, max(5, total // 10))},
    )
    claims = [
        insert_retire(db, row_id, now=now, who=who, why="the pool has too many Pods", due_after=due_after)
        for row_id in rows.scalars().all()
    ]
    return [claim_id for claim_id in claims if claim_id is not None]


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """What is asked of GitHub about a claim whose Pod ended."""

    job_id: int | None
    repository: str | None
    installation_id: int | None
    account_id: int | None
    pool_id: int
    executing: bool


def claim_facts(db: Connection, claim_id: int) -> ClaimFacts | None:
    """Return the facts of a live job claim."""
    row = db.execute(
        text("""
            SELECT c.job_id, j.repository, c.installation_id, c.account_id, c.pool_id,
                   c.state = 'executing' AS executing
            FROM claims c LEFT JOIN jobs j ON j.id = c.job_id
            WHERE c.id = :id AND c.ended_at IS NULL AND c.purpose = 'job'
        """),
        {"id": claim_id},
    ).one_or_none()
    return None if row is None else ClaimFacts(*row)
