"""`ostler-lab demo`: the whole system on this machine, with real jobs, and a verdict on them.

The verdict is computed from the logs of the lab's GitHub and kubelet, never from Ostler's rows. The other figures of
the report, for example the times and the numbers of remaps and resumed claims, come from Ostler's rows and logs.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from sqlalchemy import create_engine
from urllib3.exceptions import HTTPError

from lab import kubectl
from lab.bootstrap import ACCOUNTS, NODE_POOLS, POOLS
from lab.control_plane import ControlPlaneUnavailable
from lab.control_plane_build import binaries
from lab.demo.folder import folder_of_run, remove_killed, running_in
from lab.demo.report import figures_of, report
from lab.demo.supervisor import Supervisor
from lab.demo.view import View
from lab.demo.where import show_where
from lab.node.cluster import prepare
from lab.node.namespace import CannotIsolate, is_isolated, run_isolated
from lab.processes import StartError
from lab.system import CLUSTERS, NODE, Options, System, read_log
from lab.traffic import Traffic
from lab.verdict import jobs_in_progress, judge
from ostler.errors import ConfigurationError

WAVE = 40
"""The demo sends further jobs while fewer than half of `WAVE` jobs are open, so that queues form and drain."""

WORKERS = 2
"""Number of worker processes. With two, one worker continues when the other is killed."""

LONGEST = 900.0
"""Seconds after which a demo that has not ended fails."""

STALLED = 90.0
"""Seconds without the end of a job after which a demo fails. Its jobs take 2.5 seconds at most."""

EVERY = 0.3
"""Seconds between two checks."""

QUIET_EVERY = 5.0
"""Seconds between two progress lines if the output is not a terminal."""

_CLUSTERS = (*CLUSTERS, NODE)

INTERRUPTED = 130
"""Exit status that a shell expects from a command that Ctrl-C ended."""


def run_demo(*, jobs: int | None, cluster: str, seed: int, logs: Path | None = None) -> int:
    """Run the demo and return its exit status: 0 only if every job completed exactly once.

    `jobs` is the number of jobs after which it ends. With None, it runs until Ctrl-C and gives no verdict. `logs` is a
    folder that keeps the logs of all processes; with None, only a failed run leaves its folder.
    """
    _check_cluster(cluster)
    if cluster == NODE and not is_isolated():
        return _run_isolated()
    return _run_here(jobs=jobs, cluster=cluster, seed=seed, logs=logs)


def _run_here(*, jobs: int | None, cluster: str, seed: int, logs: Path | None) -> int:
    console = Console()
    stop = threading.Event()

    starting = True

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal starting
        stop.set()
        if starting:
            starting = False  # a second Ctrl-C must not interrupt the shutdown
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    folder = folder_of_run(logs)
    began = time.monotonic()

    def say(line: str) -> None:
        seconds = f"[dim]{time.monotonic() - began:5.1f} s[/dim]"
        console.print(f"{seconds}  {escape(line)}", highlight=False, soft_wrap=True)

    try:
        _tidy_up(say)
        if cluster in {"real", NODE}:
            binaries(say)
        pools = NODE_POOLS if cluster == NODE else POOLS
        options = Options(pools=pools, seed=seed, workers=WORKERS, own_identities=False)
        system = System(folder, options, say=say, cluster=cluster)
        with running_in(folder, store=system.postgres.socket), system:
            system.wait_for_warm_pods(sum(pool.replicas for pool in system.options.pools) // 2, timeout=180)
            starting = False
            system.start_flower()
            say("Pods are warm; sending jobs")
            status = _drive(system, console, cluster=cluster, jobs=jobs, seed=seed, stop=stop, say=say)
    except (ControlPlaneUnavailable, StartError) as error:
        console.print(f"[red]ostler-lab demo:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        status = 1
    except KeyboardInterrupt:
        say("stopped while it started; nothing is left running")
        status = INTERRUPTED
    else:
        say("stopped; nothing is left running")
    if status not in {0, INTERRUPTED} or logs is not None:
        console.print(f"the logs of this run are in {folder}", highlight=False, soft_wrap=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _run_isolated() -> int:
    """Build everything that needs the network, then run this command again in namespaces of its own."""
    began = time.monotonic()
    console = Console()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.1f} s[/dim]  {escape(line)}", highlight=False, soft_wrap=True)

    try:
        prepare(say)
        kubectl.build(say)
        return run_isolated([sys.executable, "-m", "lab", *sys.argv[1:]])
    except (CannotIsolate, ControlPlaneUnavailable, StartError) as error:
        console.print(f"[red]ostler-lab demo:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1


def _tidy_up(say: Callable[[str], None]) -> None:
    if killed := remove_killed():
        say(f"removed the folders of {killed} killed demo{'s' if killed > 1 else ''}")


def _check_cluster(name: str) -> None:
    """Raise `ConfigurationError` if a demo cannot run on this kind of cluster."""
    if name == "kubeconfig":
        raise ConfigurationError(
            "--cluster: the demo cannot use the cluster of your kubeconfig yet: its Pods could not reach this machine; "
            f"use one of {', '.join(_CLUSTERS)}"
        )
    if name not in _CLUSTERS:
        raise ConfigurationError(f"--cluster: found {name!r}; must be one of {', '.join(_CLUSTERS)}")


def _drive(
    system: System,
    console: Console,
    *,
    cluster: str,
    jobs: int | None,
    seed: int,
    stop: threading.Event,
    say: Callable[[str], None],
) -> int:
    """Send jobs and show their progress until all are over, a time limit passes, or Ctrl-C. Return the exit status."""
    engine = create_engine(system.postgres.url("ostler"))
    try:
        show_where(system, engine, console, cluster=cluster)
        run = _Run(system, View(engine), jobs=jobs, seed=seed, say=say)
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            problem = run.play(live, console, stop=stop)
        if stop.is_set():
            say("stopping; a worker has up to 35 seconds to end its step")
        if jobs is None:
            return 0
        if problem:
            say(problem)
        elif not stop.is_set():
            _settle(system)
        verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
        figures = figures_of(engine, system, restarts=run.supervisor.restarts)
        return report(console, verdict, figures, jobs=jobs, interrupted=stop.is_set())
    finally:
        engine.dispose()


class _Run:
    """Jobs of a demo, and their progress at GitHub."""

    def __init__(self, system: System, view: View, *, jobs: int | None, seed: int, say: Callable[[str], None]) -> None:
        self.supervisor = Supervisor(system, say)
        self._system = system
        self._say = say
        self._view = view
        self._jobs = jobs
        self._traffic = Traffic(ACCOUNTS, POOLS, seed=seed)
        self._sent = 0

    def play(self, live: Live, console: Console, *, stop: threading.Event) -> str | None:
        """Send jobs and show their progress until all are over or Ctrl-C.

        Return the reason if the run is given up, else None.
        """
        began = moved_at = shown_at = time.monotonic()
        completed = -1
        while not stop.is_set():
            self.supervisor.check()
            try:
                states = Counter(self._system.lab("GET", "/stats")["jobs"])
                open_jobs = sum(count for state, count in states.items() if state != "completed")
                self._send_more(open_jobs)
            except HTTPError:  # the lab's GitHub is slow or has ended; the next check reports an end
                stop.wait(EVERY)
                continue
            now = time.monotonic()
            if console.is_terminal:
                live.update(self._view.render(header=self._header(now - began), size=console.size), refresh=True)
            elif now - shown_at > QUIET_EVERY:
                shown_at = now
                self._say(f"sent {self._sent}   {self._view.line()}")
            if self._sent == self._jobs and open_jobs == 0 and states["completed"] >= self._jobs:
                return None
            if states["completed"] != completed:
                completed, moved_at = states["completed"], now
            if self._jobs is not None and now > min(began + LONGEST, moved_at + STALLED):
                return (
                    f"giving up: {open_jobs} jobs are not over, and no job ended for {STALLED:.0f} s or the demo has "
                    f"taken {LONGEST:.0f} s"
                )
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
        return f"{seconds:.0f} s   sent {self._sent}{of} jobs{end}"


def _settle(system: System) -> None:
    """Wait up to 60 seconds until the last webhooks and jobs have ended, so that the logs are complete.

    A runner first reports the end of its job to GitHub, and then writes its log. A job can therefore be over at GitHub
    while the kubelet's log still lacks the end of the job.
    """
    end = time.monotonic() + 60
    while time.monotonic() < end:
        stats = system.lab("GET", "/stats")
        at_github = stats["webhooks_in_flight"] or stats["runners"].get("busy")
        if not at_github and not jobs_in_progress(read_log(system.kubelet_log)):
            return
        time.sleep(0.2)
