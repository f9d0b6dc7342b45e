"""Cost of failing pools for healthy neighbours, compared with the cost of idle Pods.

The figure is the time from `queued` to the JIT. Each pair of runs uses the embedded cluster, simulated Pods, and the
same jobs in the same two healthy pools. One run has the bad pools of `make chaos SCENARIO=fleets`, with jobs of their
own. The other run has the same number of healthy, idle Pods. The scenario with a lost node is left out, because its
detection takes minutes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import create_engine, text

from benchmarks.frame import Recorder, Target
from benchmarks.proc import machine_cpu
from lab.bootstrap import ACCOUNTS, LabAccount, LabPool
from lab.chaos.fleets import BAD, CAUSES, GROUP, HEALTHY
from lab.system import Options, System, read_log

RATE = 3.0
"""Number of jobs per second in all healthy pools together."""

BAD_EVERY = 5.0
"""Seconds between two jobs of each bad pool."""

SETTLES = 20.0
"""Seconds to wait for the first failures before the measurement begins."""

CORES = 2
ILL, IDLE = "bad fleets", "idle Pods"
_JOBS = "SELECT id, job_id FROM claims WHERE purpose = 'job' AND job_id = ANY(:ids)"


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures."""
    bad = [cause.pool for name, cause in CAUSES.items() if name != "lost-node"]
    for number in range(recorder.size(3, 1)):
        p99 = {beside: _once(recorder, bad, beside=beside, number=number) for beside in (ILL, IDLE)}
        with recorder.window() as window:
            pass
        recorder.add(
            "healthy pools: p99 beside bad fleets ÷ p99 beside idle Pods",
            "ratio",
            p99[ILL] / p99[IDLE],
            window,
            targets=(Target("median", "≤", 2),),
        )
    recorder.lab = {
        "healthy": ", ".join(f"{pool.name}: {pool.replicas} Pods" for pool in HEALTHY) + f", {RATE:g} jobs/s",
        "beside them": ", ".join(f"{pool.name}: {pool.replicas}" for pool in bad)
        + f" Pods; each bad pool gets a job every {BAD_EVERY:g} s, and an idle pool gets none",
        "Pods": "simulated, on the embedded API server",
    }


def _once(recorder: Recorder, bad: list[LabPool], *, beside: str, number: int) -> float:
    """Run one half of a pair, and return the p99 in milliseconds."""
    pools = bad if beside == ILL else [replace(pool, spec={}) for pool in bad]
    folder = Path(tempfile.mkdtemp(prefix="ostler-bench-"))
    options = Options(
        pools=(*HEALTHY, *pools),
        real_pods=0,
        beats=1,
        seed=number + 1,
        settings={"OSTLER_DEFAULT_BUDGET_COUNT": "100", "OSTLER_LOG_LEVEL": "WARNING"},
    )
    with System(folder, options, say=recorder.say, cluster="embedded") as system:
        system.lab("PUT", f"/accounts/{BAD.login}/groups/{GROUP}", {"name": "special"})
        system.lab("PUT", f"/accounts/{BAD.login}/refusals", [{"group": GROUP, "because": "permission"}])
        wanted = sum(pool.replicas for pool in (*HEALTHY, *(pools if beside == IDLE else ())))
        system.wait_for_warm_pods(wanted, timeout=180)
        load = _Load(system, pools if beside == ILL else [])
        load.drive(recorder.size(int(SETTLES), 2))
        before, load.ids = machine_cpu(), []
        with recorder.window() as window:
            load.drive(recorder.size(45, 4))
        busy = (machine_cpu() - before) / window.seconds / CORES * 100
        found = load.milliseconds()
    shutil.rmtree(folder, ignore_errors=True)
    recorder.add(
        f"beside {beside}: queued → JIT, healthy pools",
        "ms",
        found,
        window,
        is_bound=beside == IDLE,
        bounds=() if beside == IDLE else (f"beside {IDLE}: queued → JIT, healthy pools",),
    )
    recorder.add(f"beside {beside}: CPU of the machine", "%", busy, window, targets=(Target("median", "<", 70),))
    p99 = sorted(found)[min(len(found) - 1, int(0.99 * len(found)))]
    recorder.say(f"beside {beside}: p99 {p99:.0f} ms of {len(found)} jobs, CPU {busy:.0f} %")
    return p99


class _Load:
    """Sender of jobs: at a rate for healthy pools, and at intervals for each bad pool.

    `ids` are the ids of the jobs of healthy pools.
    """

    def __init__(self, system: System, bad: list[LabPool]) -> None:
        self.ids: list[int] = []
        self._system = system
        self._bad = bad
        self._bad_at = time.monotonic()
        self._sent = 0

    def drive(self, seconds: float) -> None:
        """Send jobs for `seconds`."""
        began = time.monotonic()
        for turn in range(int(seconds * RATE)):
            time.sleep(max(0.0, began + turn / RATE - time.monotonic()))
            owner, pool = ACCOUNTS[self._sent % len(ACCOUNTS)], HEALTHY[self._sent % len(HEALTHY)]
            self.ids += self._system.lab("POST", "/jobs", {**_job(owner, pool), "duration_seconds": 0.5})["ids"]
            self._sent += 1
            if self._bad and time.monotonic() >= self._bad_at:
                self._bad_at += BAD_EVERY
                self._system.lab("POST", "/jobs", [{**_job(BAD, each), "duration_seconds": 0.5} for each in self._bad])

    def milliseconds(self, *, within: float = 60.0) -> list[float]:
        """Return the milliseconds from `queued` to the JIT for each job of a healthy pool.

        Raises RuntimeError if a job got no JIT within `within` seconds.
        """
        engine = create_engine(self._system.postgres.url("ostler"))
        end = time.monotonic() + within
        try:
            while True:
                with engine.connect() as db:
                    jobs = {row.id: row.job_id for row in db.execute(text(_JOBS), {"ids": self.ids})}
                got: dict[int, float] = {}
                for event in read_log(self._system.kubelet_log):
                    if event["event"] == "jit_received" and (job := jobs.get(int(event["claim"]))) is not None:
                        got.setdefault(job, datetime.fromisoformat(event["at"]).timestamp())
                if len(got) == len(self.ids):
                    break
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"{len(self.ids) - len(got)} jobs of healthy pools got no JIT within {within:.0f} s; the logs "
                        f"are in {self._system.folder}"
                    )
                time.sleep(0.5)
        finally:
            engine.dispose()
        queued = _queued(self._system)
        return [(at - queued[job]) * 1000 for job, at in got.items()]


def _queued(system: System) -> Mapping[int, float]:
    return {event["job"]: event["at"] for event in read_log(system.github_log) if event["event"] == "job_queued"}


def _job(owner: LabAccount, pool: LabPool) -> dict[str, object]:
    return {"repository": f"{owner.login}/{owner.repositories[0]}", "labels": list(pool.labels)}
