"""Explanations of jobs, Pods, pools and accounts, and timelines of jobs and Pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cli.tables import Column, Kind, print_table, print_text


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
            Column("task or webhook", drop=4),
        ),
        (
            (f"{at:%Y-%m-%d %H:%M:%S}", *rest, cause)
            for (at, *rest), cause in (
                (
                    [each[name] for name in ("at", "what", "from_state", "to_state", "who", "why", "after_ms")],
                    each["delivery"] or _task(each),
                )
                for each in moments
            )
        ),
        empty="no events are recorded for it",
        wide=wide,
    )


def _task(moment: Mapping[str, Any]) -> str | None:
    again = moment["attempt"] is not None and moment["attempt"] > 1
    return f"{moment['task_id']} (attempt {moment['attempt']})" if again else moment["task_id"]


def print_checks(checks: Sequence[Mapping[str, Any]], *, wide: bool = False) -> None:
    """Print the checks of an explanation. A check of a job has a step, and any other check has a name."""
    print_table(
        ("check", "result", Column("evidence", Kind.TEXT), Column("source", drop=2), Column("at", drop=1)),
        (
            (
                each.get("check", each.get("step", "")).replace("_", " "),
                each["result"],
                each["evidence"],
                each["source"],
                None if each["at"] is None else f"{each['at']:%H:%M:%S}",
            )
            for each in checks
        ),
        empty="",
        wide=wide,
    )


def print_summary(why: Mapping[str, Any]) -> None:
    """Print the first problem of an explanation, and what helps."""
    print_text(why["summary"])
    if why["cure"] is not None:
        print_text(f"What helps: {why['cure']}")
