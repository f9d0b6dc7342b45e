"""In the middle of a run, Postgres is replaced by a copy that is at least 50 jobs old.

The result is judged by the lab's own logs only: no busy Pod is harmed, and every job ends exactly once. Two checks
protect the busy Pods: the comparison of the epochs, and the check of each Pod before it is retired. The other test
shows the result without both checks.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import create_engine

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.pools.pools import patch_pool_replicas
from lab.bootstrap import ACCOUNTS, LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from tests.rows import run_sql

pytestmark = pytest.mark.timeout(1200)

POOL = LabPool("small", ("self-hosted", "linux", "small"), 14)
SINCE = 55
"""Number of jobs that end between the copy and its return, at least 50."""

LONG = 150.0
"""Duration in seconds of the jobs that run during the return of the copy and the scale-down after it."""

WITHIN = 300
SETTINGS = {
    **timings(
        epoch_every=2,
        pools_every=3,
        sweep_every=5,
        spent_after=3,
        unresolved_after=6,
        redelivery_again_after=3,
        catch_up_every=10,
    ),
}


@dataclass
class Run:
    """A running system, with the actions of the test."""

    system: System
    kube: KubeClient
    sent: int = 0

    def send(self, count: int, *, seconds: float) -> None:
        """Queue jobs of all accounts in turn."""
        for number in range(count):
            account = ACCOUNTS[number % len(ACCOUNTS)]
            body = {
                "repository": f"{account.login}/{account.repositories[0]}",
                "labels": list(POOL.labels),
                "count": 1,
                "duration_seconds": seconds,
            }
            self.system.lab("POST", "/jobs", body)
        self.sent += count

    def states(self) -> Counter[str]:
        """Return GitHub's jobs by state."""
        return Counter(self.system.lab("GET", "/stats")["jobs"])

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition is true."""
        end = time.monotonic() + WITHIN
        while not condition():
            assert time.monotonic() < end, f"{what}: not within {WITHIN} s; {self.states()}"
            time.sleep(0.3)

    def rows(self, statement: str) -> list[Any]:
        """Run a statement on Ostler's database."""
        engine = create_engine(self.system.postgres.url("ostler"))
        rows = run_sql(engine, statement)
        engine.dispose()
        return rows

    def scale(self, replicas: int) -> None:
        """Change the size of the pool."""
        patch_pool_replicas(self.kube, namespace=self.system.namespace, name=POOL.name, replicas=replicas)

    def lose_fifty_jobs(self) -> None:
        """Copy Postgres, let `SINCE` jobs end, and return the copy while long jobs run on every Pod."""
        self.send(10, seconds=0.5)
        self.until(lambda: self.states()["completed"] >= 10, "the first jobs ended")
        self.system.postgres.copy("backup")
        self.send(SINCE, seconds=0.5)
        self.until(lambda: self.states()["completed"] >= 10 + SINCE, "the jobs since the copy ended")
        self.send(12, seconds=LONG)
        self.until(lambda: self.states()["in_progress"] >= 10, "long jobs run")
        self.system.postgres.put_back("backup")

    def problems(self) -> tuple[str, ...]:
        """Return the problems that the lab's logs show."""
        return judge(read_log(self.system.github_log), read_log(self.system.kubelet_log)).problems


@pytest.fixture
def run(
    request: pytest.FixtureRequest,
    control_plane: ClusterAccess,
    admin: KubeClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """One pool of 14 Pods and every process of Ostler. The parameter is the program of the workers."""
    namespace = f"restore-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    program = getattr(request, "param", "ostler")
    options = Options(pools=(POOL,), real_pods=2, settings=SETTINGS, worker_program=(program,))
    with System(
        tmp_path_factory.mktemp("system"), options, say=print, namespace=namespace, control_plane=control_plane
    ) as system:
        system.wait_for_warm_pods(POOL.replicas, timeout=180)
        yield Run(system, admin)
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


@pytest.mark.slow
def test_a_copy_of_fifty_jobs_ago_harms_no_busy_pod_and_every_job_ends(run: Run) -> None:
    run.lose_fifty_jobs()
    run.scale(1)  # to whoever believes the copy every Pod is warm, and too many
    run.until(lambda: bool(run.rows("SELECT 1 FROM epochs WHERE older_since IS NOT NULL")), "the earlier state is seen")
    doctor = run.system.command("doctor", "--wide")
    assert doctor.returncode == 1
    assert "ostler restore" in doctor.stdout

    dry = run.system.command("restore", "--dry-run")
    assert dry.returncode == 0, dry.stdout
    assert run.rows("SELECT 1 FROM epochs WHERE older_since IS NOT NULL")
    done = run.system.command("restore")
    print(done.stdout)  # noqa: T201
    assert done.returncode == 0, done.stdout
    assert run.rows("SELECT 1 FROM claims WHERE state = 'executing'")

    run.until(lambda: run.states()["completed"] >= run.sent, "every job ended")
    run.scale(POOL.replicas)
    run.send(10, seconds=0.5)
    run.until(lambda: run.states()["completed"] >= run.sent, "new jobs ended")
    run.until(
        lambda: (
            not run.system.lab("GET", "/runners")["runners"]
            and not run.rows("SELECT 1 FROM claims WHERE ended_at IS NULL")
        ),
        "no runner left at GitHub, no claim left",
    )
    assert run.problems() == ()


@pytest.mark.seeds
@pytest.mark.parametrize("run", ["tests.e2e.unchecked_worker"], indirect=True)
def test_copy_alone_shows_busy_pods_as_warm(run: Run) -> None:
    run.lose_fifty_jobs()
    number = int(
        run.kube.request("GET", f"/api/v1/namespaces/{run.system.namespace}/configmaps/ostler-epoch")["data"]["epoch"]
    )
    run.rows(f"UPDATE epochs SET number = {number}, older_since = NULL, trusted_until = 'infinity'")  # noqa: S608
    run.scale(1)
    run.until(lambda: any("while it executed" in problem for problem in run.problems()), "a busy Pod was deleted")
