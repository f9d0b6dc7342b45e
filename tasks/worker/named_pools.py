"""The pools that a message means: by id, or by the name that programs outside of Ostler know."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from models.claims import watch_reports
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


def pools_meant(rt: Runtime, *, pool_id: int | None, pool: str | None) -> Sequence[int]:
    """Return the ids that a message means. The id counts where both are given.

    A name may have several rows: those of earlier pools of that name, whose Pods may still be there. A message that
    names no known pool means none, which is logged.
    """
    if pool_id is not None:
        return [pool_id]
    found: Sequence[int] = []
    if isinstance(pool, str):
        namespace = rt.settings.namespace
        found = rt.transaction(watch_reports.pools_named, namespace=namespace, names=[pool])
    if not found:
        log.warning("message.no_such_pool", pool=pool)
    return found
