"""Cost of 10,000 idle Pods with TLS compared with 10,000 without TLS.

The figures are the memory and the CPU of one web process for each case, and the ratio of their CPU.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.frame import Recorder, Target
from benchmarks.load.certificate import write_certificate
from benchmarks.proc import cpu, memory
from benchmarks.stage import Stage
from lab.processes import Child, free_port

_MOST_MEMORY = 1024  # MiB
_MOST_CORES = 0.5


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    count = recorder.size(10_000, 40)
    with Stage() as stage:
        pool = stage.add_pool("bench")
        plain = stage.start_web()
        port = free_port()
        by_tls = _start_secured(stage, port)
        with recorder.window() as window:
            time.sleep(recorder.size(3, 1))
            empty = {"plain": memory(plain.pid)[0], "TLS": memory(by_tls.pid)[0]}
        recorder.add(
            "memory of web with TLS, no Pod",
            "MiB",
            empty["TLS"],
            window,
            note="resident memory, as in all rows of this table",
        )
        recorder.say(f"signing {2 * count} tokens")
        ramp = recorder.size(40, 1)
        stage.start_polls("polls-plain", stage.add_pods(pool, count), ramp=ramp)
        stage.start_polls("polls-tls", stage.add_pods(pool, count), ramp=ramp, port=port, ca=_folder(stage) / "tls.crt")
        stage.wait(lambda: stage.offered() >= 2 * count, timeout=300, what="every offer")
        recorder.say("all are offered")
        _held(recorder, stage, {"plain": plain, "TLS": by_tls}, empty, count)
        recorder.lab = {
            "Pods": "one connection and one full handshake per poll, like the poller's curl; TLS 1.3, X25519, an ECDSA "
            "certificate on P-256, like the chart's; tokens RS256, verified by web",
            "web processes": "two at once on one database, one with TLS and one without, each with its own Pods",
        }


def _folder(stage: Stage) -> Path:
    return stage.folder / "tls"


def _start_secured(stage: Stage, port: int) -> Child:
    folder = _folder(stage)
    folder.mkdir()
    certificate, key = write_certificate(folder)
    child = stage.module(
        "web-tls",
        "ostler",
        "web",
        OSTLER_WEB_PORT=str(free_port()),
        OSTLER_WEB_POLLS_PORT=str(free_port()),
        OSTLER_WEB_PRIVATE_PORT=str(free_port()),
        OSTLER_WEB_POLLS_TLS_PORT=str(port),
        OSTLER_WEB_POLLS_TLS_CERT=str(certificate),
        OSTLER_WEB_POLLS_TLS_KEY=str(key),
    )
    child.wait_until(lambda: "postgres_listener.connected" in child.log.read_text(), timeout=60)
    return child


def _held(recorder: Recorder, stage: Stage, webs: dict[str, Child], empty: dict[str, float], count: int) -> None:
    """Measure for five minutes. Each Pod polls at least five times, so that a growth of memory is visible."""
    for _ in range(recorder.size(5, 1)):
        time.sleep(recorder.size(2, 1))
        answered = {name: _answered(stage, name) for name in webs}
        with recorder.window() as window:
            before, began = {name: cpu(each.pid) for name, each in webs.items()}, time.monotonic()
            time.sleep(recorder.size(60, 3))
            seconds = time.monotonic() - began
            cores = {name: (cpu(each.pid) - before[name]) / seconds for name, each in webs.items()}
        resident = {name: memory(each.pid)[0] for name, each in webs.items()}
        polls = {name: _answered(stage, name) - answered[name] for name in webs}
        recorder.say(f"answered {polls} in {seconds:.0f} s; cores {cores}; MiB {resident}")
        answers = {name: _answers(stage, name) for name in webs}
        recorder.say(f"statuses since the start, 0 for no answer: {answers}")
        recorder.add(
            "memory of web, 10,000 Pods held by TLS",
            "MiB",
            resident["TLS"],
            window,
            targets=(Target("median", "≤", _MOST_MEMORY),),
            bounds=("memory of web, 10,000 Pods held without TLS",),
        )
        recorder.add("memory of web, 10,000 Pods held without TLS", "MiB", resident["plain"], window, is_bound=True)
        recorder.add("memory per Pod held by TLS", "kB", (resident["TLS"] - empty["TLS"]) * 1024 / count, window)
        recorder.add(
            "memory per Pod held without TLS", "kB", (resident["plain"] - empty["plain"]) * 1024 / count, window
        )
        recorder.add(
            "CPU of web, 10,000 Pods held by TLS",
            "cores",
            cores["TLS"],
            window,
            targets=(Target("median", "≤", _MOST_CORES),),
            bounds=("CPU of web, 10,000 Pods held without TLS",),
            note="each Pod polls every 40 to 55 s, over a new connection with a full handshake",
        )
        recorder.add("CPU of web, 10,000 Pods held without TLS", "cores", cores["plain"], window, is_bound=True)
        if cores["plain"]:
            recorder.add("CPU with TLS ÷ CPU without TLS", "ratio", cores["TLS"] / cores["plain"], window)
        if polls["TLS"] and polls["plain"]:
            cost = {name: 1000 * cores[name] * seconds / polls[name] for name in webs}
            recorder.add("CPU of a poll by TLS", "ms", cost["TLS"], window, bounds=("CPU of a poll without TLS",))
            recorder.add("CPU of a poll without TLS", "ms", cost["plain"], window, is_bound=True)


def _answered(stage: Stage, name: str) -> int:
    return sum(_answers(stage, name).values())


def _answers(stage: Stage, name: str) -> dict[str, int]:
    """Return the number of answers by status. Status 0 counts polls without an answer."""
    states = stage.said(f"polls-{name.lower()}", "state")
    found: dict[str, int] = states[-1]["answers"] if states else {}
    return found
