"""Screen of the running demo: the screen of `ostler top`, and the latest jobs with their time to a JIT.

The screen shows Ostler's rows. The verdict at the end does not use these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine, Row, text
from sqlalchemy.exc import SQLAlchemyError

from cli import screen
from cli.screen import Fleet
from ostler.clock import utcnow
from rules.pools.pod_states import PodState

LATEST = 10

SWAPPED = "swapped"
LEGEND = f"to JIT: from `queued` to the credential; {SWAPPED}: on another job's runner"

STYLES = {"queued": "yellow", "waiting": "yellow", "claimed": "cyan", "running": "blue", "completed": "green"}

_LATEST = text("""
    SELECT j.id, j.repository, j.workflow_name, j.name, j.state, j.conclusion, j.hold_reason, p.name AS pool,
           claim.pod, extract(epoch FROM claim.delivered_at - seen.at) AS to_jit
    FROM (SELECT * FROM jobs ORDER BY id DESC LIMIT :latest) j
    LEFT JOIN pools p ON p.id = j.pool_id
    LEFT JOIN LATERAL (
        SELECT r.name AS pod, c.delivered_at FROM claims c JOIN runner_pods r ON r.id = c.runner_pod_id
        WHERE c.job_id = j.id ORDER BY c.id DESC LIMIT 1
    ) claim ON true
    LEFT JOIN LATERAL (SELECT at FROM job_events WHERE job_id = j.id ORDER BY id LIMIT 1) seen ON true
    ORDER BY j.id DESC
""")


class View:
    """The live screen. If Postgres does not answer, the screen says so and the demo continues."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def render(self, *, header: str, size: ConsoleDimensions) -> RenderableType:
        """Return the screen for this moment. The latest jobs get the lines that remain on a screen of this size."""
        try:
            fleet, latest = self._read()
        except SQLAlchemyError as error:
            return Group(Text(header, "bold"), Text(screen.no_answer(error), "red"))
        parts = [*screen.render(fleet, width=size.width, height=size.height, hint=header)]
        left = size.height - screen.height_of(parts) - 4  # an empty line, the legend, one title, and the cursor
        if left > 0:
            parts += [Text(), screen.one_line(LEGEND, "dim"), _latest(latest[:left], size.width)]
        return Group(*parts)

    def line(self) -> str:
        """Return the same information in one line, for a log."""
        try:
            fleet, _ = self._read()
        except SQLAlchemyError as error:
            return screen.no_answer(error)
        total = {name: sum(getattr(row, name) for row in fleet.accounts) for name in ("queued", "held", "running")}
        warm = sum((row.pods or {}).get(PodState.WARM, 0) for row in fleet.pools)
        return "   ".join([*(f"{name} {count}" for name, count in total.items()), f"warm Pods {warm}"])

    def _read(self) -> tuple[Fleet, Sequence[Row[Any]]]:
        with self._engine.connect() as db:
            return screen.read(db, now=utcnow()), db.execute(_LATEST, {"latest": LATEST}).all()


def milliseconds(seconds: float | None) -> str:
    """Return a time in readable form, or `-` for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _latest(rows: Sequence[Row[Any]], width: int) -> Table:
    table = screen.fixed_table(
        ("repository", 15, "left"),
        ("job", 26, "left"),
        ("Pod", 14, "left"),
        ("to JIT", 7, "right"),
        ("state", max(screen.NARROWEST, min(width, screen.WIDEST)) - 66, "left"),  # 66 are in front of it
    )
    for row in rows:
        why = f" ({row.hold_reason})" if row.hold_reason else ""
        screen.add_row(
            table,
            row.repository,
            f"{row.workflow_name} / {row.name}",
            row.pod,
            SWAPPED if row.to_jit is not None and row.to_jit < 0 else milliseconds(row.to_jit),
            Text((row.conclusion or row.state) + why, STYLES[row.state]),
        )
    return table
