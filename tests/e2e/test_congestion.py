"""More work than a worker can do within `due_after`: the work takes longer, and all of it is done.

The worker has one thread and GitHub answers slowly, so the messages of the last claims wait for many times `due_after`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from lab.bootstrap import LabPool
from lab.faults import Fault, FaultPlan
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from tests.waiting import eventually

LABELS = ("self-hosted", "linux", "crowd")
JOBS = 40


@pytest.mark.cluster  # a long story
@pytest.mark.timeout(300)
def test_messages_that_wait_for_long_are_neither_sent_again_nor_overtaken(tmp_path: Path) -> None:
    options = Options(
        pools=(LabPool("crowd", LABELS, JOBS, cpu="1", memory="1Gi"),),
        beats=1,
        real_pods=0,
        settings={
            "OSTLER_WORKER_THREADS": "1",
            **timings(due_after=1, resume_every=1),
            "OSTLER_DEFAULT_BUDGET_COUNT": str(JOBS),
            "OSTLER_DEFAULT_BUDGET_VCPU": str(JOBS),
            "OSTLER_DEFAULT_BUDGET_MEMORY_GIB": str(JOBS),
        },
        github_faults=FaultPlan((Fault(kind="delay", delay_seconds=0.25),)),
    )
    with System(tmp_path, options, say=print, cluster="embedded") as system:
        engine = create_engine(system.postgres.url("ostler"))

        def count(statement: str) -> int:
            with engine.connect() as db:
                return int(db.execute(text(statement)).scalar_one())

        eventually(lambda: count("SELECT count(*) FROM offers WHERE until > now()") >= JOBS, within=60)
        job = {"repository": "acme/shop", "labels": list(LABELS), "duration_seconds": 0.2, "count": JOBS}
        system.lab("POST", "/jobs", job)
        eventually(lambda: count("SELECT count(*) FROM jobs WHERE state = 'completed'") == JOBS, within=150)
        again = count("SELECT count(*) FROM claims WHERE purpose = 'job' AND chain_no > 1")
        engine.dispose()
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
    assert not verdict.problems
    assert again <= JOBS / 10, "what waits was sent again"
