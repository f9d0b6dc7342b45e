"""When a pool whose deletion was asked for may go, and what is said of it until then.

Nothing here ends a job: a pool that drains waits for its busy Pods for as long as they take. `drainTimeout` only says
from when on that is worth a check.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class DrainSeen:
    """What is left of a pool: its Pods by a complete list first, its rows second.

    `alive`: listed Pods that are not terminal. `unrecorded`: listed terminal ones whose exit is in no row. `open_rows`:
    rows of Pods that are known to be neither gone nor over, Pods that are about to be created among them.
    """

    alive: int
    unrecorded: int
    open_rows: int


@dataclass(frozen=True, slots=True)
class DrainVerdict:
    """Whether the pool may go, and what it waits for."""

    go: bool
    waits_for: tuple[str, ...]


def judge_drain(seen: DrainSeen) -> DrainVerdict:
    """Return whether the pool may go: cluster and rows have to agree that nothing of it lives (L8)."""
    found = (
        (seen.alive, "Pods that are not terminal"),
        (seen.unrecorded, "Pods whose exit is not recorded"),
        (seen.open_rows, "rows of Pods that might be alive"),
    )
    waits_for = tuple(f"{count} {what}" for count, what in found if count)
    return DrainVerdict(go=not waits_for, waits_for=waits_for)


@dataclass(frozen=True, slots=True)
class Drain:
    """A pool that drains. `timeout` in seconds; `oldest_job` is the one that has been running for longest, if any."""

    since: datetime
    timeout: float | None
    busy: int
    left: int
    oldest_job: int | None
    oldest_since: datetime | None


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What the condition Draining says: a reason in one word, and a sentence."""

    overdue: bool
    reason: str
    message: str


def report(drain: Drain, *, now: datetime) -> DrainReport:
    """Return what is said of a pool that drains. Nothing in it changes from minute to minute but the Pods."""
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
