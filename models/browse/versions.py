"""Image and runner version of every pool, and the Pods that a change of the Pod template would replace.

`ostler pool list --versions`, the API and the page of all pools show these rows. Pods are counted only by the
reconciler, which stores the numbers in the status of the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from models.pools import runner_versions
from rules.pools.pod_states import PodState
from rules.pools.runner_versions import version_of

_WITH_JOB = (PodState.RESERVED, PodState.BUSY)
_REPLACED = (PodState.STARTING, PodState.WARM)


@dataclass(frozen=True, slots=True)
class PoolVersions:
    """A pool that is not deleted, with its image and the version of its runner.

    `runner` is the version that GitHub listed last for a Pod of the present template, or else the version in the tag of
    the image, or None. GitHub refuses it from `ends_at` on; None: GitHub has named no time. `warning` is the message of
    the condition RunnerOutdated, or None.

    `old_pods` counts the Pods of an older template, `with_job` the Pods that have a job or are about to get it, and
    `replaced` the starting and warm Pods, which a new template replaces. The three are None before the first reconcile.
    """

    id: int
    namespace: str
    name: str
    paused: bool
    image: str
    runner: str | None
    ends_at: datetime | None
    warning: str | None
    old_pods: int | None
    with_job: int | None
    replaced: int | None


def pool_versions(db: Connection, *, ids: Collection[int] | None = None) -> Sequence[PoolVersions]:
    """Return every pool that is not deleted, in the order of namespace and name. `ids` limits them, if it is given."""
    rows = db.execute(
        text("""
            SELECT p.id, p.namespace, p.name, p.paused, p.image, p.status,
                   (SELECT each ->> 'message' FROM jsonb_array_elements(p.status -> 'conditions') each
                    WHERE each ->> 'type' = 'RunnerOutdated' AND each ->> 'status' = 'True' LIMIT 1) AS warning
            FROM pools p
            WHERE p.deleted_at IS NULL AND (CAST(:ids AS bigint[]) IS NULL OR p.id = ANY(CAST(:ids AS bigint[])))
            ORDER BY p.namespace, p.name
        """),
        {"ids": None if ids is None else list(ids)},
    ).all()
    listed = {each.pool_id: each for each in runner_versions.read(db)}
    found = []
    for row in rows:
        seen, status = listed.get(row.id), row.status
        found.append(
            PoolVersions(
                id=row.id,
                namespace=row.namespace,
                name=row.name,
                paused=row.paused,
                image=row.image,
                runner=version_of(row.image) if seen is None else seen.version,
                ends_at=None if seen is None else seen.ends_at,
                warning=row.warning,
                old_pods=None if status is None else status.get("stale", 0),
                with_job=None if status is None else sum(status.get(each, 0) for each in _WITH_JOB),
                replaced=None if status is None else sum(status.get(each, 0) for each in _REPLACED),
            )
        )
    return found
