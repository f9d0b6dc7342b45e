"""Workers are added and killed under load: the new workers take work, and nothing is lost or repeated.

`benchmarks/scaling.py` measures the gain in speed. The test does not check it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text

from lab.bootstrap import ACCOUNTS, LabPool
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from tests.accusations import accusations
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JOBS = 90
LABELS = ("self-hosted", "linux", "scaling")
PODS = 24
SETTLED_WITHIN = 300


@pytest.fixture
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The whole system with three workers of two threads. GitHub takes half a second for each answer."""
    options = Options(
        pools=(LabPool("scaling", LABELS, PODS, cpu="1", memory="1Gi"),),
        workers=3,
        real_pods=2,
        settings={
            "OSTLER_WORKER_THREADS": "2",
            **timings(due_after=3, resume_every=1, sweep_every=5),
        },
    )
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, cluster="embedded") as running:
        running.wait_for_warm_pods(PODS, timeout=180)
        running.lab("POST", "/settings", {"answer_delay_seconds": 0.5})
        yield running


def mints(system: System) -> Counter[str]:
    """Return the number of mints that each worker process committed."""
    engine = create_engine(system.postgres.url("ostler"))
    with engine.connect() as db:
        who_minted = db.execute(text("SELECT who FROM claim_events WHERE transition = 'mint'")).scalars().all()
    engine.dispose()
    return Counter(who_minted)


def who(system: System, worker: str) -> str:
    return f"worker:{system.children[worker].pid}"


def test_added_workers_share_the_load_and_killed_workers_lose_and_double_nothing(system: System) -> None:
    # Given one worker and more jobs than Pods …
    for name in ("worker-1", "worker-2"):
        system.children[name].kill()
    for number in range(JOBS):
        account = ACCOUNTS[number % len(ACCOUNTS)]
        job = {"repository": f"{account.login}/{account.repositories[0]}", "labels": list(LABELS), "count": 1}
        system.lab("POST", "/jobs", {**job, "duration_seconds": 0.3})
    eventually(
        lambda: mints(system)[who(system, "worker-0")] >= 5, within=SETTLED_WITHIN, what="mints by the first worker"
    )

    # … when two come, they mint beside it, …
    system.restart("worker-1")
    system.restart("worker-2")
    eventually(
        lambda: min(mints(system)[who(system, name)] for name in ("worker-1", "worker-2")) >= 3,
        within=SETTLED_WITHIN,
        what="mints by all",
    )
    # … and when two are killed in their work, the third ends what they began.
    system.children["worker-0"].kill()
    system.children["worker-1"].kill()
    before = mints(system)[who(system, "worker-2")]
    eventually(
        lambda: Counter(system.lab("GET", "/stats")["jobs"])["completed"] >= JOBS,
        within=SETTLED_WITHIN,
        what="the end of every job",
    )

    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs == verdict.executions == JOBS
    assert accusations(system) == []
    assert mints(system)[who(system, "worker-2")] > before, "it was the last one's to finish"
