"""A fault run: 500 jobs while 5 % of the calls to GitHub and Kubernetes fail, with all faults of the proxy.

The result is judged by the lab's logs only. The lab's GitHub counts the calls, and the proxy counts those that it
answered itself.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from k8s_adapters.calls.client import KubeClient
from lab.bootstrap import ACCOUNTS, POOLS
from lab.control_plane import ClusterAccess
from lab.faults import OF_STREAMS, Fault, FaultPlan, Kind
from lab.system import Options, System, read_log
from lab.verdict import judge
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

JOBS = 500
WAVE = 40
CALLS_PER_JOB = 1.3
OUTAGE_SECONDS = 5
SETTLED_WITHIN = 420
"""Seconds: an unused runner is found after 60, proven after 60 more, and two sweeps run in between."""


def plan(*, seed: int) -> FaultPlan:
    """Return faults of every kind, 5 % of all calls together."""
    return FaultPlan(
        [
            Fault(kind="status", status=500, probability=0.004),
            Fault(kind="status", status=503, probability=0.003),
            Fault(kind="status", status=429, headers={"Retry-After": "1"}, probability=0.003),
            *(Fault(kind=kind, probability=0.01) for kind in ("reset_before", "reset_after", "truncate")),
            Fault(kind="delay", delay_seconds=1, probability=0.01),
        ],
        seed=seed,
    )


@pytest.fixture
def system(
    control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """The whole system with its default settings. Both upstreams are behind proxies."""
    namespace = f"faults-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    options = Options(real_pods=4, github_faults=plan(seed=1), kubernetes_faults=plan(seed=2))
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, namespace=namespace, control_plane=control_plane) as running:
        running.wait_for_warm_pods(sum(pool.replicas for pool in POOLS), timeout=180)
        yield running
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


def drive(system: System) -> None:
    """Send the jobs, at most one wave at a time, and return when GitHub shows all of them as completed."""
    kinds = itertools.cycle([(account, pool) for account in ACCOUNTS for pool in POOLS])
    sent, completed, moved_at = 0, -1, time.monotonic()
    while completed < JOBS:
        states = Counter(system.lab("GET", "/stats")["jobs"])
        if states["completed"] != completed:
            completed, moved_at = states["completed"], time.monotonic()
        assert time.monotonic() - moved_at < SETTLED_WITHIN, f"no job has ended for {SETTLED_WITHIN} s: {states}"
        while sent < JOBS and sent - completed < WAVE:
            account, pool = next(kinds)
            body = {
                "repository": f"{account.login}/{account.repositories[0]}",
                "labels": list(pool.labels),
                "count": min(5, JOBS - sent),
                "duration_seconds": 0.5,
            }
            sent += len(system.lab("POST", "/jobs", body)["ids"])
        time.sleep(0.3)


def calls(system: System) -> Counter[str]:
    """Return the calls of Ostler to GitHub: those that arrived, and those that the proxy answered itself."""
    counts = system.faults("github")["counts"]
    arrived: dict[str, int] = system.lab("GET", "/stats")["calls"]
    return Counter(arrived) + Counter({"kept by the proxy": counts[Kind.STATUS] + counts[Kind.RESET_BEFORE]})


def share(counts: Mapping[str, int]) -> float:
    """Return the share of calls that met a fault."""
    return 1 - counts["forwarded"] / sum(counts.values())


def live_claims(system: System) -> list[Any]:
    """Return the claims that have not ended."""
    engine = create_engine(system.postgres.url("ostler"))
    with engine.connect() as db:
        found = list(
            db.execute(text("SELECT id, purpose, state, job_id, last_error FROM claims WHERE ended_at IS NULL"))
        )
    engine.dispose()
    return found


def test_500_jobs_run_once_each_while_one_call_in_twenty_fails(system: System) -> None:
    began = time.monotonic()
    before = calls(system)
    for upstream in ("github", "kubernetes"):
        outage = Fault(kind="reset_before", from_seconds=20, until_seconds=20 + OUTAGE_SECONDS)
        system.faults(upstream, outage)

    drive(system)
    over = time.monotonic()
    eventually(
        lambda: not system.lab("GET", "/runners")["runners"] and not live_claims(system),
        within=SETTLED_WITHIN,
        what="no runner left at GitHub, no claim left",
    )

    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log))
    made = calls(system) - before
    told = {upstream: system.faults(upstream)["counts"] for upstream in ("github", "kubernetes")}
    print(f"\n{over - began:.0f} s, then {time.monotonic() - over:.0f} s until all was settled")  # noqa: T201
    print(*(f"{count:6} {name}" for name, count in made.most_common()), sep="\n")  # noqa: T201
    print(*told.items(), sep="\n")  # noqa: T201
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs == JOBS
    assert verdict.executions == JOBS
    for counts in told.values():
        assert all(counts[kind] for kind in set(Kind) - OF_STREAMS), counts
        assert 0.03 < share(counts) < 0.12, counts
    assert made.total() <= CALLS_PER_JOB * JOBS, made
