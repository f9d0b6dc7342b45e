"""Latency of 200 webhooks per second beside 2,000 held polls while one machine attacks the public port."""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks.frame import Recorder, Target, Window
from benchmarks.load.attacks import NICE
from benchmarks.proc import cpu, memory
from benchmarks.stage import LABELS, Stage
from lab.processes import Child

_FIRST = 700_000_000


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    first = itertools.count(_FIRST, 1_000_000)
    count = recorder.size(2_000, 40)
    with Stage() as stage:
        stage.add_pool("bench")
        web = stage.start_web()
        # The idle Pods have other labels, so that no job of a webhook uses them.
        pods = stage.add_pods(stage.add_pool("idle", ("self-hosted", "idle")), count)
        polls = stage.start_polls("polls", pods, ramp=recorder.size(10, 1))
        stage.wait(lambda: stage.offered() >= count, timeout=180, what="every offer")
        recorder.lab = {
            "attackers": f"one process at nice {NICE} on the same cores (benchmarks/load/attacks.py)",
            "polls": f"{count}, held at the port for polls",
        }
        _send(stage, next(first), count=recorder.size(400, 20), rate=200)  # warm-up
        for number in range(recorder.size(3, 1)):
            recorder.say(f"round {number + 1}, without attack")
            _round(recorder, stage, web, next(first), attacked=False)
        attack = stage.module(
            "attacks",
            "benchmarks.load.attacks",
            "--port",
            str(stage.web_port),
            "--idle",
            str(recorder.size(2000, 20)),
            "--dribbling",
            str(recorder.size(100, 2)),
        )
        stage.wait(lambda: bool(stage.said("attacks", "attacks")), timeout=60, what="the attack")
        time.sleep(recorder.size(5, 1))
        for number in range(recorder.size(3, 1)):
            recorder.say(f"round {number + 1}, attacked")
            _round(recorder, stage, web, next(first), attacked=True)
        done = stage.said("attacks", "attacks")[-1]["done"]
        recorder.lab["connections of the attackers that ended, by kind of attack"] = ", ".join(
            f"{kind} {number}" for kind, number in sorted(done.items())
        )
        attack.kill()
        polls.kill()


def _round(recorder: Recorder, stage: Stage, web: Child, first: int, *, attacked: bool) -> None:
    count = recorder.size(4000, 40)
    before = cpu(web.pid)
    with recorder.window() as window:
        found = _send(stage, first, count=count, rate=200)
    used = (cpu(web.pid) - before) / window.seconds
    recorder.say(f"statuses {found['statuses']}, latest sender {found['late'] * 1000:.0f} ms late")
    if not attacked:
        recorder.add("accepted, 200/s, without attack", "ms", found["latencies"], window, is_bound=True)
        recorder.add("CPU of web, without attack", "cores", used, window, is_bound=True)
        return
    recorder.add(
        "accepted, 200/s, attacked",
        "ms",
        found["latencies"],
        window,
        targets=(Target("p99", "<", 150),),
        bounds=("accepted, 200/s, without attack",),
        note="from the time when the webhook was due to be sent until the end of its answer",
    )
    recorder.add("CPU of web, attacked", "cores", used, window, bounds=("CPU of web, without attack",))
    recorder.add("memory of web, attacked", "MiB", memory(web.pid)[0], window, targets=(Target("median", "<", 400),))
    _lost(recorder, stage, window, found, first, count)


def _lost(recorder: Recorder, stage: Stage, window: Window, found: dict[str, Any], first: int, count: int) -> None:
    kept = int(
        stage.scalar("SELECT count(*) FROM jobs WHERE id >= :first AND id < :end", first=first, end=first + count)
    )
    recorder.add(
        "webhooks lost, attacked",
        "rows",
        count - min(kept, found["statuses"].get("202", 0)),
        window,
        targets=(Target("median", "=", 0),),
        note="the larger of two numbers: webhooks without the answer 202, and webhooks without a row",
    )
    state = stage.said("polls", "state")[-1]
    broken = sum(number for status, number in state["answers"].items() if status != "204")
    recorder.add(
        "polls that were not answered 204",
        "calls",
        broken,
        window,
        targets=(Target("median", "=", 0),),
    )


def _send(stage: Stage, first: int, *, count: int, rate: float) -> dict[str, Any]:
    found: dict[str, Any] = stage.run(
        "benchmarks.load.hooks",
        "--url",
        f"{stage.web_url}/webhooks/github",
        "--count",
        str(count),
        "--first",
        str(first),
        "--labels",
        ",".join(LABELS),
        "--rate",
        str(rate),
        "--senders",
        "64",
    )
    return found
