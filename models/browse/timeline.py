"""Timeline of a job or a Pod: transitions of the job and its claims, and what happened to the Pods, oldest first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text
from models.state.deliveries import WEBHOOK

REPAIR = "repair"
"""Subject of an entry that is a repair by a sweep. Its second state is what the sweep did."""

MOST_REPAIRS = 50


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of a timeline.

    - `what`: the subject, for example `job`, `claim 9`, `pod small-1` or `repair`.
    - `transition`: the name of the transition (`rules.claims.machines`), or None.
    - `from_state`, `to_state`: its state before and after. The first state of a subject has no state before it.
    - `who`: the process that committed the transition, or None.
    - `why`: the reason, or None.
    - `after_ms`: milliseconds since the previous state, or None.
    - `task_id`, `attempt`: the Celery task that made the transition, as in Flower, and the number of its execution.
      None if no task made it.
    - `delivery`: the GUID of the webhook that made the transition, as GitHub shows it, or None. If several webhooks of
      the job were committed at once, their GUIDs are separated by commas.
    """

    at: datetime
    what: str
    from_state: str | None
    to_state: str
    who: str | None = None
    why: str | None = None
    after_ms: int | None = None
    transition: str | None = None
    task_id: str | None = None
    attempt: int | None = None
    delivery: str | None = None

    @classmethod
    def of_event(cls, what: str, event: Row[Any]) -> Moment:
        """Return the entry of a row of `job_events` or `claim_events`."""
        return cls(
            event.at,
            what,
            event.from_state,
            event.to_state,
            event.who,
            event.why,
            event.latency_ms,
            event.transition,
            event.task_id,
            event.attempt,
        )


def repairs_of(db: Connection, job_id: int) -> Sequence[Moment]:
    """Return the repairs of a job by sweeps, without those of dry runs. The newest `MOST_REPAIRS` are returned."""
    rows = db.execute(
        text("""
            SELECT at, sweep, what, why FROM repairs WHERE job_id = :id AND NOT dry ORDER BY id DESC LIMIT :most
        """),
        {"id": job_id, "most": MOST_REPAIRS},
    )
    return [Moment(row.at, REPAIR, None, row.what, who=row.sweep, why=row.why) for row in rows]


def with_deliveries(db: Connection, moments: Sequence[Moment], *, job_ids: Collection[int]) -> Sequence[Moment]:
    """Return the entries of a timeline with the deliveries of the given jobs that made their transitions.

    A batch of webhooks gives the time of its transaction to its deliveries and to its transitions. The index of the
    deliveries is by this time.
    """
    times = {each.at for each in moments if each.who == WEBHOOK}
    if not times:
        return moments
    rows = db.execute(
        text("""
            SELECT received_at, string_agg(guid, ', ' ORDER BY guid) AS guids FROM deliveries
            WHERE received_at = ANY(:times) AND job_id = ANY(:jobs) GROUP BY received_at
        """),
        {"times": list(times), "jobs": list(job_ids)},
    )
    guids = {row.received_at: row.guids for row in rows}
    return [replace(each, delivery=guids.get(each.at)) if each.who == WEBHOOK else each for each in moments]


def in_order(moments: Iterable[Moment]) -> Sequence[Moment]:
    """Return the entries in the order of their times."""
    return sorted(moments, key=lambda each: each.at)
