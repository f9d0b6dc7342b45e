"""Draining of a pool whose deletion was requested: the condition for its end, and the drain's status until then.

A drain ends no job: a draining pool waits for its busy Pods without a limit. After `drainTimeout`, the pool's condition
reports the drain as overdue, and nothing else happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class DrainSeen:
    """Remaining Pods of a pool. The caller must read the complete list of Pods first, and the rows second.

    `alive` counts listed Pods that are not terminal. `unrecorded` counts listed terminal Pods whose exit is in no row.
    `open_rows` counts the rows of Pods that are not known to be gone or over. Rows of Pods that are still to be created
    count too, as do given-up rows whose Pod might still be created.
    """

    alive: int
    unrecorded: int
    open_rows: int


@dataclass(frozen=True, slots=True)
class DrainVerdict:
    """Verdict on whether the pool may be deleted. `waits_for` describes the Pods that prevent the deletion."""

    go: bool
    waits_for: tuple[str, ...]


def judge_drain(seen: DrainSeen) -> DrainVerdict:
    """Return whether the pool may be deleted.

    The cluster and the rows must agree that no Pod of the pool is alive (law L8).
    """
    found = (
        (seen.alive, "Pods that are not terminal"),
        (seen.unrecorded, "Pods whose exit is not recorded"),
        (seen.open_rows, "rows of Pods that might be alive"),
    )
    waits_for = tuple(f"{count} {what}" for count, what in found if count)
    return DrainVerdict(go=not waits_for, waits_for=waits_for)


@dataclass(frozen=True, slots=True)
class Drain:
    """A draining pool. `timeout` is in seconds, or None if there is no limit.

    `busy` is the number of busy Pods, and `left` the number of all remaining Pods. `oldest_job` is the job that has
    been running longest, or None. `oldest_since` is the start of this job. `volumes` is the number of volumes that must
    be deleted before the pool's object can be deleted, or None if the volumes could not be listed.
    """

    since: datetime
    timeout: float | None
    busy: int
    left: int
    oldest_job: int | None
    oldest_since: datetime | None
    volumes: int | None = 0


@dataclass(frozen=True, slots=True)
class DrainReport:
    """Content of the condition Draining: a reason and a message."""

    overdue: bool
    reason: str
    message: str


def report(drain: Drain, *, now: datetime) -> DrainReport:
    """Return the report on a draining pool.

    The text changes only when the number of remaining Pods, busy Pods or volumes changes, when the oldest job changes,
    or when the drain becomes overdue.
    """
    late = drain.timeout is not None and now > drain.since + timedelta(seconds=drain.timeout)
    overdue = late and (drain.left > 0 or drain.volumes != 0)
    parts = [f"Draining since {_time(drain.since)}: {drain.busy} of {drain.left} remaining Pods are busy"]
    if drain.oldest_job is not None and drain.oldest_since is not None:
        parts.append(f"job {drain.oldest_job} has been running since {_time(drain.oldest_since)}")
    if drain.volumes is None:
        parts.append("the volumes of the pool could not be listed")
    elif drain.volumes:
        claims = "1 PersistentVolumeClaim" if drain.volumes == 1 else f"{drain.volumes} PersistentVolumeClaims"
        parts.append(f"not yet deleted: {claims} of the pool")
    if overdue:
        parts.append("drainTimeout has passed, but no job is stopped")
    reason = "Overdue" if overdue else "PodsLeft" if drain.left else "VolumesLeft" if drain.volumes != 0 else "Drained"
    return DrainReport(overdue=overdue, reason=reason, message="; ".join(parts))


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
