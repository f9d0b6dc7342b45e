"""Time to explain one queued job, with few and with many queued jobs of 1,000 accounts.

The explanation is read in this process from a real Postgres, as a web process reads it for a request: the job, its
history, the facts about its pool and its place in the plan of the matcher.
"""

from __future__ import annotations

import random
import time

from benchmarks.frame import Recorder, Target, Window
from benchmarks.matcher import Case, Matcher
from benchmarks.stage import Stage
from models.browse.jobs import job_story
from models.db.engine import transaction
from ostler.clock import utcnow
from ostler.timings import Timings

_COMPLETED = 2000
"""Number of jobs of the pool that were completed in the last hour. The expected wait is computed from them."""
MOST = 100.0
"""Target of the 99th percentile in milliseconds."""


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    few, many, accounts = recorder.size(1000, 200), recorder.size(100_000, 1000), recorder.size(1000, 100)
    with Stage() as stage:
        matcher = Matcher(stage)
        names = [_measure(recorder, matcher, Case(queued, accounts, 1)) for queued in (few, many)]
    first, last = (recorder.figures[name] for name in names)
    window = Window(seconds=last.rounds[-1].seconds, load=last.rounds[-1].load, others=last.rounds[-1].others)
    ratio = last.value("p50") / first.value("p50")
    name = f"{many:,} queued ÷ {few:,}"
    recorder.add(name, "ratio", ratio, window, targets=(Target("median", "≤", 1.5),))
    recorder.lab = {"jobs": "random queued jobs of one pool with 100 free Pods", "Redis": "not used"}


def _measure(recorder: Recorder, matcher: Matcher, case: Case) -> str:
    name = f"{case.queued:,} queued, {case.accounts:,} accounts"
    recorder.say(name)
    matcher.fill(case)
    matcher.complete(_COMPLETED)
    chosen = random.Random(1)  # noqa: S311  the same jobs in each run
    for _ in range(recorder.size(3, 1)):
        matcher.calm()
        for _ in range(5):  # each connection reads the catalogue again after a VACUUM
            _explain(matcher, chosen.randint(1, case.queued))
        with recorder.window() as window:
            times = [_explain(matcher, chosen.randint(1, case.queued)) for _ in range(recorder.size(200, 3))]
        milliseconds = [seconds * 1000 for seconds in times]
        recorder.add(name, "ms", milliseconds, window, targets=(Target("p99", "≤", MOST),))
    return name


def _explain(matcher: Matcher, job_id: int) -> float:
    """Explain one job, and return the seconds. Raises RuntimeError if the explanation has no checks or no wait."""
    began = time.perf_counter()
    story = transaction(matcher.stage.engine, lambda db: job_story(db, job_id, timings=Timings(), now=utcnow()))
    if story is None or not story.why.checks or story.why.expected is None or story.why.expected.p50 is None:
        raise RuntimeError(f"job {job_id} has no explanation")
    return time.perf_counter() - began
