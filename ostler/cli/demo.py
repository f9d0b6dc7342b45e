"""`ostler demo`: the whole system on this machine, real jobs through it, and an honest verdict.

The verdict is computed from the logs of the lab's GitHub and kubelet, never from Ostler's rows; only the times
and the numbers of remaps and repairs that are shown beside it come from Ostler.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from sqlalchemy import Engine, create_engine, text

from lab.control_plane import ControlPlaneUnavailable
from lab.control_plane_build import binaries
from lab.processes import StartError
from lab.system import ACCOUNTS, POOLS, LabAccount, Options, System, read_log
from lab.verdict import Verdict, judge
from ostler.errors import ConfigurationError

CLUSTERS = ("real",)
WAVE = 40
"""Jobs that are sent at once at most, so that queues form and drain."""

LONGEST = 900.0
"""Seconds after which a demo that does not end is a failure."""

STALLED = 90.0
"""Seconds without a job's end after which a demo is a failure too; its jobs take 2.5 at most."""

REPRESENTATIVE = 200
"""From so many jobs on a run without a single remap says nothing about remapping."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is shown beside the verdict; times in seconds."""

    p50: float | None
    p99: float | None
    remaps: int
    resumed: int
    real_pods: int
    pods: int


def run_demo(*, jobs: int | None, cluster: str, seed: int) -> int:
    """Run the demo and return its exit status: 0 only if every job completed exactly once."""
    if cluster not in CLUSTERS:
        raise ConfigurationError(f"--cluster: found {cluster!r}; there is {', '.join(CLUSTERS)}")
    console = Console()
    stop = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    folder = Path(tempfile.mkdtemp(prefix="ostler-demo-"))
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.1f} s[/dim]  {line}", highlight=False)

    keep = False
    try:
        binaries(say)
        with System(folder, Options(seed=seed), say=say) as system:
            system.wait_for_warm_pods(sum(pool.replicas for pool in POOLS) // 2, timeout=90)
            say("Pods are warm; sending jobs")
            status = _drive(system, console, jobs=jobs, seed=seed, stop=stop, say=say)
    except (ControlPlaneUnavailable, StartError) as error:
        console.print(f"[red]ostler demo:[/red] {error}", highlight=False)
        status = 1
    else:
        say("stopped; nothing is left running")
    keep = status != 0
    if keep:
        console.print(f"the logs of this run are in {folder}", highlight=False)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _drive(
    system: System, console: Console, *, jobs: int | None, seed: int, stop: threading.Event, say: Callable[[str], None]
) -> int:
    """Send jobs and show what happens until all are over, the time is up, or Ctrl-C."""
    say(f"web {system.web_url}   readiness {system.web_url}/readyz   the lab's GitHub {system.github_url}/_lab/stats")
    dice = random.Random(seed)  # noqa: S311  variety, not secrecy
    sent = 0
    end = time.monotonic() + LONGEST
    completed, moved_at = -1, time.monotonic()
    over = False
    with Live(console=console, refresh_per_second=2, transient=False) as live:
        last_line = 0.0
        while not stop.is_set():
            stats = system.lab("GET", "/stats")
            states = Counter(stats["jobs"])
            open_jobs = sum(count for state, count in states.items() if state != "completed")
            wanted = WAVE if jobs is None else min(WAVE, jobs - sent)
            if open_jobs < WAVE // 2 and wanted > 0:
                sent += _send(system, dice, wanted)
            live.update(_table(states, stats["runners"], sent))
            if not console.is_terminal and time.monotonic() - last_line > 5:  # noqa: PLR2004
                last_line = time.monotonic()
                say(f"sent {sent}   " + "   ".join(f"{state} {count}" for state, count in sorted(states.items())))
            if jobs is not None and sent >= jobs and open_jobs == 0 and wanted <= 0:
                over = True
                break
            if states["completed"] != completed:
                completed, moved_at = states["completed"], time.monotonic()
            if jobs is not None and time.monotonic() > min(end, moved_at + STALLED):
                say(f"giving up: {open_jobs} jobs are not over")
                break
            stop.wait(0.3)
    if jobs is None:
        return 0
    if over:
        _settle(system)
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
    return _report(console, verdict, _figures(system), jobs=jobs, interrupted=stop.is_set())


def _send(system: System, dice: random.Random, count: int) -> int:
    account: LabAccount = dice.choice(ACCOUNTS)
    pool = dice.choices(POOLS, weights=[pool.replicas for pool in POOLS])[0]
    repository = dice.choice(account.repositories)
    portion = min(count, dice.randint(3, 12))
    system.lab(
        "POST",
        "/jobs",
        {
            "repository": f"{account.login}/{repository}",
            "labels": list(pool.labels),
            "count": portion,
            "duration_seconds": round(dice.uniform(0.5, 2.5), 1),
            "name": dice.choice(("build", "test", "lint", "deploy")),
        },
    )
    return portion


def _settle(system: System) -> None:
    """Give the last webhooks and Pods a moment to end, so that the logs are whole."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        stats = system.lab("GET", "/stats")
        if stats["webhooks_in_flight"] == 0 and not stats["runners"].get("busy"):
            return
        time.sleep(0.2)


def _table(states: Counter[str], runners: dict[str, int], sent: int) -> Table:
    table = Table(title="jobs at GitHub", min_width=50)
    for name in ("sent", "queued", "running", "done", "runners online", "busy"):
        table.add_column(name, justify="right")
    table.add_row(
        str(sent),
        str(states["queued"] + states["waiting"]),
        str(states["in_progress"]),
        str(states["completed"]),
        str(runners.get("online", 0)),
        str(runners.get("busy", 0)),
    )
    return table


def _figures(system: System) -> Figures:
    engine = create_engine(system.postgres.url("ostler"))
    try:
        times = _times_to_jit(engine, system)
        with engine.connect() as db:
            resumed = db.execute(
                text("SELECT count(*) FROM claims WHERE chain_no > 1 AND purpose = 'job'")
            ).scalar_one()
    finally:
        engine.dispose()
    received = [event for event in read_log(system.kubelet_log) if event["event"] == "jit_received"]
    logs = [path.read_text(errors="replace") for path in system.folder.glob("web-*.log")]
    return Figures(
        p50=_quantile(times, 0.5),
        p99=_quantile(times, 0.99),
        remaps=sum(log.count('"event": "job.remapped"') for log in logs),
        resumed=resumed,
        real_pods=sum(1 for event in received if not event["simulated"]),
        pods=len(received),
    )


def _times_to_jit(engine: Engine, system: System) -> list[float]:
    """Return the seconds from GitHub's `queued` to the commit of the delivery, per claimed job."""
    queued = {
        event["job"]: datetime.fromtimestamp(event["at"], UTC)
        for event in read_log(system.github_log)
        if event["event"] == "job_queued"
    }
    with engine.connect() as db:
        rows = db.execute(text("SELECT job_id, delivered_at FROM claims WHERE delivered_at IS NOT NULL AND job_id > 0"))
        return sorted((row.delivered_at - queued[row.job_id]).total_seconds() for row in rows if row.job_id in queued)


def _quantile(values: list[float], share: float) -> float | None:
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def _report(console: Console, verdict: Verdict, figures: Figures, *, jobs: int, interrupted: bool) -> int:
    table = Table(title="verdict, from the logs of GitHub and the kubelet", show_header=False, min_width=60)
    table.add_row("jobs queued / completed", f"{verdict.jobs} / {verdict.completed}")
    table.add_row("conclusions", "  ".join(f"{name} {count}" for name, count in sorted(verdict.conclusions.items())))
    table.add_row("executions", str(verdict.executions))
    table.add_row("Pods that got a JIT", f"{figures.pods}, {figures.real_pods} of them ran the real scripts")
    table.add_row("jobs that ran on another's runner", str(figures.remaps))
    table.add_row("claims that a sweep resumed", str(figures.resumed))
    table.add_row("webhooks lost", str(verdict.webhooks_lost))
    table.add_row("runners still registered", str(len(verdict.leftover_runners)))
    if figures.p50 is not None and figures.p99 is not None:
        table.add_row("queued → JIT delivered", f"p50 {figures.p50 * 1000:.0f} ms   p99 {figures.p99 * 1000:.0f} ms")
    console.print()
    console.print(table)
    for problem in verdict.problems:
        console.print(f"[red]✗[/red] {problem}", highlight=False)
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
