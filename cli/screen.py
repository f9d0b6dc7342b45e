"""Screen of the fleet, which `ostler top` and the demo show: what needs attention, pools, accounts, claims and repairs.

Every line fits the width of the terminal, and columns of numbers have fixed widths, so that the screen does not shift
when values change. Names come from GitHub and the cluster, so control characters are replaced before the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cli.output import age, duration
from cli.tables import plain, shorten, wrap
from rules.claims.machines import ClaimState, JobState, Purpose
from rules.pools.pod_states import PodState
from rules.sweeps.limits import Repaired

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.exc import SQLAlchemyError

    from models.browse.fleet import AccountLine, PoolLine
    from models.browse.jobs import JobStory
    from models.browse.repairs import RepairCount
    from models.browse.statistics import ClaimCount
    from models.browse.waits import Waits
    from ostler.timings import Timings

T = TypeVar("T")

NARROWEST, WIDEST = 80, 110
"""Smallest and largest width of the screen in columns."""

RECENT = timedelta(hours=1)
"""Period before now that the waits and repairs of the screen cover."""

MOST_NOTES = 4
"""Maximum number of notes below the pools if the height of the screen is limited."""

_OTHERS = (PodState.ENDING, PodState.RETIRING, PodState.UNRESPONSIVE, PodState.SPENT)
"""States of Pods that have no column of their own."""


class Sort(StrEnum):
    """Order of the pools and accounts. With `queue`, the longest wait is first. With `busy`, the most Pods are first.

    Rows that are equal stay in the order of their names.
    """

    NAME = "name"
    QUEUE = "queue age"
    BUSY = "busy Pods"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet at `now`.

    - `problems`: what stops work in the whole fleet, in sentences.
    - `waits`: the waits of the last hour, by login.
    - `claims`: the live claims, by purpose and state.
    - `repairs`: the repairs of the last hour, by sweep and outcome.
    """

    now: datetime
    problems: Sequence[str]
    pools: Sequence[PoolLine]
    accounts: Sequence[AccountLine]
    waits: Mapping[str, Waits]
    claims: Sequence[ClaimCount]
    repairs: Sequence[RepairCount]


def read(db: Connection, *, now: datetime) -> Fleet:
    """Return the fleet at this moment."""
    from models.browse.fleet import account_lines, pool_lines
    from models.browse.health import obstacles
    from models.browse.repairs import count_repairs
    from models.browse.statistics import live_claims
    from models.browse.waits import By, waits

    recent = waits(db, since=now - RECENT, until=now, by=By.ACCOUNT, now=now)
    return Fleet(
        now=now,
        problems=[str(each) for each in obstacles(db, now=now)],
        pools=pool_lines(db),
        accounts=account_lines(db),
        waits={each.name: each for each in recent if each.name is not None},
        claims=live_claims(db),
        repairs=count_repairs(db, since=now - RECENT),
    )


def no_answer(error: SQLAlchemyError) -> str:
    """Return one line about a Postgres that does not answer."""
    cause = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return plain(f"Postgres does not answer: {cause}")


def render(
    fleet: Fleet, *, width: int, height: int | None = None, sort: Sort = Sort.NAME, hint: str = ""
) -> Sequence[RenderableType]:
    """Return the parts of the screen. `hint` is shown at the end of the first line.

    If there is a `height`, pools, accounts and notes that do not fit are only counted. The screen needs at least 16
    lines.
    """
    width = max(NARROWEST, min(width, WIDEST))
    title = f"{fleet.now:%H:%M:%S} UTC   {hint}".rstrip()
    head = [Text(title, "bold", no_wrap=True, overflow="ellipsis")]
    head += [Text(line, "bold red") for problem in fleet.problems for line in wrap(plain(problem), width)]
    notes = _notes(fleet, most=None if height is None else MOST_NOTES)
    foot = [
        one_line(f"claims: {_claims(fleet.claims)}"),
        one_line(f"repairs in the last hour: {_repairs(fleet.repairs)}"),
    ]
    most_pools, most_accounts = len(fleet.pools), len(fleet.accounts)
    if height is not None:
        room = height - len(head) - len(notes) - len(foot) - 5  # two titles, two empty lines, and the cursor
        most_pools = min(most_pools, max(2, room // 2, room - most_accounts))
        most_accounts = min(most_accounts, max(2, room - most_pools))
    return (
        *head,
        *_pools(fleet, _sorted_pools(fleet.pools, sort), width=width, most=most_pools),
        *notes,
        Text(),
        *_accounts(fleet, _sorted_accounts(fleet.accounts, sort), width=width, most=most_accounts),
        Text(),
        *foot,
    )


def waiting_job(db: Connection, place: int, *, timings: Timings, now: datetime) -> JobStory | None:
    """Return the queued job at a place in the order of their arrival, with its explanation, or None. The first is 0."""
    from models.browse.jobs import JobFilter, job_story, list_jobs
    from models.browse.page import Order

    rows = list_jobs(db, JobFilter(state=JobState.QUEUED), order=Order.OLDEST, limit=place + 1).rows
    return job_story(db, rows[place].id, timings=timings, now=now) if place < len(rows) else None


def render_job(story: JobStory | None, *, width: int, now: datetime, hint: str) -> Sequence[RenderableType]:
    """Return the screen of a job: what it waits for, what helps, and the check of each step."""
    head = Text(f"{now:%H:%M:%S} UTC   {hint}", "bold", no_wrap=True, overflow="ellipsis")
    if story is None:
        return head, one_line("no further job is queued")
    job, why = story.job, story.why
    width = max(NARROWEST, min(width, WIDEST))
    table = fixed_table(("check", 12, "left"), ("result", 6, "left"), ("evidence", width - 20, "left"))
    for each in why.checks:
        add_row(table, each.step.replace("_", " "), each.result, each.evidence)
    told = [why.summary, *([] if why.cure is None else [f"What helps: {why.cure}"])]
    return (
        head,
        one_line(f"{job.repository} {job.name} (job {job.id}), {age(job.queued_at, now=now)} old, {job.account}"),
        *(Text(line, "bold") for words in told for line in wrap(plain(words), width)),
        Text(),
        table,
    )


def height_of(parts: Sequence[RenderableType]) -> int:
    """Return the number of lines of the parts of a screen."""
    return sum(part.row_count + 1 if isinstance(part, Table) else 1 for part in parts)


def one_line(text: str, style: str = "") -> Text:
    """Return a text as one line, which the screen cuts at its width."""
    return Text(plain(text), style, no_wrap=True, overflow="ellipsis")


def fixed_table(*columns: tuple[str, int, Literal["left", "right"]]) -> Table:
    """Return an empty table whose columns have fixed widths, in terminal cells, and one line for each row."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for title, cells, justify in columns:
        table.add_column(title, width=cells, justify=justify, no_wrap=True)
    return table


def add_row(table: Table, *cells: object) -> None:
    """Add a row. Texts on the left that are wider than their columns lose their middle."""
    texts = []
    for cell, column in zip(cells, table.columns, strict=True):
        text = cell if isinstance(cell, Text) else Text("-" if cell is None or cell == "" else plain(cell))
        if column.justify == "left":
            text.plain = shorten(text.plain, column.width or 0)
        texts.append(text)
    table.add_row(*texts)


def _table_of(name: str, numbers: Mapping[str, int], width: int) -> Table:
    """Return an empty table of a name, which gets the remaining width, and of numbers."""
    rest = width - sum(numbers.values()) - len(numbers)
    return fixed_table((name, rest, "left"), *((title, cells, "right") for title, cells in numbers.items()))


def _pools(fleet: Fleet, rows: Sequence[PoolLine], *, width: int, most: int) -> Sequence[RenderableType]:
    numbers = {"replicas": 8, "starting": 8, "warm": 4, "reserved": 8, "busy": 4, "other": 5, "queued": 6, "held": 5}
    table, shown = _table_of("pool", {**numbers, "oldest": 6}, width), _that_fit(rows, most)
    for row in shown:
        pods = row.pods or {}
        add_row(
            table,
            _name(row, fleet.pools),
            row.replicas,
            *(pods.get(each) for each in (PodState.STARTING, PodState.WARM, PodState.RESERVED, PodState.BUSY)),
            sum(pods[each] for each in _OTHERS) if pods else None,
            row.queued,
            row.held,
            age(row.oldest_dispatchable_at, now=fleet.now),
        )
    return [table, *_more(len(rows) - len(shown), "pools")] if rows else [one_line("no pools", "dim")]


def _accounts(fleet: Fleet, rows: Sequence[AccountLine], *, width: int, most: int) -> Sequence[RenderableType]:
    numbers = {"Pods": 11, "queued": 6, "held": 5, "running": 7, "oldest": 6, "wait p50": 8, "wait p95": 8}
    table, shown = _table_of("account", numbers, width), _that_fit(rows, most)
    for row in shown:
        waits = fleet.waits.get(row.login)
        add_row(
            table,
            row.login,
            f"{row.used_count}/{row.budget_count}",
            row.queued,
            row.held,
            row.running,
            age(row.oldest_queued_at, now=fleet.now),
            duration(waits.p50 if waits else None),
            duration(waits.p95 if waits else None),
        )
    empty = one_line("no account has jobs, claims or Pods", "dim")
    return [table, *_more(len(rows) - len(shown), "accounts")] if rows else [empty]


def _that_fit(rows: Sequence[T], most: int) -> Sequence[T]:
    """Return the rows, or the first of them so that they and the line about the others are `most` lines."""
    return rows if len(rows) <= most else rows[: most - 1]


def _more(number: int, what: str) -> Sequence[Text]:
    return [one_line(f"and {number} more {what}", "dim")] if number else []


def _name(row: PoolLine, rows: Sequence[PoolLine]) -> str:
    """Return the name of a pool, with its namespace if the name is not unique."""
    return row.name if sum(each.name == row.name for each in rows) == 1 else f"{row.namespace}/{row.name}"


def _sorted_pools(rows: Sequence[PoolLine], sort: Sort) -> Sequence[PoolLine]:
    match sort:
        case Sort.NAME:
            return sorted(rows, key=lambda row: (row.name, row.namespace))
        case Sort.QUEUE:
            return sorted(rows, key=lambda row: _begin(row.oldest_dispatchable_at))
        case Sort.BUSY:
            return sorted(rows, key=lambda row: -(row.pods or {}).get(PodState.BUSY, 0))


def _sorted_accounts(rows: Sequence[AccountLine], sort: Sort) -> Sequence[AccountLine]:
    match sort:
        case Sort.NAME:
            return rows
        case Sort.QUEUE:
            return sorted(rows, key=lambda row: _begin(row.oldest_queued_at))
        case Sort.BUSY:
            return sorted(rows, key=lambda row: -row.used_count)


def _begin(at: datetime | None) -> float:
    return float("inf") if at is None else at.timestamp()


def _notes(fleet: Fleet, *, most: int | None) -> Sequence[Text]:
    """Return lines about pools: first problems, then old numbers, then pools that get no jobs."""
    notes: list[tuple[int, str, str]] = []
    for row in fleet.pools:
        name = _name(row, fleet.pools)
        if row.problem:
            notes.append((0, f"{name}: {row.problem}", "red"))
        if row.counted_at is not None and row.is_old(now=fleet.now):
            notes.append((1, f"{name}: its Pods were counted {age(row.counted_at, now=fleet.now)} ago", "yellow"))
        if row.draining or row.paused:
            notes.append((2, f"{name}: {'draining' if row.draining else 'paused'}", "dim"))
    notes.sort(key=lambda note: note[0])
    lines = [one_line(text, style) for _, text, style in notes]
    shown = lines if most is None else _that_fit(lines, most)
    return [*shown, *_more(len(lines) - len(shown), "notes about pools")]


def _claims(rows: Sequence[ClaimCount]) -> str:
    counts = Counter[str]()
    for row in rows:
        counts[row.state if row.purpose == Purpose.JOB else row.purpose] += row.claims
    return ", ".join(f"{counts[each]} {each}" for each in (*ClaimState, *Purpose) if counts[each]) or "none"


def _repairs(rows: Sequence[RepairCount]) -> str:
    made, failed = Counter[str](), Counter[str]()
    for row in rows:
        if row.outcome != Repaired.MOVED_ON:  # nothing was done
            made[row.sweep] += row.repairs
        if row.outcome == Repaired.FAILED:
            failed[row.sweep] += row.repairs
    shown = (
        f"{sweep} {count}" + (f" ({failed[sweep]} failed)" if failed[sweep] else "") for sweep, count in made.items()
    )
    return ", ".join(shown) or "none"
