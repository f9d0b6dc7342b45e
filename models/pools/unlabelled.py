"""Queries for pools that serve jobs without labels."""

from __future__ import annotations

from sqlalchemy import Connection

from models.db.sql import text
from rules.pools.pool_spec import PoolSpec
from rules.routing.unlabelled import Declared, earlier_pool


def pool_before(db: Connection, pool: PoolSpec) -> str | None:
    """Return the name of the pool that already serves the jobs without labels of an account of `pool`, or None."""
    rows = db.execute(
        text("""
            SELECT id, uid, namespace, name, allowed_accounts, allowed_repositories FROM pools
            WHERE serves_unlabelled AND deleted_at IS NULL AND NOT draining
        """)
    ).all()
    own_name = (pool.namespace, pool.name)  # also of the row of an object that was deleted and created again
    return earlier_pool(
        [
            Declared(row.id, row.name, frozenset(row.allowed_accounts), frozenset(row.allowed_repositories))
            for row in rows
            if row.uid != pool.uid and (row.namespace, row.name) != own_name
        ],
        own_id=next((row.id for row in rows if row.uid == pool.uid), None),
        accounts=pool.allowed_accounts,
        repositories=pool.allowed_repositories,
    )
