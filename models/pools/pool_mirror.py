"""Mirror of the pools: each pool object of the cluster is copied into a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row

from models.db.sql import text
from models.state import changes
from models.state.pools import Pool
from rules.changes import Author, ChangeKind, Via, difference
from rules.pools.pool_spec import PoolSpec
from rules.pools.spec_writers import UNKNOWN, spec_writer
from rules.routing.scopes import Scope

TEMPLATE_HOLDS = timedelta(minutes=2)
"""Minimum time that a template hash is kept while the generation of the spec is unchanged.

During a deployment, workers with different versions or settings of Ostler can compute different hashes of one spec.
"""

MADE_WITHIN = timedelta(minutes=1)
"""Maximum time from the request that creates a Pod until the response to that request.

The task that creates the Pod ends within 20 seconds.
"""


_FIELDS = {
    "vcpu": "charged_millicores",
    "memory": "charged_mib",
    "allow_forks": "serves_forks",
    "draining": "terminating",
    "draining_since": "deleted_at",
}
"""Fields of the specification whose column has another name."""
_OF_THE_ROW = {"uid", "namespace", "status", "problem", "pause_request", "deleted_at"}
"""Columns that never change, or that mean something else than the field with their name."""
_NAMES = {"spec", *_FIELDS, *PoolSpec.__annotations__, *dir(PoolSpec)} - _OF_THE_ROW
_MIRRORED = tuple(column.name for column in Pool.__table__.columns if column.name in _NAMES)
"""Columns of the specification."""
_NOT_IN_SPEC = {
    *("resource_version", "status", "has_finalizer", "writers", "pause_request"),
    *("generation", "template_hash", "problem", "deleted_at"),
}
"""Fields that the JSON of the specification does not contain: they say nothing about the spec, or are columns."""
_NOT_IN_CHANGES = {"generation", "replicas_writer", "draining_since", "spec"}
"""Columns that follow from others, or say nothing about the spec."""
_NOT_COMPARED = {"draining", "draining_since", "spec"}
"""Columns that do not show which of the two forms is newer. A drain is also recorded without a specification."""
_CASTS = {"labels": "text[]", "allowed_accounts": "bigint[]", "allowed_repositories": "text[]", "spec": "jsonb"}
_VALUES = {name: f"CAST(:{name} AS {_CASTS[name]})" if name in _CASTS else f":{name}" for name in _MIRRORED}

_INSERT = f"""
    INSERT INTO pools (uid, namespace, created_at, routed_at, template_at, recorded_template, {", ".join(_VALUES)})
    VALUES (:uid, :namespace, :now, :now, :now, :template_hash, {", ".join(_VALUES.values())})
    ON CONFLICT DO NOTHING RETURNING id
"""

_SAME_SPEC = "(template_hash = :template_hash OR generation = :generation)"

_UPDATE = f"""
    UPDATE pools SET {", ".join(f"{name} = {value}" for name, value in _VALUES.items())}, deleted_at = NULL,
           problem = NULL, failed_starts = CASE WHEN {_SAME_SPEC} THEN failed_starts ELSE 0 END,
           create_after = CASE WHEN {_SAME_SPEC} THEN create_after END,
           start_trouble = CASE WHEN {_SAME_SPEC} THEN start_trouble END,
           start_detail = CASE WHEN {_SAME_SPEC} THEN start_detail END,
           template_at = CASE WHEN template_hash = :template_hash THEN template_at ELSE CAST(:now AS timestamptz) END,
           recorded_template = CASE WHEN template_hash = :template_hash THEN recorded_template ELSE :template_hash END,
           routed_at = CASE WHEN :rerouted THEN CAST(:now AS timestamptz) ELSE routed_at END,
           rerouting_since = CASE WHEN :rerouted THEN CAST(:now AS timestamptz) ELSE rerouting_since END
    WHERE uid = :uid
"""
_ROUTING = (
    "labels",
    "allowed_accounts",
    "allowed_repositories",
    "allow_forks",
    "routing_priority",
    "serves_unlabelled",
    "draining",
    "runner_group_id",
    "runner_group_name",
)


def spec_of(row: Pool) -> PoolSpec:
    """Return the specification in a pool's row. Its `deleted_at` is also set if the pool's object is gone.

    The previous release writes the columns alone. Until the next mirror of such a pool, and for a pool that is not
    mirrored any more, the columns decide. They do not contain the builder, the hook Pods and the overlay.
    """
    try:
        spec = _spec_of_columns(row) if row.spec is None else _spec_of_json(row, row.spec)
    except msgspec.ValidationError:  # written by a later release that was rolled back; the pool must still drain
        spec = _spec_of_columns(row)
    if any(getattr(row, column) != value for column, value in _values(spec).items() if column not in _NOT_COMPARED):
        spec = _spec_of_columns(row)
    deleted_at = row.draining_since or row.deleted_at or (row.created_at if row.draining else None)
    return replace(spec, deleted_at=deleted_at, problem=row.problem)


def _spec_of_json(row: Pool, spec: dict[str, Any]) -> PoolSpec:
    return msgspec.convert({**spec, "generation": row.generation, "template_hash": row.template_hash}, PoolSpec)


def _spec_of_columns(row: Pool) -> PoolSpec:
    columns = {column: getattr(row, column) for column in (*_MIRRORED, "uid", "namespace")}
    volumes = None if row.volume_reclaim is None else {"claims": (), "reclaim": row.volume_reclaim}
    not_in_columns = {
        "runner_group": row.runner_group_name or row.runner_group_id,
        "vcpu_millicores": row.vcpu,
        "memory_mib": row.memory,
        "ephemeral_storage_mib": 0,
        "ephemeral_storage_limit_mib": None,
        "target_busy_percent": 100,
        "pod_template": None,
        "elevated_forks": row.allow_forks,
        "registers_in": None,
        "volumes": volumes,
    }
    scope = None if row.registers_in is None else Scope.parse(row.registers_in)
    return replace(msgspec.convert({**columns, **not_in_columns}, PoolSpec), registers_in=scope)


def mirror_pool(db: Connection, pool: PoolSpec, *, now: datetime) -> bool:
    """Write a pool's specification into its row. Return True if the written values might change the routing of jobs.

    `template_hash` is the hash of the pool's present Pods, and `start_timeout` the time in seconds that a Pod may take
    to its first poll. Both depend on the settings of the worker. Nothing is written if the row already contains the
    same values, or those of a newer generation.
    """
    values = _values(pool)
    row = _row(db, pool.uid)
    if row is None:
        return _insert(db, pool, values, now=now)
    # During a deployment, old and new workers might compute two hashes of one spec. The first hash is kept for
    # `TEMPLATE_HOLDS`. Otherwise old and new workers would replace each other's starting Pods.
    wanted = _with_recorded_template(row, values, now=now)
    if not _differing(row, wanted) and row.deleted_at is None and row.problem is None:
        return False
    db.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": row.id})
    row = _row(db, pool.uid)  # again, because another worker might have written the row before this lock
    if row is None or row.generation > pool.generation:
        return False  # another worker has written a later generation
    wanted = _with_recorded_template(row, values, now=now)
    # After a change of the routing, the next reconcile takes all queued jobs out of the pool, and `rematch` routes them
    # again (`tasks.routing.rerouting`). Until the reconcile has read them all, the matcher matches no job of the pool.
    rerouted = row.deleted_at is not None or not _differing(row, wanted).isdisjoint(_ROUTING)
    db.execute(text(_UPDATE), {**_written(wanted), "uid": pool.uid, "rerouted": rerouted, "now": now})
    if row.generation != pool.generation or row.deleted_at is not None:
        before = {**_shown(row._asdict()), "problem": row.problem, "deleted": row.deleted_at is not None}
        _record(db, row.id, pool, before=before, after={**_shown(wanted), "problem": None, "deleted": False}, now=now)
    return rerouted


def generation_of(db: Connection, *, uid: str) -> int | None:
    """Return the generation in a pool's row, or None if the pool has no row."""
    found: int | None = db.execute(text("SELECT generation FROM pools WHERE uid = :uid"), {"uid": uid}).scalar()
    return found


def go_back(db: Connection, *, uid: str, known: int, generation: int) -> bool:
    """Set a smaller generation in a pool's row, so that an object with this generation can be mirrored.

    A pool's generation decreases when etcd is restored from a backup. `known` is the generation that the caller read
    from the row. `generation` comes from a read of the cluster that began after the read of the row. Return False if
    the row's generation has changed since the read of the row.
    """
    moved = db.execute(
        text("UPDATE pools SET generation = :generation WHERE uid = :uid AND generation = :known"),
        {"uid": uid, "known": known, "generation": generation},
    )
    return moved.rowcount > 0


def mark_problem(db: Connection, pool: PoolSpec, *, problem: str, now: datetime) -> None:
    """Record that a pool's spec cannot be used, and its generation. The other columns keep their values.

    An older generation than that of the row is ignored. If the pool has no row, a row without labels and with 0
    replicas is inserted. Such a pool serves no job. With the row, the pool can drain, and Pods that belong to the pool
    can be recorded. The fields of `pool` are as in `mirror_pool`.
    """
    row = _row(db, pool.uid)
    if row is None:
        _insert(db, pool, _values(replace(pool, labels=(), serves_unlabelled=False, replicas=0)), now=now)
    elif (row.problem, row.generation) == (problem, pool.generation):
        return
    marked = db.execute(
        text("""
            UPDATE pools SET problem = :problem, generation = :generation
            WHERE uid = :uid AND deleted_at IS NULL AND generation <= :generation
        """),
        {"uid": pool.uid, "problem": problem, "generation": pool.generation},
    )
    if marked.rowcount and row is not None and row.generation != pool.generation:
        _record(db, row.id, pool, before={"problem": row.problem}, after={"problem": problem}, now=now)


def _row(db: Connection, uid: str) -> Row[Any] | None:
    return db.execute(text("SELECT * FROM pools WHERE uid = :uid"), {"uid": uid}).one_or_none()


def _values(pool: PoolSpec) -> dict[str, Any]:
    """Return the mirrored columns of a pool, with the types that Postgres returns."""
    fields = {column: getattr(pool, _FIELDS.get(column, column)) for column in _MIRRORED if column != "spec"}
    values = {column: list(value) if isinstance(value, tuple) else value for column, value in fields.items()}
    scope = None if pool.registers_in is None else str(pool.registers_in)
    stored = msgspec.json.decode(msgspec.json.encode(pool))  # with lists, as Postgres returns them
    spec = {name: value for name, value in stored.items() if name not in _NOT_IN_SPEC}
    return {**values, "registers_in": scope, "spec": spec}


def _written(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "spec": json.dumps(values["spec"])}


def _with_recorded_template(row: Row[Any], values: dict[str, Any], *, now: datetime) -> dict[str, Any]:
    """Return the values with the template hash of the row, if the row's hash must be kept. Otherwise return `values`.

    The row's hash is kept if the generation is the same and the row's hash is younger than `TEMPLATE_HOLDS`.
    """
    held = row.recorded_template == row.template_hash and row.template_at > now - TEMPLATE_HOLDS
    return {**values, "template_hash": row.template_hash} if row.generation == values["generation"] and held else values


def _differing(row: Row[Any], values: dict[str, Any]) -> set[str]:
    return {column for column, value in values.items() if getattr(row, column) != value}


def _insert(db: Connection, pool: PoolSpec, values: dict[str, Any], *, now: datetime) -> bool:
    """Insert a pool's row. Return True if this call inserted the row.

    If a live row has the same name and another UID, the pool was deleted and created again between two reads of the
    cluster. In this case, `end_pool` is called for the deleted pool first. If another worker has inserted the row in
    the meantime, nothing is inserted.
    """
    before = db.execute(
        text("""
            SELECT id FROM pools WHERE namespace = :namespace AND name = :name AND deleted_at IS NULL AND uid <> :uid
        """),
        {"namespace": pool.namespace, "name": pool.name, "uid": pool.uid},
    ).scalars()
    for pool_id in before.all():
        end_pool(db, pool_id, now=now)
    given = {**_written(values), "uid": pool.uid, "namespace": pool.namespace, "now": now}
    made = db.execute(text(_INSERT), given).scalar()
    if made is None:
        return False  # another worker inserted the row first
    _record(db, made, pool, before={"draining": False}, after=_shown(values), now=now)
    return True


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a pool that the table of changes shows."""
    return {name: values[name] for name in _MIRRORED if name not in _NOT_IN_CHANGES}


def _record(
    db: Connection, pool_id: int, pool: PoolSpec, *, before: dict[str, Any], after: dict[str, Any], now: datetime
) -> None:
    """Record a change of the spec. The author is the field manager that last wrote the spec."""
    _, changed = difference(before, after)
    who = spec_writer(pool.writers, changed=changed)
    if who is not None:
        by = Author(who, Via.CLUSTER, now)
        changes.record(db, ChangeKind.POOL, pool.name, object_id=pool_id, before=before, after=after, by=by)


class PoolRef(NamedTuple):
    """A pool: the id of its row, and its object.

    `exists` is False if its object is known to be gone. `leaving` is True if the pool drains, or its object is gone.
    `has_volumes` is True if its runners have volumes.
    """

    id: int
    namespace: str
    name: str
    uid: str
    exists: bool
    leaving: bool
    has_volumes: bool


_REF = """
    id, namespace, name, uid, deleted_at IS NULL AS exists, draining OR deleted_at IS NOT NULL AS leaving,
    volume_reclaim IS NOT NULL AS has_volumes
"""


def live_pools(db: Connection, *, namespace: str) -> list[PoolRef]:
    """Return the pools whose object is not known to be gone, in the order of their ids."""
    rows = db.execute(
        text(f"SELECT {_REF} FROM pools WHERE namespace = :namespace AND deleted_at IS NULL ORDER BY id"),
        {"namespace": namespace},
    )
    return [PoolRef(*row) for row in rows]


def end_pool(db: Connection, pool_id: int, *, now: datetime) -> None:
    """Record that a pool's object is gone. The caller has proven the absence with a GET by name and UID.

    The next reconcile of the pool takes the queued jobs out of the pool (`tasks.routing.rerouting`). The sweep
    `rematch` routes these jobs to other pools. It also routes the jobs that the reconcile missed.
    """
    db.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": pool_id})
    ended = db.execute(
        text("""
            UPDATE pools SET deleted_at = :now, rerouting_since = :now WHERE id = :id AND deleted_at IS NULL
            RETURNING name
        """),
        {"id": pool_id, "now": now},
    ).one_or_none()
    if ended is not None:
        changes.record(
            db,
            ChangeKind.POOL,
            ended.name,
            object_id=pool_id,
            before={"deleted": False},
            after={"deleted": True},
            by=Author(UNKNOWN, Via.CLUSTER, now),
            why="its RunnerPool object is gone; the audit log of the API server names who deleted it",
        )


def mirrored_pools(db: Connection, *, namespace: str) -> list[PoolRef]:
    """Return the pools that need a reconcile, in the order of their ids."""
    rows = db.execute(
        text(f"""
            SELECT {_REF} FROM pools p
            WHERE namespace = :namespace
              -- the object is not known to be gone, or jobs must be moved to another pool
              AND (deleted_at IS NULL OR rerouting_since IS NOT NULL OR rerouting_jobs <> '{{}}'
                   -- the last list is missing; an earlier one might miss a Pod whose creation was in progress
                   OR listed_at IS NULL OR listed_at < deleted_at + :made_within
                   -- Pods are not known to be gone
                   OR EXISTS (SELECT FROM runner_pods r WHERE r.pool_id = p.id AND r.gone_at IS NULL))
            ORDER BY id
        """),
        {"namespace": namespace, "made_within": MADE_WITHIN},
    )
    return [PoolRef(*row) for row in rows]


def record_listed(db: Connection, *, pool_id: int, at: datetime, now: datetime) -> None:
    """Record `at`, the time at which a list of Pods began.

    For every Pod that is missing from the list, the caller has handled the Pod or has recorded that its claim is
    stalled. A newer time in the row is not replaced, unless that time is in the future.
    """
    db.execute(
        text("""
            UPDATE pools SET listed_at = :at
            WHERE id = :id AND (listed_at IS NULL OR listed_at < :at OR listed_at > :now)
        """),
        {"id": pool_id, "at": at, "now": now},
    )


def pool_ref(db: Connection, pool_id: int) -> PoolRef | None:
    """Return the pool with this id, or None if there is none."""
    row = db.execute(text(f"SELECT {_REF} FROM pools WHERE id = :id"), {"id": pool_id}).one_or_none()
    return None if row is None else PoolRef(*row)
