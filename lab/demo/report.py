"""Report at the end of the demo: the verdict on the run, and figures about it."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine, text

from lab.system import System, read_log
from lab.verdict import Verdict

RETRY = "retry of a task"

REPRESENTATIVE = 200
"""A run of at least this number of jobs without a remap is reported as not representative."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures beside the verdict. Times are in seconds. `unusual` counts the warnings and errors in logs by event."""

    p50: float | None
    p99: float | None
    remaps: int
    retries: int
    resumed: int
    real_pods: int
    pods: int
    unusual: Counter[str]
    restarts: Counter[str]


def figures_of(engine: Engine, system: System, *, restarts: Counter[str]) -> Figures:
    """Return the figures of a run whose processes are still running."""
    times = _times_to_jit(system)
    with engine.connect() as db:
        resumed = db.execute(text("SELECT count(*) FROM claims WHERE chain_no > 1 AND purpose = 'job'")).scalar_one()
    received = [event for event in read_log(system.kubelet_log) if event["event"] == "jit_received"]
    events, unusual = read_logs(system.folder)
    return Figures(
        p50=_quantile(times, 0.5),
        p99=_quantile(times, 0.99),
        remaps=events["job.runs_on_other_runner"],
        retries=events[RETRY],
        resumed=resumed,
        real_pods=sum(1 for event in received if not event["simulated"]),
        pods=len(received),
        unusual=unusual,
        restarts=restarts,
    )


def read_logs(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Count the events in the logs of a run's processes: first all of them, then only warnings and worse."""
    events: Counter[str] = Counter()
    unusual: Counter[str] = Counter()
    for path in folder.glob("*.log"):
        for line in _structured(path):
            events[_kind(line)] += 1
            if line.get("level") in {"warning", "error", "critical"}:
                unusual[_kind(line)] += 1
    return events, unusual


def _structured(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the structured lines of a log. Lines of other programs are skipped."""
    with path.open(errors="replace") as lines:
        for line in lines:
            if line.startswith("{"):
                with contextlib.suppress(ValueError):  # an incomplete last line of a killed process
                    yield json.loads(line)


def _kind(line: Mapping[str, Any]) -> str:
    """Return the kind of a log line's event.

    It is the name of an event of Ostler, or the logger and the beginning of the text of a library's event.
    """
    event = str(line.get("event", ""))
    if event == "task.retried":
        return RETRY
    return event if "logger" not in line else f"{line['logger']}: {event[:60]}"


def _times_to_jit(system: System) -> list[float]:
    """Return, in ascending order, the seconds from GitHub's `queued` to the first delivery for each job.

    If GitHub gives the job to another runner meanwhile, the delivery to the first Pod still counts.
    """
    queued = {
        event["job"]: datetime.fromtimestamp(event["at"], UTC)
        for event in read_log(system.github_log)
        if event["event"] == "job_queued"
    }
    delivered: dict[int, datetime] = {}
    for path in system.folder.glob("web-*.log"):
        for line in _structured(path):
            if line.get("event") == "claim.delivered" and line["job"] in queued:
                at = datetime.fromisoformat(line["timestamp"])
                delivered[line["job"]] = min(at, delivered.get(line["job"], at))
    return sorted((at - queued[job]).total_seconds() for job, at in delivered.items())


def _quantile(values: list[float], share: float) -> float | None:
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def report(console: Console, verdict: Verdict, figures: Figures, *, jobs: int, interrupted: bool) -> int:
    """Print the report of a run and return the exit status: 0 only if every job completed exactly once."""
    table = Table(title="verdict, from the logs of GitHub and the kubelet", show_header=False, min_width=60)
    table.add_row("jobs queued / completed", f"{verdict.jobs} / {verdict.completed}")
    table.add_row("conclusions", "  ".join(f"{name} {count}" for name, count in sorted(verdict.conclusions.items())))
    table.add_row("executions", str(verdict.executions))
    table.add_row("Pods that got a JIT", f"{figures.pods}, {figures.real_pods} of them ran the real scripts")
    table.add_row("jobs that ran on another's runner", str(figures.remaps))
    table.add_row("steps that were retried", str(figures.retries))
    table.add_row("claims that a sweep resumed", str(figures.resumed))
    table.add_row("webhooks lost", str(verdict.webhooks_lost))
    table.add_row("runners still registered", str(len(verdict.leftover_runners)))
    if figures.p50 is not None and figures.p99 is not None:
        table.add_row("queued → JIT delivered", f"p50 {figures.p50 * 1000:.0f} ms   p99 {figures.p99 * 1000:.0f} ms")
    console.print()
    console.print(table)
    if jobs < REPRESENTATIVE and figures.p50 is not None:
        console.print(
            "[dim]The jobs were queued at once, at processes that had just started, so they waited for each other. "
            "docs/performance.md has the time of a job that arrives at a running system.[/dim]",
            highlight=False,
        )
    for name, count in figures.restarts.most_common():
        console.print(f"[yellow]unusual:[/yellow] {name} ended and was started again, {count} times", highlight=False)
    for event, count in figures.unusual.most_common():
        console.print(f"[yellow]unusual:[/yellow] {count} of {escape(event)}", highlight=False)
    for problem in verdict.problems:
        console.print(f"[red]✗[/red] {escape(problem)}", highlight=False)
    if jobs >= REPRESENTATIVE and figures.remaps == 0:
        console.print("[yellow]not representative:[/yellow] GitHub never gave a job to another runner in this run")
    if interrupted:
        console.print("[yellow]interrupted[/yellow] before every job was over")
    good = verdict.ok and verdict.completed == verdict.jobs >= jobs and not interrupted
    if good:
        console.print("[green]✓ every job completed exactly once[/green]")
    else:
        console.print("[red]✗ not every job completed exactly once[/red]")
    return 0 if good else 1
