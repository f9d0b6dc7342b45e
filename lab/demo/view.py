"""Screen of the running demo: jobs by account, Pods by pool, and the latest jobs with their time to a JIT.

The screen shows Ostler's rows. The verdict at the end does not use these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine, Row, text
from sqlalchemy.exc import SQLAlchemyError

from ostler.clock import utcnow

LATEST = 10

NARROWEST, WIDEST = 80, 110
"""Smallest and largest width of the screen in columns."""

_BEFORE_STATE = 15 + 26 + 14 + 7 + 4 * 2
"""Columns in front of the last column of the latest jobs, gaps included."""

SWAPPED = "swapped"
LEGEND = (
    "to JIT: from `queued` to the runner's credential in a Pod, waiting for a free\n"
    f"Pod included; p50, p99: of the last minute; {SWAPPED}: on another job's runner"
)

STYLES = {"queued": "yellow", "waiting": "yellow", "claimed": "cyan", "running": "blue", "completed": "green"}

_ACCOUNTS = text("""
    SELECT a.login, a.budget_count AS budget, live.claims, jobs.queued, jobs.claimed, jobs.running, jobs.done,
           times.p50, times.p99
    FROM accounts a
    CROSS JOIN LATERAL (
        SELECT count(*) AS claims FROM claims WHERE account_id = a.id AND ended_at IS NULL
    ) live
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE state IN ('queued', 'waiting')) AS queued,
               count(*) FILTER (WHERE state = 'claimed') AS claimed,
               count(*) FILTER (WHERE state = 'running') AS running,
               count(*) FILTER (WHERE state = 'completed') AS done
        FROM jobs WHERE account_id = a.id
    ) jobs
    CROSS JOIN LATERAL (
        SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS p50,
               percentile_cont(0.99) WITHIN GROUP (ORDER BY seconds) AS p99
        FROM (
            SELECT extract(epoch FROM c.delivered_at - seen.at) AS seconds
            FROM claims c
            CROSS JOIN LATERAL (SELECT at FROM job_events WHERE job_id = c.job_id ORDER BY id LIMIT 1) seen
            WHERE c.account_id = a.id AND c.delivered_at > :now - interval '1 minute' AND c.delivered_at > seen.at
        ) recent
    ) times
    ORDER BY a.id
""")

_POOLS = text("""
    SELECT p.name, p.replicas,
           count(*) FILTER (WHERE c.id IS NULL AND o.pod_uid IS NOT NULL) AS warm,
           count(*) FILTER (WHERE c.purpose = 'job' AND c.delivered_at IS NULL) AS reserved,
           count(*) FILTER (WHERE c.purpose = 'job' AND c.delivered_at IS NOT NULL) AS busy,
           count(*) FILTER (WHERE r.id IS NOT NULL AND c.id IS NULL AND r.first_polled_at IS NULL) AS starting
    FROM pools p
    LEFT JOIN runner_pods r ON r.pool_id = p.id AND r.gone_at IS NULL AND r.terminal_at IS NULL
    LEFT JOIN offers o ON o.pod_uid = r.uid AND o.until > :now
    LEFT JOIN claims c ON c.runner_pod_id = r.id AND c.ended_at IS NULL
    WHERE p.deleted_at IS NULL GROUP BY p.id ORDER BY p.name
""")

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
        title = Text(header, style="bold")
        try:
            accounts, pools, latest = self._read(utcnow())
        except SQLAlchemyError as error:
            return Group(title, Text(_no_answer(error), "red"))
        width = max(NARROWEST, min(size.width, WIDEST))
        parts: list[RenderableType] = [
            title,
            _accounts(accounts),
            Text(LEGEND, style="dim"),
            Text(),
            _pools(pools),
            Text(),
        ]
        taken = len(accounts) + len(pools) + len(parts) + 1 + 2  # the legend's second line, one table head, the cursor
        left = min(LATEST, size.height - taken)
        if left > 0:
            parts.append(_latest(latest[:left], width))
        return Group(*parts)

    def line(self) -> str:
        """Return the same information in one line, for a log."""
        try:
            accounts, pools, _ = self._read(utcnow())
        except SQLAlchemyError as error:
            return _no_answer(error)
        total = {name: sum(getattr(row, name) for row in accounts) for name in ("queued", "claimed", "running", "done")}
        warm = sum(row.warm for row in pools)
        return "   ".join([*(f"{name} {count}" for name, count in total.items()), f"warm Pods {warm}"])

    def _read(self, now: datetime) -> tuple[Sequence[Row[Any]], ...]:
        with self._engine.connect() as db:
            return (
                db.execute(_ACCOUNTS, {"now": now}).all(),
                db.execute(_POOLS, {"now": now}).all(),
                db.execute(_LATEST, {"latest": LATEST}).all(),
            )


def _no_answer(error: SQLAlchemyError) -> str:
    cause = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return f"Postgres does not answer: {cause}"


def milliseconds(seconds: float | None) -> str:
    """Return a time in readable form, or `-` for None."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _table(*columns: tuple[str, int, Literal["left", "right"]]) -> Table:
    """Return an empty table whose columns have fixed widths, so that the screen does not shift when values change."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, cells, justify in columns:
        table.add_column(name, width=cells, justify=justify, no_wrap=True)
    return table


def _accounts(rows: Sequence[Row[Any]]) -> Table:
    table = _table(
        ("account", 14, "left"),
        ("claims", 8, "right"),
        ("queued", 6, "right"),
        ("claimed", 7, "right"),
        ("running", 7, "right"),
        ("done", 6, "right"),
        ("to JIT p50", 10, "right"),
        ("p99", 6, "right"),
    )
    for row in rows:
        table.add_row(
            row.login,
            f"{row.claims} of {row.budget}",
            str(row.queued),
            str(row.claimed),
            str(row.running),
            str(row.done),
            milliseconds(row.p50),
            milliseconds(row.p99),
        )
    return table


def _pools(rows: Sequence[Row[Any]]) -> Table:
    table = _table(
        ("pool", 14, "left"),
        ("Pods", 8, "right"),
        ("starting", 8, "right"),
        ("warm", 6, "right"),
        ("reserved", 8, "right"),
        ("busy", 6, "right"),
    )
    for row in rows:
        table.add_row(row.name, str(row.replicas), str(row.starting), str(row.warm), str(row.reserved), str(row.busy))
    return table


def _latest(rows: Sequence[Row[Any]], width: int) -> Table:
    table = _table(
        ("repository", 15, "left"),
        ("job", 26, "left"),
        ("Pod", 14, "left"),
        ("to JIT", 7, "right"),
        ("state", width - _BEFORE_STATE, "left"),
    )
    for row in rows:
        state = row.conclusion or row.state
        why = f" ({row.hold_reason})" if row.hold_reason else ""
        table.add_row(
            row.repository,
            f"{row.workflow_name} / {row.name}",
            row.pod or "",
            SWAPPED if row.to_jit is not None and row.to_jit < 0 else milliseconds(row.to_jit),
            Text(state + why, STYLES[row.state]),
        )
    return table
