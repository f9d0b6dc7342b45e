"""CPU cost of a job by process, and the jobs per second that the whole system sustains.

Both are measured on the embedded and on the real cluster.

The cluster, the lab's GitHub and kubelet, and every process of Ostler run. The benchmark always has enough open jobs to
use every Pod. The CPU of the machine is the limit. All processes share it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.frame import Recorder, Target
from benchmarks.proc import cpu
from benchmarks.stage import Stage
from benchmarks.whole import OURS, used
from lab.bootstrap import ACCOUNTS, LabPool
from lab.processes import free_port
from lab.system import CLUSTERS, Options, System, read_log
from lab.verdict import judge

LABELS = ("self-hosted", "linux", "bench")
PODS = {"embedded": 120, "real": 80}
LEAST = {"embedded": 20.0, "real": 8.0}
SETTLES = 120.0


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    for cluster in CLUSTERS:
        _whole(recorder, cluster)
    with Stage() as stage:
        _bounds(recorder, stage)
    recorder.lab = {
        "jobs": "0.5 s each, of three accounts, in one pool; simulated Pods",
        "all other processes": "run on the same cores; their CPU per job is in the table",
    }


def _whole(recorder: Recorder, cluster: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ostler-bench-"))
    pods = recorder.size(PODS[cluster], 8)
    options = Options(
        pools=(LabPool("bench", LABELS, pods, cpu="1", memory="1Gi"),),
        real_pods=0,
        beats=1,
        own_identities=False,
        settings={
            "OSTLER_DEFAULT_BUDGET_COUNT": "1000",
            "OSTLER_DEFAULT_BUDGET_VCPU": "10000",
            "OSTLER_DEFAULT_BUDGET_MEMORY_GIB": "10000",
            "OSTLER_LOG_LEVEL": "WARNING",
        },
    )
    with System(folder, options, say=recorder.say, cluster=cluster) as system:
        system.wait_for_warm_pods(pods, timeout=180)
        driver = _Driver(system, keep_open=pods * 2)
        driver.drive(recorder.size(10, 2))
        for _ in range(recorder.size(3, 1)):
            _window(recorder, cluster, driver, seconds=recorder.size(15, 6))
        with recorder.window() as window:
            driver.settle()
        verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
        for problem in verdict.problems:
            recorder.say(f"problem: {problem}")
        recorder.add(
            f"{cluster}: jobs that did not complete exactly once",
            "rows",
            len(verdict.problems),
            window,
            targets=(Target("median", "=", 0),),
            note=f"of {verdict.jobs} jobs, by the logs of GitHub and the kubelet",
        )
    shutil.rmtree(folder, ignore_errors=True)


class _Driver:
    """Sender of jobs, which maintains a constant number of open jobs at the lab's GitHub."""

    def __init__(self, system: System, *, keep_open: int) -> None:
        self.system = system
        self._keep_open = keep_open
        self._repositories = [f"{account.login}/{name}" for account in ACCOUNTS for name in account.repositories]
        self._sent = 0

    def drive(self, seconds: float) -> tuple[int, int]:
        """Send jobs for `seconds`. Return the number of completed jobs and of calls to GitHub in that time."""
        end = time.monotonic() + seconds
        first = self._look()
        while time.monotonic() < end:
            open_jobs, *_ = self._look()
            self._send(self._keep_open - open_jobs)
            time.sleep(0.2)
        last = self._look()
        return last[1] - first[1], last[2] - first[2]

    def settle(self) -> None:
        """Stop sending and wait until every job has ended, up to `SETTLES` seconds. The verdict reports open jobs."""
        end = time.monotonic() + SETTLES
        while self._look()[0] and time.monotonic() < end:
            time.sleep(0.5)
        time.sleep(3)

    def _send(self, count: int) -> None:
        jobs = [
            {
                "repository": self._repositories[(self._sent + number) % len(self._repositories)],
                "labels": list(LABELS),
                "duration_seconds": 0.5,
            }
            for number in range(count)
        ]
        if jobs:
            self.system.lab("POST", "/jobs", jobs)
            self._sent += len(jobs)

    def _look(self) -> tuple[int, int, int]:
        stats = self.system.lab("GET", "/stats")
        completed = stats["jobs"].get("completed", 0)
        return sum(stats["jobs"].values()) - completed, completed, sum(stats["calls"].values())


def _window(recorder: Recorder, cluster: str, driver: _Driver, *, seconds: float) -> None:
    before = used(driver.system)
    with recorder.window() as window:
        completed, calls = driver.drive(seconds)
    spent = {name: found - before.get(name, 0.0) for name, found in used(driver.system).items()}
    if not completed:
        raise RuntimeError(
            f"no job was completed in {seconds:.0f} s, so the cost of a job is unknown; the logs are in "
            f"{driver.system.folder}"
        )
    per_job = {name: found / completed * 1000 for name, found in spent.items()}
    ours = sum(per_job.get(name, 0.0) for name in OURS)
    recorder.say(
        f"{cluster}: {completed / window.seconds:.1f} jobs/s, {ours:.0f} ms of CPU a job in Ostler's processes"
    )
    recorder.add(
        f"{cluster}: sustained throughput",
        "/s",
        completed / window.seconds,
        window,
        targets=(Target("median", "≥", LEAST[cluster]),),
    )
    recorder.add(
        f"{cluster}: CPU of a job in all of Ostler's processes",
        "ms",
        ours,
        window,
        targets=(Target("median", "≤", 30),),
        bounds=("three no-op tasks", "three webhooks of a bare ASGI app"),
        note="from the webhook to the completion, and the creation of the Pod that replaces the spent Pod",
    )
    for name in sorted(per_job, key=lambda name: (name not in OURS, -per_job[name])):
        whose = "" if name in OURS else "lab: "
        recorder.add(f"{cluster}: … {whose}{name}", "ms", per_job[name], window)
    recorder.add(
        f"{cluster}: calls to GitHub per job", "ratio", calls / completed, window, targets=(Target("median", "≤", 1.2),)
    )


def _bounds(recorder: Recorder, stage: Stage) -> None:
    recorder.say("the bounds")
    jobs = recorder.size(200, 10)
    noop = stage.module("noop", "benchmarks.load.noop", "worker")
    stage.run("benchmarks.load.noop", "send", "--count", "5", "--rate", "10")
    port = free_port()
    bare = stage.module("bare", "benchmarks.load.bare", "--port", str(port))
    sent = ("--url", f"http://127.0.0.1:{port}/webhooks/github", "--first", "1", "--rate", "60")
    stage.run("benchmarks.load.hooks", "--count", "20", *sent)
    for _ in range(recorder.size(3, 1)):
        before = cpu(noop.pid)
        with recorder.window() as window:
            stage.run("benchmarks.load.noop", "send", "--count", str(jobs), "--rate", "20")
        recorder.add("three no-op tasks", "ms", (cpu(noop.pid) - before) / jobs * 1000, window, is_bound=True)
        before = cpu(bare.pid)
        with recorder.window() as window:
            stage.run("benchmarks.load.hooks", "--count", str(3 * jobs), *sent)
        taken = (cpu(bare.pid) - before) / jobs * 1000
        recorder.add("three webhooks of a bare ASGI app", "ms", taken, window, is_bound=True)
