"""Pools that a message names, by id or by name. Programs outside of Ostler know only the names."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from models.claims import watch_reports
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


def pools_meant(rt: Runtime, *, pool_id: int | None, pool: str | None) -> Sequence[int]:
    """Return the ids of the pools that a message names. If the message has an id and a name, the name is ignored.

    One name can belong to several rows: earlier pools of this name might still have Pods, and each of the two
    namespaces of runners can have a pool of this name. If no pool has the name, or if `pool` is not a text, the result
    is empty and a warning is logged.
    """
    if pool_id is not None:
        return [pool_id]
    found: Sequence[int] = []
    if isinstance(pool, str):
        found = rt.transaction(watch_reports.pools_named, namespaces=rt.settings.namespaces, names=[pool])
    if not found:
        log.warning("message.ignored_because_pool_is_unknown", pool=pool)
    return found
