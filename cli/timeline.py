"""Timelines of jobs and Pods: their events, oldest first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cli.tables import Column, Kind, print_table

if TYPE_CHECKING:
    from sqlalchemy import Row

Moment = tuple[datetime, str, str | None, str | None, str | None, str | None, int | None]
"""Time, subject, old state, new state, author, reason, and milliseconds since the previous state."""


def moment(what: str, event: Row[Any]) -> Moment:
    """Return the timeline entry of an event. `what` names the subject of the event."""
    return event.at, what, event.from_state, event.to_state, event.who, event.why, event.latency_ms


def print_timeline(moments: Iterable[Moment], *, empty: str, wide: bool = False) -> None:
    """Print a timeline, oldest entry first, or the text `empty` if it has no entries."""
    print_table(
        (
            "when",
            "what",
            Column("from", drop=3),
            "to",
            Column("by", drop=2),
            Column("why", Kind.TEXT),
            Column("after ms", drop=1),
        ),
        ((f"{at:%Y-%m-%d %H:%M:%S}", *rest) for at, *rest in sorted(moments, key=lambda each: each[0])),
        empty=empty,
        wide=wide,
    )
