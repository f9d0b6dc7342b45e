"""Timeline of a job or a Pod: transitions of the job and its claims, and what happened to the Pods, oldest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of a timeline.

    - `what`: the subject, for example `job`, `claim 9` or `pod small-1`.
    - `transition`: the name of the transition (`rules.claims.machines`), or None.
    - `from_state`, `to_state`: its state before and after. The first state of a subject has no state before it.
    - `who`: the process that committed the transition, or None.
    - `why`: the reason, or None.
    - `after_ms`: milliseconds since the previous state, or None.
    """

    at: datetime
    what: str
    from_state: str | None
    to_state: str
    who: str | None = None
    why: str | None = None
    after_ms: int | None = None
    transition: str | None = None

    @classmethod
    def of_event(cls, what: str, event: Row[Any]) -> Moment:
        """Return the entry of a row of `job_events` or `claim_events`."""
        return cls(
            event.at, what, event.from_state, event.to_state, event.who, event.why, event.latency_ms, event.transition
        )


def in_order(moments: Iterable[Moment]) -> Sequence[Moment]:
    """Return the entries in the order of their times."""
    return sorted(moments, key=lambda each: each.at)
