"""Throughput while workers are added and killed and GitHub answers slowly. No job must be lost or doubled."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.frame import Recorder, Target
from benchmarks.proc import machine_cpu
from benchmarks.stage import ACCOUNTS, LABELS, Stage
from lab.processes import Child
from lab.system import read_log
from lab.timings import timings

ANSWER = 0.5
"""Seconds until GitHub answers each call."""
THREADS = 2
"""Threads of each `github` replica, so few that the CPU of this machine is not the limit."""

_names: Iterator[int] = itertools.count(1)


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    with Stage(**timings(due_after=3, resume_every=1)) as stage:
        pool = stage.add_pool("bench")
        stage.start_github()
        stage.start_web()
        stage.start_worker("dispatch", queues="dispatch,sweeps", threads=8)
        replicas = [_replica(stage)]
        _flow(stage, pool, jobs=recorder.size(8, 2))  # connections, tokens
        stage.github("POST", "/settings", {"answer_delay_seconds": ANSWER})
        rates: dict[int, list[float]] = {}
        for wanted in (1, 2, 4):
            while len(replicas) < wanted:
                replicas.append(_replica(stage))
            for _ in range(recorder.size(3, 1)):
                rates.setdefault(wanted, []).append(_measure(recorder, stage, pool, wanted))
        _killed(recorder, stage, pool, replicas)
        recorder.lab = {
            "GitHub": f"the lab's, {ANSWER * 1000:.0f} ms for every answer",
            "replicas": f"`ostler worker --queues github`, {THREADS} threads each; one other worker consumes the "
            "queues `dispatch` and `sweeps`",
            "API server": "answers at once, no cluster behind it",
        }


def _replica(stage: Stage) -> Child:
    return stage.start_worker(f"github-{next(_names)}", queues="github", threads=THREADS)


def _measure(recorder: Recorder, stage: Stage, pool: int, replicas: int) -> float:
    jobs = recorder.size(40 * replicas, 4 * replicas)
    with recorder.window() as window:
        busy, began = machine_cpu(), time.monotonic()
        received = _flow(stage, pool, jobs=jobs)
        used = (machine_cpu() - busy) / (time.monotonic() - began) / 2 * 100
    # The rate counts from the end of the first wave to the last JIT, while the queue is full and all threads work.
    wave = replicas * THREADS
    rate = (len(received) - wave) / max(received[-1] - received[wave - 1], 1e-9)
    plural = "s" if replicas > 1 else ""
    recorder.say(f"{replicas} replica{plural}: {rate:.1f} jobs/s, CPU of the machine {used:.0f} %")
    recorder.add(
        f"{replicas} replica{plural}", "/s", rate, window, bounds=(f"{replicas * THREADS} threads ÷ {ANSWER} s",)
    )
    recorder.add(f"{replicas * THREADS} threads ÷ {ANSWER} s", "/s", replicas * THREADS / ANSWER, window, is_bound=True)
    recorder.add(
        f"CPU of the machine, {replicas} replica{plural}", "%", used, window, targets=(Target("median", "<", 70),)
    )
    if replicas > 1:
        one = recorder.figures["1 replica"].value("median")
        least = {2: 1.9, 4: 3.6}[replicas]
        recorder.add(f"{replicas} replicas ÷ 1", "ratio", rate / one, window, targets=(Target("median", "≥", least),))
    return rate


def _flow(stage: Stage, pool: int, *, jobs: int) -> list[float]:
    """Queue jobs at once, each with a polling Pod. Return the arrival times of the JITs in order."""
    name = f"polls-{next(_names)}"
    child = _offer(stage, pool, name, jobs)
    _queue(stage, jobs)
    stage.wait(lambda: len(stage.said(name, "jit")) >= jobs, timeout=180, what="every JIT")
    child.kill()
    return sorted(event["at"] for event in stage.said(name, "jit"))


def _offer(stage: Stage, pool: int, name: str, count: int) -> Child:
    before = stage.offered()
    child = stage.start_polls(name, stage.add_pods(pool, count), ramp=0.5)
    stage.wait(lambda: stage.offered() >= before + count, timeout=60, what="every offer")
    return child


def _queue(stage: Stage, jobs: int) -> list[int]:
    wanted = [
        {"repository": f"{ACCOUNTS[number % 3][1]}/app", "labels": list(LABELS), "duration_seconds": 1}
        for number in range(jobs)
    ]
    found: list[int] = stage.github("POST", "/jobs", wanted)["ids"]
    return found


def _killed(recorder: Recorder, stage: Stage, pool: int, replicas: Sequence[Child]) -> None:
    """Start with one replica, add three, kill two during their work, and count the results of all jobs."""
    recorder.say("replicas added and killed under load")
    first, *others = replicas
    for child in others:
        child.stop()
    beat = stage.module("beat", "ostler", "beat")
    beat.wait_until(lambda: "Starting" in beat.log.read_text() or "acquired" in beat.log.read_text(), timeout=60)
    jobs = recorder.size(160, 12)
    name = f"polls-{next(_names)}"
    pods = _offer(stage, pool, name, jobs)
    with recorder.window() as window:
        wanted = _queue(stage, jobs)
        began = time.time()
        stage.wait(lambda: len(stage.said(name, "jit")) >= jobs // 8, timeout=120, what="the first JITs")
        alone = _rate(stage, name, began, time.time())
        for child in others:
            child.start()
        grown = time.time()
        stage.wait(lambda: len(stage.said(name, "jit")) >= jobs // 2, timeout=120, what="half of the JITs")
        together = _rate(stage, name, grown, time.time())
        for child in (first, others[0]):
            child.kill()
        stage.wait(lambda: len(stage.said(name, "jit")) >= jobs, timeout=120, what="every JIT")
    pods.kill()
    received = stage.said(name, "jit")
    claims = {event["claim"] for event in received}
    served = Counter(
        row.job_id for row in stage.rows("SELECT job_id FROM claims WHERE id = ANY(:ids)", ids=sorted(claims))
    )
    doubled = sum(count - 1 for count in served.values()) + len(received) - len({event["pod"] for event in received})
    lost = len(set(wanted) - set(served))
    left = [
        event["runner"] for event in read_log(stage.folder / "github.jsonl") if event["event"] == "runner_registered"
    ]
    orphans = len(set(left)) - int(stage.scalar("SELECT count(*) FROM claims WHERE delivered_at IS NOT NULL"))
    recorder.add("1 replica, before three more were started", "/s", alone, window)
    recorder.add(
        "4 replicas, before two were killed",
        "/s",
        together,
        window,
        note="the rate includes the time in which the replicas start",
    )
    recorder.add(
        "jobs without a JIT after 2 of 4 replicas were killed",
        "rows",
        lost,
        window,
        targets=(Target("median", "=", 0),),
    )
    recorder.add("jobs or Pods with two JITs", "rows", doubled, window, targets=(Target("median", "=", 0),))
    recorder.add(
        "runners registered beyond one per job",
        "rows",
        orphans,
        window,
        note="if a replica is killed between GitHub's answer and its commit, one more runner is registered. `resume` "
        "then sends the mint again. The mint finds the runner by the name that was committed before the first mint, "
        "and removes the runner",
    )


def _rate(stage: Stage, name: str, began: float, ended: float) -> float:
    found = [event["at"] for event in stage.said(name, "jit") if began <= event["at"] <= ended]
    return len(found) / max(ended - began, 1e-9)
