"""Rows of Ostler's database that tests of every kind insert and read, and what the mirror writes into them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, Row, func, insert, text

from models.pools.pool_mirror import PoolFacts
from models.schema import metadata


def run_sql(engine: Engine, statement: str, **values: Any) -> list[Row[Any]]:
    """Run one statement in a transaction of its own and return its rows, if it has any."""
    with engine.begin() as db:
        result = db.execute(text(statement), values)
        return list(result.all()) if result.returns_rows else []


def insert_pool(engine: Engine, name: str = "small", **columns: Any) -> int:
    """Insert the row of a pool and return its id; `columns` replace the defaults or add to them."""
    table = metadata.tables["pools"]
    row = {
        "uid": name,
        "namespace": "runners",
        "name": name,
        "image": "i",
        "labels": ["linux"],
        "runner_group_id": 1,
        "vcpu": 1000,
        "memory": 1024,
        "replicas": 1,
        "allowed_accounts": [],
        "allowed_repositories": [],
        "routing_priority": 0,
        "template_hash": "h",
        "created_at": func.now(),
        **columns,
    }
    with engine.begin() as db:
        return int(db.execute(insert(table).values(row).returning(table.c.id)).scalar_one())


def pool_facts(name: str = "small", **changed: Any) -> PoolFacts:
    """Return a pool as the reconciler observes it; `changed` replace the defaults or add to them."""
    facts: dict[str, Any] = {
        "uid": "pool-1",
        "namespace": "runners",
        "name": name,
        "image": "image",
        "labels": ("linux",),
        "runner_group_id": 1,
        "vcpu": 2000,
        "memory": 4096,
        "replicas": 2,
        "allowed_accounts": (),
        "allowed_repositories": (),
        "routing_priority": 0,
        "template_hash": "hash",
        "draining": False,
    }
    return PoolFacts(**(facts | changed))
