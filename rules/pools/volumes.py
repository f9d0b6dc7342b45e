"""Volumes of the runners of a pool: which are in use, which the next runner gets, and which are deleted.

A volume belongs to a runner by name. If a new runner has the name of a runner that has ended, it gets the volumes of
that runner, with their contents. No object of Kubernetes is changed for this, and two Pods never have one volume at the
same time, because two Pods never have the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Reclaim(StrEnum):
    """Value of `spec.volumes.reclaim`: what becomes of the volumes of a runner that has ended."""

    RETAIN = "Retain"
    DELETE = "Delete"


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeSeen:
    """One PersistentVolumeClaim of a pool.

    - `runner`: the name of the StatefulSet that it was created for.
    - `shape`: digest of the `spec.volumes` that it was created from.
    - `pool_uid`: the UID of the pool that it was created for.
    - `age_seconds`: time since its creation.
    - `lost`: its PersistentVolume does not exist any more.
    - `pending`: it has no PersistentVolume yet.
    - `terminating`: its deletion was requested.
    """

    name: str
    uid: str
    runner: str
    shape: str
    pool_uid: str = ""
    age_seconds: float = 0.0
    lost: bool = False
    pending: bool = False
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """The volumes of a pool, and what to do with them.

    - `reusable`: the names of ended runners whose volumes the next runners get, best first.
    - `delete`: the volumes to delete.
    - `in_use`, `free`, `lost`: numbers of volumes. A lost volume is in no other number. Volumes that are being deleted
      are in no number.
    - `unbound`: number of volumes in use that have had no PersistentVolume for `UNBOUND_AFTER` or longer.
    """

    reusable: tuple[str, ...] = ()
    delete: tuple[VolumeSeen, ...] = ()
    in_use: int = 0
    free: int = 0
    lost: int = 0
    unbound: int = 0

    @property
    def count(self) -> int:
        """Return the number of all volumes that are not being deleted."""
        return self.in_use + self.free + self.lost


NO_VOLUMES = VolumePlan()


UNBOUND_AFTER = 300.0
"""Minimum age in seconds of a volume without a PersistentVolume, before this counts as a problem of the pool.

The volume of a new runner has none until the scheduler has chosen a node, and then until the storage has made it.
"""

UNKNOWN_AFTER = 600.0
"""Minimum age in seconds of a volume whose runner Postgres does not know, before the runner counts as ended.

The row of a runner is older than its volumes. After a restore of Postgres, the row might be missing.
"""


def plan_volumes(
    volumes: Sequence[VolumeSeen], *, used_by: Mapping[str, int | None], shape: str, reclaim: Reclaim
) -> VolumePlan:
    """Return the plan for the volumes of a pool.

    `used_by` has each runner of `volumes` that Postgres knows. The value is None if the runner exists or might exist.
    Otherwise it is the id of the runner's newest row. The rows must be read after the volumes were listed (law L8).

    Volumes that were not used for the longest time come first. A volume that no Pod can use, for example because its
    zone is full, therefore does not stop the pool as long as the pool has other volumes.

    A volume of another `shape` is never used again, and is only deleted if `reclaim` says so.
    """
    ended = {each.runner for each in volumes if _has_ended(each, used_by)}
    remaining = [each for each in volumes if not each.terminating]
    free = [each for each in remaining if each.runner in ended]
    unfit = {each.runner for each in volumes if not _is_reusable(each, shape)}
    reusable = sorted({each.runner for each in free} - unfit, key=lambda runner: (used_by.get(runner) or 0, runner))
    usable = [each for each in remaining if not each.lost]
    in_use = [each for each in usable if each.runner not in ended]
    return VolumePlan(
        reusable=tuple(reusable) if reclaim is Reclaim.RETAIN else (),
        delete=tuple(free) if reclaim is Reclaim.DELETE else (),
        in_use=len(in_use),
        free=len(usable) - len(in_use),
        lost=len(remaining) - len(usable),
        unbound=sum(each.runner not in ended and _is_unbound(each) for each in remaining),
    )


def _is_reusable(volume: VolumeSeen, shape: str) -> bool:
    return not (volume.lost or volume.terminating) and volume.shape == shape


def _is_unbound(volume: VolumeSeen) -> bool:
    return volume.pending and volume.age_seconds >= UNBOUND_AFTER


def _has_ended(volume: VolumeSeen, used_by: Mapping[str, int | None]) -> bool:
    if volume.runner not in used_by:
        return volume.age_seconds >= UNKNOWN_AFTER
    return used_by[volume.runner] is not None
