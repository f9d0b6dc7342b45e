"""A runtime for tasks that run in the test's own process: real Postgres, a real API server, and recorded messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Row

from github_adapters.endpoints.app import InstallationSeen
from github_adapters.endpoints.jobs import JobSeen
from github_adapters.endpoints.pages import ListPage
from github_adapters.endpoints.runners import RunnerSeen
from github_adapters.endpoints.runs import RunSeen
from k8s_adapters.calls.client import KubeClient, make_client
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners.events import Regarding
from k8s_adapters.runners.pods import list_pods
from k8s_adapters.runners.runner_scripts import RunnerScripts
from lab.control_plane import ClusterAccess
from lab.redis import Redis
from models.claims import releases
from models.db.engine import in_transaction, transaction
from ostler.clock import utcnow
from ostler.errors import Busy, Forbidden, Gone, NotInstalled, Retryable
from ostler.secrets import Secret
from ostler.timings import Timings
from ostler.wakes import Waker
from rules.claims.pod_view import PodView
from rules.intake.events import WorkflowJobEvent
from rules.pools.pool_spec import PoolSpec
from rules.routing.scopes import Scope
from tasks.claims.release import release
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.worker import runtime as current
from tasks.worker.transactions import Transactions
from tests.database import Database
from tests.integration.tasks.listing import Listing, home_of, job_seen
from tests.outbox import Outbox
from tests.releases import release_claim
from tests.rows import insert_pool, run_sql
from tests.timed import changed

RUNNER = "small-0-abcdef01"


def run_seen(
    run_id: int, status: str, conclusion: str | None = None, *, attempt: int = 1, minutes: float = 60
) -> RunSeen:
    """Return a run of `acme/shop` that was created some minutes ago."""
    created_at = utcnow() - timedelta(minutes=minutes)
    return RunSeen(
        id=run_id,
        attempt=attempt,
        status=status,
        conclusion=conclusion,
        created_at=created_at,
        home=home_of("acme/shop"),
    )


@dataclass(frozen=True, slots=True)
class StubSettings:
    """The settings that these tasks read."""

    namespace: str
    elevated_namespace: str | None = None
    allowed_pod_security: str = "restricted"
    timings: Timings = field(default_factory=Timings)
    new_accounts: str = "serve"
    dispatch_url: str = "http://127.0.0.1:1/runners/v1/dispatch"
    dispatch_ca: str | None = None
    hooks_image: str | None = None
    buildkit_image: str | None = None
    dind_image: str | None = None
    token_audience: str = "ostler-dispatch"
    start_timeout: float = 300
    node_lost_after: float = 600
    redelivery_kept: float = 259200
    default_budget_count: int = 20
    default_budget_vcpu: int = 80
    default_budget_memory_gib: int = 320
    keep_events: float = 2592000
    keep_jobs: float = 7776000
    sweeps_paused: tuple[str, ...] = ()
    repair_budget_percent: float = 10
    pod_job_annotations: bool = False
    check_runs_after: int = 0

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Return every namespace with runner Pods."""
        return (self.namespace,) if self.elevated_namespace is None else (self.namespace, self.elevated_namespace)


class Telling:
    """Records the Events instead of sending them: (name of the object, type, reason, note)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, str]] = []

    def record(self, regarding: Regarding, kind: str, reason: str, note: str) -> None:
        """Record one Event."""
        self.told.append((regarding.name, kind, reason, note))


class StubRuntime(Transactions):
    """The runtime of `tasks.worker.runtime`, with the GitHub of the test."""

    def __init__(self, database: Database, kube: KubeClient | None, namespace: str) -> None:
        self.engine = database.engine
        self.settings = StubSettings(namespace)
        self.who = "test"
        self.waker = Outbox()
        self.github: Any = None
        self._kube = kube
        self.events = Telling()
        self.scripts = RunnerScripts()

    @property
    def timings(self) -> Timings:
        """The timings among the settings."""
        return self.settings.timings

    @property
    def kube(self) -> KubeClient:
        """Return the client of the cluster. Law L15 is tested here too."""
        assert not in_transaction()
        assert self._kube is not None
        return self._kube


@dataclass(slots=True)
class Stage:
    """One namespace, one database, and the acts and queries of the tests."""

    rt: StubRuntime
    namespace: str
    kube: KubeClient
    names: list[str] = field(default_factory=list)

    @property
    def outbox(self) -> Outbox:
        """Return the messages that the tasks sent."""
        return self.rt.waker

    def pool(self, name: str = "small", *, replicas: int, **more: Any) -> PoolSpec:
        """Create a pool. `more` are fields of its spec."""
        spec = {"image": "runner:1", "runnerLabels": ["self-hosted", name], "replicas": replicas, **more}
        return create_pool(self.kube, namespace=self.namespace, name=name, spec=spec)

    def rows(self, statement: str, **parameters: Any) -> list[Row[Any]]:
        """Run a statement and return its rows."""
        return run_sql(self.rt.engine, statement, **parameters)

    def twice_at_once(self, run: Callable[[], None]) -> None:
        """Run a sweep in two threads. Both have asked GitHub before either continues, as if the first took too long."""
        asked, barrier = threading.Event(), threading.Barrier(2, timeout=90)

        def meanwhile() -> None:
            asked.set()
            barrier.wait()

        self.rt.github.meanwhile = meanwhile
        threads = [threading.Thread(target=run) for _ in range(2)]
        threads[0].start()
        assert asked.wait(90)
        self.rows("UPDATE sweeps SET leased_until = now() - interval '1 s'")
        threads[1].start()
        for thread in threads:
            thread.join()

    def pods(self) -> dict[str, PodView]:
        """Return the Pods that are not terminating, by name."""
        found = list_pods(self.kube, namespace=self.namespace)
        return {pod.name: pod for pod in found if not pod.terminating}

    def service_accounts(self) -> set[str]:
        """Return the names of the ServiceAccounts."""
        items = self.kube.request("GET", f"/api/v1/namespaces/{self.namespace}/serviceaccounts")["items"]
        return {item["metadata"]["name"] for item in items}

    def job(self, job_id: int, *, state: str = "claimed") -> None:
        """Insert a job of the account `acme`."""
        self.rows(
            """
            INSERT INTO accounts VALUES (1, 'acme', 1, 10, 100000, 100000, '[]', now()) ON CONFLICT DO NOTHING
            """
        )
        self.rows(
            """
            INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels,
                              state, pool_id, queued_at, changed_at)
            SELECT :id, 1, 501, 'acme/shop', 'orgs/acme', 1, 1, 'build', '{self-hosted}', :state, min(id), now(), now()
            FROM pools
            """,
            id=job_id,
            state=state,
        )

    def claim(self, pod: str, *, job_id: int | None, state: str, age: float = 0, runner: str | None = None) -> int:
        """Insert a live job claim on a Pod that is `age` seconds old. A claim with a `runner` also gets its attempt."""
        delivered = state in {"delivered", "executing"}
        (row,) = self.rows(
            """
            INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope,
                                vcpu, memory, state, stamp, created_at, changed_at, minted_at, delivered_at,
                                spare_since, runner_name)
            SELECT 'job', :job, p.id, p.uid, p.pool_id, 1, 501, 'orgs/acme', 2000, 4096, :state, 'gave_up', t.at, t.at,
                   t.at, CASE WHEN :delivered THEN t.at END, CASE WHEN :delivered AND :spare THEN t.at END, :runner
            FROM runner_pods p, (SELECT now() - make_interval(secs => :age) AS at) t WHERE p.name = :pod RETURNING id
            """,
            job=job_id,
            pod=pod,
            state=state,
            age=age,
            delivered=delivered,
            spare=job_id is None,
            runner=runner,
        )
        claim_id: int = row.id
        if delivered:
            ended = "UPDATE runner_pods SET poller_ended_at = now() - make_interval(secs => :age) WHERE name = :pod"
            self.rows(ended, age=age, pod=pod)
        if runner is not None:
            self.rows(
                """
                INSERT INTO mint_attempts (claim_id, runner_name, runner_id, outcome, created_at)
                VALUES (:claim, :runner, 77, 'minted', now())
                """,
                claim=claim_id,
                runner=runner,
            )
        return claim_id

    def claim_without_job(self, pod: str, **what: Any) -> int:
        """Insert a live claim of the account `acme` without a job."""
        self.job(999)
        self.rows("DELETE FROM jobs WHERE id = 999")
        return self.claim(pod, job_id=None, **what)

    def add_pod(self, name: str) -> None:
        """Insert the row of a Pod in every pool. There is no Pod in the cluster, and the UID is the name."""
        self.rows(
            """
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            SELECT id, namespace, :name, :name, 'a', 'h', now() FROM pools
            """,
            name=name,
        )

    def retire_claim(self, pod: str) -> int:
        """Insert a live retire claim on a Pod."""
        (row,) = self.rows("SELECT id FROM runner_pods WHERE name = :name", name=pod)
        claim = transaction(
            self.rt.engine,
            lambda db: releases.insert_retire(db, row.id, now=utcnow(), who="test", why="test", due_after=10),
        )
        assert claim is not None
        return claim

    def later(self, seconds: float = 61) -> None:
        """Make the checks of runners `seconds` older, so that runners are listed again and earlier results count."""
        self.rows("UPDATE runner_lists SET taken_at = taken_at - make_interval(secs => :s)", s=seconds)
        self.rows(
            """
            UPDATE claims SET runner_idle_at = runner_idle_at - make_interval(secs => :s),
                   runner_absent_at = runner_absent_at - make_interval(secs => :s)
            """,
            s=seconds,
        )

    def with_settings(self, **changes: Any) -> None:
        """Change settings for this test."""
        self.rt.settings = changed(self.rt.settings, **changes)

    def release(self, claim_id: int, *, reason: str = "test") -> None:
        """Release a claim as the senders of `ostler.release` do."""
        release_claim(self.rt.engine, claim_id, reason=reason)

    def released(self) -> None:
        """Run the releases that were sent."""
        for message in self.outbox.take("ostler.release"):
            release.run(**message)

    def see(self, claim_id: int) -> Row[Any]:
        """Return a claim with the state of the job that it has or had."""
        (row,) = self.rows(
            """
            SELECT c.*, j.state AS job_state, j.hold_reason, j.conclusion FROM claims c
            LEFT JOIN jobs j ON j.id = c.job_id WHERE c.id = :id
            """,
            id=claim_id,
        )
        return row

    def finish(self, name: str, *, phase: str = "Succeeded", poller: int | None = 0, runner: int | None = 0) -> None:
        """Write the kubelet's status of a Pod whose containers have ended. None: the container still runs."""
        codes = {"poller": poller, "runner": runner}
        containers: list[dict[str, Any]] = [
            {"name": each, "state": {"terminated": {"exitCode": code}}}
            for each, code in codes.items()
            if code is not None
        ]
        self._report(name, phase, containers)

    def execute_job(self, name: str) -> None:
        """Write the kubelet's status after the poller wrote a JIT, while container `runner` executes a job."""
        poller = {"name": "poller", "state": {"terminated": {"exitCode": 0}}}
        self._report(name, "Running", [poller, {"name": "runner", "state": {"running": {}}, "ready": True}])

    def poll_on(self, name: str) -> None:
        """Write the kubelet's status of a Pod whose containers both run, without a JIT."""
        self._report(name, "Running", [{"name": each, "state": {"running": {}}} for each in ("poller", "runner")])

    def _report(self, name: str, phase: str, containers: list[dict[str, Any]]) -> None:
        known = {"image": "runner:1", "imageID": "", "ready": False, "restartCount": 0}
        body = {"status": {"phase": phase, "containerStatuses": [{**known, **each} for each in containers]}}
        self.kube.request(
            "PATCH",
            f"/api/v1/namespaces/{self.namespace}/pods/{name}/status",
            body=body,
            content_type="application/merge-patch+json",
        )


@pytest.fixture
def clusterless(database: Database) -> Iterator[Stage]:
    """A stage with one pool and without a cluster."""
    rt = StubRuntime(database, None, "none")
    current.install(rt)  # type: ignore[arg-type]
    stage = Stage(rt, "none", None)  # type: ignore[arg-type]
    insert_pool(database.engine, uid="p", namespace="none", labels=["self-hosted"])
    yield stage
    current.install(None)


@pytest.fixture
def stage(database: Database, control_plane: ClusterAccess, namespace: str) -> Iterator[Stage]:
    """A stage whose runtime the tasks of this process use."""
    kube = make_client(kubeconfig=str(control_plane.kubeconfig))
    rt = StubRuntime(database, kube, namespace)
    current.install(rt)  # type: ignore[arg-type]
    yield Stage(rt, namespace, kube)
    current.install(None)
    kube.close()


@dataclass(slots=True)
class StubGitHub:
    """A GitHub with at most one runner, one job and its run. `broken` fails every call, `keeps` every deletion.

    The App is not installed in the installation `without_app`. The organisation of all other installations has the
    login `login`. `optional` records for each check of a job whether the check may be dropped.
    """

    runner: str | None = None
    job: tuple[str, str | None, str | None] | None = ("queued", None, None)
    run: tuple[str, str | None] = ("in_progress", None)
    broken: bool = False
    removed: bool = False
    keeps: bool = False
    without_app: int | None = None
    login: str = "acme"
    version_ends: datetime | None = None
    deleted: list[int] = field(default_factory=list)
    optional: list[bool] = field(default_factory=list)
    listing: Listing = field(default_factory=Listing)

    def _answer(self) -> None:
        if self.broken:
            raise Retryable("down")
        if self.removed:
            raise Gone("the App is no longer installed for this account or repository")

    def list_runners(self, *, installation_id: int, scope: Scope, **_: Any) -> list[RunnerSeen]:
        """Return the runner in the state that the test set."""
        self._answer()
        self._reach(installation_id, scope)
        if self.runner is None:
            return []
        status = "offline" if self.runner in {"offline", "updating"} else "online"
        version = "2.336.0" if self.runner == "updating" else None
        return [RunnerSeen(id=77, name=RUNNER, status=status, busy=self.runner == "busy", labels=(), version=version)]

    def _reach(self, installation_id: int, scope: Scope) -> None:
        if installation_id == self.without_app:
            raise NotInstalled("the App is no longer installed for this account or repository")
        if scope.login != self.login:
            raise Gone("GitHub answered 404")

    def find_runner(self, *, installation_id: int, scope: Scope, **_: Any) -> RunnerSeen | None:
        """Return the runner."""
        return next(iter(self.list_runners(installation_id=installation_id, scope=scope)), None)

    def runner_ends(self, **_: Any) -> datetime | None:
        """Return when GitHub begins to refuse runners of any version."""
        self._answer()
        return self.version_ends

    def get_installation(self, **_: Any) -> InstallationSeen:
        """Return the installation of account 1."""
        self._answer()
        return InstallationSeen(account_id=1, login=self.login, suspended=False)

    def delete_runner(self, *, installation_id: int, scope: Scope, runner_id: int, **_: Any) -> None:
        """Delete the runner, unless it is busy."""
        self._answer()
        self._reach(installation_id, scope)
        if self.keeps:
            raise Forbidden("the App may not delete runners")
        if self.runner == "busy":
            raise Busy("busy")
        self.deleted.append(runner_id)
        self.runner = None

    def get_job(self, *, job_id: int, optional: bool = False, **_: Any) -> JobSeen | None:
        """Return the job."""
        self.optional.append(optional)
        self._answer()
        if self.job is None:
            return None
        status, conclusion, runner = self.job
        return job_seen(job_id, status, conclusion, runner=runner)

    def get_run(self, *, run_id: int, **_: Any) -> RunSeen:
        """Return the run."""
        self._answer()
        return run_seen(run_id, *self.run)

    def list_runs(self, **asked: Any) -> ListPage[RunSeen]:
        """Return a page of the runs that the test listed."""
        self._answer()
        return self.listing.list_runs(**asked)

    def list_run_jobs(self, **asked: Any) -> ListPage[WorkflowJobEvent]:
        """Return a page of the jobs of a run."""
        self._answer()
        return self.listing.list_run_jobs(**asked)


@pytest.fixture
def github(stage: Stage) -> StubGitHub:
    """The stage's GitHub."""
    stub = StubGitHub()
    stage.rt.github = stub
    return stub


@pytest.fixture
def waker(redis_server: Redis) -> Iterator[Waker]:
    """The sender of messages, with the run's Redis."""
    found = Waker(Secret(redis_server.url))
    yield found
    found.close()


@pytest.fixture
def pod(stage: Stage, github: StubGitHub) -> str:
    """A Pod of a pool with two Pods."""
    del github
    stage.pool(replicas=2)
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    stage.outbox.sent.clear()
    return min(stage.pods())
