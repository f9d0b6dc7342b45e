"""Record of the writes to the API server that keep failing for a pool (`rules.pools.failing_calls`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import structlog
from sqlalchemy.exc import DBAPIError

from k8s_adapters.runners.events import pool_of
from models.pools import failing_calls
from ostler.reasons import words_of
from rules.pools.failing_calls import FailingCall, lasting
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


def record_writes(
    rt: Runtime, *, namespace: str, pool: str, uid: str, outcomes: Mapping[str, str | None], began: datetime
) -> tuple[FailingCall, ...]:
    """Record the writes of a run that began at `began`, and publish an Event about each call that keeps failing.

    `outcomes`: for each call of the run, the text of its last failure, or None if no write of the call failed.

    Return the calls of the pool that fail. If the row of the pool cannot be written, the next run records its own
    writes, and the result is empty.
    """
    try:
        calls = rt.transaction(failing_calls.record, uid, outcomes, began=began, now=NOW)
    except DBAPIError as error:  # for example a locked row (L14)
        log.warning("pool.failing_calls_not_recorded", namespace=namespace, pool=pool, error=words_of(error))
        return ()
    for each in lasting(calls):
        about = pool_of(namespace=namespace, name=pool, uid=uid)
        rt.events.record(about, "Warning", each.reason, each.describe())
    return calls
