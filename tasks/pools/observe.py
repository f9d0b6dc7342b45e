"""Observation of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache

import structlog

from k8s_adapters.names import POOL_LABEL
from k8s_adapters.pods import PodSeen
from models.pools.pod_lists import AHEAD
from models.pools.pod_rows import PodRow
from rules.claims.machines import Purpose
from tasks.pools.pod_lists import Listed

log = structlog.get_logger(__name__)


@lru_cache(maxsize=1000)
def report_foreign_pod(uid: str, name: str, pool: str) -> None:
    """Say once in this process that a Pod has the label of a pool and was not made by Ostler. It is left alone."""
    cure = f"remove the label {POOL_LABEL} from it, or ignore this: it is neither counted nor deleted"
    log.warning("pod.not_adopted", pod=name, pod_uid=uid, pool=pool, cure=cure)


def is_younger(row: PodRow, by_uid: Mapping[str, PodSeen], *, than: Listed, now: datetime) -> bool:
    """Return whether a Pod is missing from a shared list only as its row was made after that had begun.

    A row of the future was made by a clock that was ahead, and tells nothing about the list.
    """
    missing = than.shared and row.terminal_at is None and row.uid not in by_uid
    return missing and than.began < row.created_at <= now + AHEAD


def needs_github(row: PodRow, by_uid: Mapping[str, PodSeen]) -> bool:
    """Return whether the Pod is over while a job claim of it lives: GitHub says what becomes of the job."""
    return row.claim_purpose == Purpose.JOB and (row.terminal_at is not None or row.uid not in by_uid)
