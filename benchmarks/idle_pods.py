"""Cost of 10,000 idle Pods at one web process: memory, CPU, SQL, calls to the cluster, and the time of a restart."""

from __future__ import annotations

import re
import time
from typing import Self

from benchmarks.frame import Recorder, Target
from benchmarks.proc import cpu, memory
from benchmarks.stage import Stage
from lab.processes import Child, free_port

_TRANSACTIONS = re.compile(r"BEGIN|COMMIT|ROLLBACK", re.IGNORECASE)
_STATEMENT = "LOG:  statement: "


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    count = recorder.size(10_000, 60)
    with Stage() as stage:
        pool = stage.add_pool("bench")
        web = stage.start_web()
        with recorder.window() as window:
            time.sleep(recorder.size(3, 1))
            empty = memory(web.pid)[0]
        recorder.add(
            "memory of web, no Pod", "MiB", empty, window, note="resident memory, as in all rows of this table"
        )
        pods = stage.add_pods(pool, count)
        recorder.say(f"signing {count} tokens")
        began = time.monotonic()
        polls = stage.start_polls("polls", pods, ramp=recorder.size(20, 1))
        recorder.say("Pods begin to poll")
        stage.wait(lambda: stage.offered() >= count, timeout=240, what="every offer")
        recorder.say(f"all are offered, {time.monotonic() - began:.0f} s after the first token was signed")
        _held(recorder, stage, web, count)
        web = _restarts(recorder, stage, web, count)
        polls.kill()
        web.stop()
        _bound(recorder, stage, count)
        recorder.lab = {
            "Pods": "one connection per poll, like the poller's curl; tokens RS256, 2048 bits, verified by web",
            "Postgres": "the lab's, on the same cores; it logs every statement while the statements are counted",
        }


def _held(recorder: Recorder, stage: Stage, web: Child, count: int) -> None:
    """Measure for a minute per round. In this time, each Pod polls at least once."""
    for _ in range(recorder.size(2, 1)):
        time.sleep(recorder.size(2, 1))
        calls, answered = _calls(stage), _answered(stage)
        with recorder.window() as window, _Statements(stage) as statements:
            before, began = cpu(web.pid), time.monotonic()
            time.sleep(recorder.size(60, 3))
            used = (cpu(web.pid) - before) / (time.monotonic() - began)
        resident, proportional = memory(web.pid)
        polls = _answered(stage) - answered
        recorder.say(f"{polls} polls in {window.seconds:.0f} s, {statements.count} statements")
        recorder.add(
            "memory of web, 10,000 Pods held",
            "MiB",
            resident,
            window,
            targets=(Target("median", "<", 400),),
            bounds=("memory of a bare ASGI app, 10,000 held",),
            note=f"{proportional:.0f} MiB of proportional set size",
        )
        empty = recorder.figures["memory of web, no Pod"].value("median")
        recorder.add("memory per held Pod", "kB", (resident - empty) * 1024 / count, window)
        recorder.add(
            "CPU of web, 10,000 Pods held",
            "cores",
            used,
            window,
            targets=(Target("median", "<", 0.25),),
            bounds=("CPU of a bare ASGI app, 10,000 held",),
            note="each Pod polls every 40 to 55 s, over a new connection",
        )
        recorder.add(
            "calls to the cluster", "calls", _calls(stage) - calls, window, targets=(Target("median", "=", 0),)
        )
        if polls:
            recorder.add(
                "SQL statements per poll",
                "ratio",
                statements.count / polls,
                window,
                targets=(Target("median", "≤", 0.15),),
                note=f"BEGIN, COMMIT and ROLLBACK not counted; with them {statements.with_transactions / polls:.2g}",
            )


def _restarts(recorder: Recorder, stage: Stage, web: Child, count: int) -> Child:
    """Stop or kill web, start it again, and measure the time until the new process offers every Pod."""
    for how in ("stopped", "killed"):
        for _ in range(recorder.size(2, 1)):
            recorder.say(f"web is {how} and started again")
            with recorder.window() as window:
                if how == "killed":
                    web.kill()
                else:
                    web.stop()
                began = time.monotonic()
                web = stage.start_web()
                up = time.monotonic() - began
                # A killed process leaves its offers behind, so only offers of the new process count.
                stage.wait(
                    lambda: _by_newest(stage) >= count, timeout=180, what="every offer after a restart", every=0.2
                )
                seconds = time.monotonic() - began
            recorder.add(
                f"web {how} and started: all Pods back",
                "s",
                seconds,
                window,
                targets=(Target("median", "<", 30),),
                note=f"from the start of the new process, which answered after {up:.1f} s",
            )
            time.sleep(recorder.size(3, 1))
    return web


def _by_newest(stage: Stage) -> int:
    return int(
        stage.scalar(
            "SELECT count(*) FROM offers WHERE until > now() AND web_id = "
            "(SELECT id FROM web_instances ORDER BY started_at DESC LIMIT 1)"
        )
    )


def _bound(recorder: Recorder, stage: Stage, count: int) -> None:
    """Measure an application that holds the same polls without any other work, as the bound."""
    port = free_port()
    bare = stage.module("bare", "benchmarks.load.bare", "--port", str(port))
    pool = int(stage.scalar("SELECT min(id) FROM pools"))
    pods = stage.add_pods(pool, count)
    stage.start_polls("polls-bare", pods, ramp=recorder.size(20, 1), port=port)
    stage.wait(lambda: _open(stage, "polls-bare") >= count * 0.9, timeout=240, what="every poll of the bound")
    time.sleep(recorder.size(2, 1))
    with recorder.window() as window:
        before = cpu(bare.pid)
        time.sleep(recorder.size(50, 2))
        used = cpu(bare.pid) - before
    recorder.add("CPU of a bare ASGI app, 10,000 held", "cores", used / window.seconds, window, is_bound=True)
    recorder.add("memory of a bare ASGI app, 10,000 held", "MiB", memory(bare.pid)[0], window, is_bound=True)


def _open(stage: Stage, name: str) -> int:
    states = stage.said(name, "state")
    return int(states[-1]["open"]) if states else 0


def _answered(stage: Stage) -> int:
    states = stage.said("polls", "state")
    return sum(states[-1]["answers"].values()) if states else 0


def _calls(stage: Stage) -> int:
    return sum(stage.upstream_calls().values())


class _Statements:
    """Counter of the statements that Postgres runs for web, from the log of Postgres."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._log = stage.folder / "postgres" / "postgres.log"
        self._from = 0
        self.count = 0
        self.with_transactions = 0

    def __enter__(self) -> Self:
        self._stage.system("ALTER SYSTEM SET log_statement = 'all'")
        self._stage.system("ALTER SYSTEM SET log_line_prefix = '%%a '")
        self._stage.system("SELECT pg_reload_conf()")
        time.sleep(0.5)
        self._from = self._log.stat().st_size
        return self

    def __exit__(self, *_: object) -> None:
        self._stage.system("ALTER SYSTEM RESET log_statement")
        self._stage.system("SELECT pg_reload_conf()")
        with self._log.open(errors="replace") as log:
            log.seek(self._from)
            for line in log:
                if line.startswith("ostler-web") and (found := line.partition(_STATEMENT)[2]):
                    self.with_transactions += 1
                    self.count += not _TRANSACTIONS.match(found)
