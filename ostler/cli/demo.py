"""`ostler demo`: the whole system on this machine, real jobs through it, and an honest verdict.

The verdict is computed from the logs of the lab's GitHub and kubelet, never from Ostler's rows; only the times
and the numbers of remaps and repairs that are shown beside it come from Ostler.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from sqlalchemy import Engine, create_engine, text

from lab.control_plane import ControlPlaneUnavailable
from lab.control_plane_build import binaries
from lab.processes import StartError
from lab.setup import ACCOUNTS, POOLS
from lab.system import CLUSTERS, Options, System, read_log
from lab.traffic import Traffic
from lab.verdict import Verdict, judge
from models import api_tokens
from models.engine import transaction
from ostler.cli.demo_view import View
from ostler.clock import utcnow
from ostler.errors import ConfigurationError
from rules.token_scopes import TokenScope

WAVE = 40
"""Jobs that are sent at once at most, so that queues form and drain."""

LONGEST = 900.0
"""Seconds after which a demo that does not end is a failure."""

STALLED = 90.0
"""Seconds without a job's end after which a demo is a failure too; its jobs take 2.5 at most."""

EVERY = 0.3
"""Seconds between two looks."""

QUIET_EVERY = 5.0
"""Seconds between two lines where there is no terminal."""

INTERRUPTED = 130
"""What a shell expects of a command that Ctrl-C ended."""

RETRY = "retry of a task"

REPRESENTATIVE = 200
"""From so many jobs on a run without a single remap says nothing about remapping."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is shown beside the verdict; times in seconds, `unusual` by the kind of each warning in a log."""

    p50: float | None
    p99: float | None
    remaps: int
    retries: int
    resumed: int
    real_pods: int
    pods: int
    unusual: Counter[str]


def run_demo(*, jobs: int | None, cluster: str, seed: int, logs: Path | None = None) -> int:
    """Run the demo and return its exit status: 0 only if every job completed exactly once.

    `logs` is a folder that keeps what the processes wrote; without it only a run that failed leaves one.
    """
    _check_cluster(cluster)
    console = Console()
    stop = threading.Event()

    starting = True

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal starting
        stop.set()
        if starting:
            starting = False  # a second Ctrl-C must not cut the stopping short
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    folder = _folder(logs)
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.1f} s[/dim]  {line}", highlight=False)

    try:
        if cluster == "real":
            binaries(say)
        with System(folder, Options(seed=seed), say=say, cluster=cluster) as system:
            system.wait_for_warm_pods(sum(pool.replicas for pool in POOLS) // 2, timeout=180)
            starting = False
            system.start_flower()
            say("Pods are warm; sending jobs")
            status = _drive(system, console, jobs=jobs, seed=seed, stop=stop, say=say)
    except (ControlPlaneUnavailable, StartError) as error:
        console.print(f"[red]ostler demo:[/red] {error}", highlight=False)
        status = 1
    except KeyboardInterrupt:
        say("stopped while it started; nothing is left running")
        status = INTERRUPTED
    else:
        say("stopped; nothing is left running")
    if status not in {0, INTERRUPTED} or logs is not None:
        console.print(f"the logs of this run are in {folder}", highlight=False)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _folder(logs: Path | None) -> Path:
    """Return the folder of this run; one that is named must be new or empty."""
    if logs is None:
        return Path(tempfile.mkdtemp(prefix="ostler-demo-"))
    if logs.exists() and any(logs.iterdir()):
        raise ConfigurationError(f"--logs: {logs} is not empty; name a new folder")
    return logs


def _check_cluster(name: str) -> None:
    """Raise `ConfigurationError` for a cluster that a demo cannot run on."""
    if name == "kubeconfig":
        raise ConfigurationError(
            "--cluster: the demo cannot use the cluster of your kubeconfig yet: its Pods could not reach this machine; "
            f"take one of {', '.join(CLUSTERS)}"
        )
    if name not in CLUSTERS:
        raise ConfigurationError(f"--cluster: found {name!r}; there are {', '.join(CLUSTERS)}")


def _drive(
    system: System, console: Console, *, jobs: int | None, seed: int, stop: threading.Event, say: Callable[[str], None]
) -> int:
    """Send jobs and show what happens until all are over, the time is up, or Ctrl-C."""
    engine = create_engine(system.postgres.url("ostler"))
    try:
        _show_where(system, engine, console)
        run = _Run(system, View(engine), jobs=jobs, seed=seed)
        with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="visible") as live:
            problem = run.play(live, console, stop=stop, say=say)
        if jobs is None:
            return 0
        if problem:
            say(problem)
        elif not stop.is_set():
            _settle(system)
        verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
        return _report(console, verdict, _figures(engine, system), jobs=jobs, interrupted=stop.is_set())
    finally:
        engine.dispose()


def _show_where(system: System, engine: Engine, console: Console) -> None:
    """Print what can be opened in a browser, and what lets in; all of it ends with the demo."""
    _, token = transaction(
        engine, lambda db: api_tokens.create(db, name="demo", scopes=list(TokenScope), expires_at=None, now=utcnow())
    )
    user, password = system.flower_login
    for what, url, note in (
        ("API", f"{system.web_url}/api/docs", f"token {token.reveal()}"),
        ("Flower", system.flower_url, f"user {user}, password {password}"),
        ("health", f"{system.web_url}/readyz", f"metrics at {system.web_url}/metrics"),
        ("GitHub", f"{system.github_url}/_lab/stats", "the lab's own"),
    ):
        console.print(f"         [bold]{what:7}[/bold] {url}   {note}", highlight=False, soft_wrap=True)


class _Run:
    """The jobs that are sent, and how far they are at GitHub."""

    def __init__(self, system: System, view: View, *, jobs: int | None, seed: int) -> None:
        self._system = system
        self._view = view
        self._jobs = jobs
        self._traffic = Traffic(ACCOUNTS, POOLS, seed=seed)
        self._sent = 0

    def play(self, live: Live, console: Console, *, stop: threading.Event, say: Callable[[str], None]) -> str | None:
        """Send and show until every job is over or Ctrl-C; return why it ended early, if it did."""
        began = moved_at = shown_at = time.monotonic()
        completed = -1
        while not stop.is_set():
            states = Counter(self._system.lab("GET", "/stats")["jobs"])
            open_jobs = sum(count for state, count in states.items() if state != "completed")
            self._send_more(open_jobs)
            now = time.monotonic()
            if console.is_terminal:
                live.update(self._view.render(header=self._header(now - began)), refresh=True)
            elif now - shown_at > QUIET_EVERY:
                shown_at = now
                say(f"sent {self._sent}   {self._view.line()}")
            if self._sent == self._jobs and open_jobs == 0 and states["completed"] >= self._jobs:
                return None
            if states["completed"] != completed:
                completed, moved_at = states["completed"], now
            if self._jobs is not None and now > min(began + LONGEST, moved_at + STALLED):
                return f"giving up: {open_jobs} jobs are not over"
            stop.wait(EVERY)
        return None

    def _send_more(self, open_jobs: int) -> None:
        left = WAVE if self._jobs is None else self._jobs - self._sent
        while open_jobs < WAVE // 2 and left > 0:
            run = self._traffic.run(most=left)
            self._system.lab("POST", "/jobs", run)
            self._sent += len(run)
            open_jobs += len(run)
            left -= len(run)

    def _header(self, seconds: float) -> str:
        of = "" if self._jobs is None else f" of {self._jobs}"
        end = "" if self._jobs is not None else "   Ctrl-C ends it"
        return f"{seconds:4.0f} s   sent {self._sent}{of} jobs{end}"


def _settle(system: System) -> None:
    """Give the last webhooks and Pods a moment to end, so that the logs are whole."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        stats = system.lab("GET", "/stats")
        if stats["webhooks_in_flight"] == 0 and not stats["runners"].get("busy"):
            return
        time.sleep(0.2)


def _figures(engine: Engine, system: System) -> Figures:
    times = _times_to_jit(system)
    with engine.connect() as db:
        resumed = db.execute(text("SELECT count(*) FROM claims WHERE chain_no > 1 AND purpose = 'job'")).scalar_one()
    received = [event for event in read_log(system.kubelet_log) if event["event"] == "jit_received"]
    events, unusual = read_logs(system.folder)
    return Figures(
        p50=_quantile(times, 0.5),
        p99=_quantile(times, 0.99),
        remaps=events["job.remapped"],
        retries=events[RETRY],
        resumed=resumed,
        real_pods=sum(1 for event in received if not event["simulated"]),
        pods=len(received),
        unusual=unusual,
    )


def read_logs(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Count the events in the logs of a run's processes: all of them, and those of warnings and worse."""
    events: Counter[str] = Counter()
    unusual: Counter[str] = Counter()
    for path in folder.glob("*.log"):
        for line in _structured(path):
            events[_kind(line)] += 1
            if line.get("level") in {"warning", "error", "critical"}:
                unusual[_kind(line)] += 1
    return events, unusual


def _structured(path: Path) -> Iterator[Mapping[str, Any]]:
    """Return the structured lines of a process's log; other programs write others."""
    with path.open(errors="replace") as lines:
        for line in lines:
            if line.startswith("{"):
                with contextlib.suppress(ValueError):  # the last line of a process that was killed
                    yield json.loads(line)


def _kind(line: Mapping[str, Any]) -> str:
    """Return what kind of event a log line tells: the name of ours, the logger of a library's."""
    event = str(line.get("event", ""))
    if line.get("logger") == "celery.app.trace" and " retry: " in event:
        return RETRY
    return event if "logger" not in line else f"{line['logger']}: {event[:60]}"


def _times_to_jit(system: System) -> list[float]:
    """Return, per job, the seconds from GitHub's `queued` to the commit of the first delivery for it, in order.

    GitHub may give the job to another's runner meanwhile; what a Pod got, and when, is the same.
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


def _report(console: Console, verdict: Verdict, figures: Figures, *, jobs: int, interrupted: bool) -> int:
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
    for event, count in figures.unusual.most_common():
        console.print(f"[yellow]unusual:[/yellow] {count} of {event}", highlight=False)
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
