"""Draining of a pool whose deletion was requested: when it may be deleted, and its status until then.

Nothing here ends a job: a draining pool waits for its busy Pods without a limit. `drainTimeout` only sets the time
after which the condition is reported as overdue.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class DrainSeen:
    """Remains of a pool: its Pods by a complete list first, its rows second.

    `alive`: listed Pods that are not terminal. `unrecorded`: listed terminal Pods whose exit is in no row. `open_rows`:
    rows of Pods that are neither known to be gone nor over, including Pods that are about to be created.
    """

    alive: int
    unrecorded: int
    open_rows: int


@dataclass(frozen=True, slots=True)
class DrainVerdict:
    """Whether the pool may be deleted, and what it waits for."""

    go: bool
    waits_for: tuple[str, ...]


def judge_drain(seen: DrainSeen) -> DrainVerdict:
    """Return whether the pool may be deleted: cluster and rows must agree that nothing of it is alive (L8)."""
    found = (
        (seen.alive, "Pods that are not terminal"),
        (seen.unrecorded, "Pods whose exit is not recorded"),
        (seen.open_rows, "rows of Pods that might be alive"),
    )
    waits_for = tuple(f"{count} {what}" for count, what in found if count)
    return DrainVerdict(go=not waits_for, waits_for=waits_for)


@dataclass(frozen=True, slots=True)
class Drain:
    """A draining pool. `timeout` is in seconds; `oldest_job` is the job that has been running longest, if any."""

    since: datetime
    timeout: float | None
    busy: int
    left: int
    oldest_job: int | None
    oldest_since: datetime | None


@dataclass(frozen=True, slots=True)
class DrainReport:
    """Content of the condition Draining: a reason and a message."""

    overdue: bool
    reason: str
    message: str


def report(drain: Drain, *, now: datetime) -> DrainReport:
    """Return the report on a draining pool. Only its Pods change the text, not the passing of time."""
    late = drain.timeout is not None and now > drain.since + timedelta(seconds=drain.timeout)
    overdue = late and drain.left > 0
    parts = [f"Draining since {_time(drain.since)}: {drain.busy} of {drain.left} remaining Pods are busy"]
    if drain.oldest_job is not None and drain.oldest_since is not None:
        parts.append(f"job {drain.oldest_job} has been running since {_time(drain.oldest_since)}")
    if overdue:
        parts.append("drainTimeout has passed, but no job is stopped")
    reason = "Overdue" if overdue else "PodsLeft" if drain.left else "Drained"
    return DrainReport(overdue=overdue, reason=reason, message="; ".join(parts))


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
