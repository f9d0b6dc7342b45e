"""Timelines of jobs and Pods: their events, oldest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cli.tables import Column, Kind, print_table


def print_timeline(moments: Iterable[dict[str, Any]], *, wide: bool = False) -> None:
    """Print a timeline. `moments` are the fields of `models.browse.timeline.Moment`."""
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
        (
            (f"{at:%Y-%m-%d %H:%M:%S}", *rest)
            for at, *rest in (
                [each[name] for name in ("at", "what", "from_state", "to_state", "who", "why", "after_ms")]
                for each in moments
            )
        ),
        empty="no events are recorded for it",
        wide=wide,
    )
