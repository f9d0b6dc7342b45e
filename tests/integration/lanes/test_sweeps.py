"""Each sweep repairs one subject while a row of another one is locked (law L14)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from github_adapters.endpoints.deliveries import DeliverySeen
from github_adapters.endpoints.jobs import JobSeen
from github_adapters.endpoints.runners import RunnerSeen
from k8s_adapters.calls.client import KubeClient
from k8s_adapters.pools.pools import create_pool
from models.db.engine import make_engine
from ostler.clock import utcnow
from ostler.errors import Busy
from ostler.upstreams import TALLY
from rules.claims.pod_view import PodView
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.worker import runtime as current
from tests.database import Database
from tests.integration.lanes.locks import locked
from tests.integration.tasks.conftest import RUNNER, Stage, StubRuntime
from tests.integration.tasks.listing import job
from tests.integration.tasks.sweeps.family import FAMILY, GitHub, Member
from tests.integration.tasks.sweeps.test_family import forget_looks, see_own_nodes, tidy

pytestmark = pytest.mark.timeout(300)

JOB = "SELECT 1 FROM jobs WHERE id = 7 FOR NO KEY UPDATE"
CLAIM = "SELECT 1 FROM claims WHERE pod_uid = :uid FOR NO KEY UPDATE"
POD = "SELECT 1 FROM runner_pods WHERE uid = :uid FOR NO KEY UPDATE"
EXECUTION = "SELECT 1 FROM executions WHERE job_id = 7 FOR NO KEY UPDATE"

ROWS: Mapping[str, tuple[str, ...]] = {
    "resume": (JOB, CLAIM, POD),
    "rematch": (JOB,),
    "stale_claims": (JOB, CLAIM, POD),
    "unused_runners": (JOB, CLAIM, POD),
    "missing_pods": (JOB, CLAIM, POD),
    "missing_stamps": (JOB, CLAIM, POD),
    "redelivery": ("SELECT 1 FROM redeliveries WHERE guid = 'a0' FOR NO KEY UPDATE",),
    "unresolved_jobs": (JOB,),
    "orphaned_stamps": (POD,),
    "unresponsive_pods": (POD,),
    "gone_nodes": (POD,),
    "finished_jobs": (JOB, CLAIM, POD),
    "orphaned_runners": (CLAIM, POD, "SELECT 1 FROM mint_attempts WHERE runner_id = 77 FOR NO KEY UPDATE"),
    "orphaned_service_accounts": (POD,),
    "prune": ("SELECT 1 FROM deliveries WHERE guid = 'a0' FOR UPDATE",),
    "unidentified_executions": (JOB, CLAIM, POD),
    "persistent_runners": (CLAIM, POD),
    "catch_up": (JOB,),
    "gates": ("SELECT 1 FROM gates WHERE upstream = 'github' FOR NO KEY UPDATE",),
}
"""The rows of the first subject. One of them at a time is locked."""

BOTH = [
    pytest.param(member, row, id=f"{member.name}-{row.split()[3]}") for member in FAMILY for row in ROWS[member.name]
]


@dataclass(slots=True)
class Subject(Stage):
    """A stage that plays the stories of a `Member` on one Pod, with its own job, runner and claim."""

    number: int = 0
    pod: str = ""

    def pods(self) -> dict[str, PodView]:
        """Return the only Pod."""
        return {name: pod for name, pod in Stage.pods(self).items() if name == self.pod}

    def job(self, job_id: int, *, state: str = "claimed") -> None:
        """Insert a job that no other subject uses."""
        Stage.job(self, job_id + 100 * self.number, state=state)

    def claim(self, pod: str, *, job_id: int | None, runner: str | None = None, **what: Any) -> int:
        """Insert a claim with a job and a runner that no other subject uses."""
        own = None if job_id is None else job_id + 100 * self.number
        claim = Stage.claim(self, pod, job_id=own, runner=runner and runner_of(self.number), **what)
        self.rows("UPDATE mint_attempts SET runner_id = :id WHERE claim_id = :claim", id=77 + self.number, claim=claim)
        return claim


def runner_of(number: int) -> str:
    return f"{RUNNER}{number or ''}"


@dataclass
class TwoRunners(GitHub):
    """A GitHub with a runner for each subject."""

    removed_runners: set[int] = field(default_factory=set)

    def list_runners(self, **given: Any) -> list[RunnerSeen]:
        one = GitHub.list_runners(self, **given)
        both = [replace(each, id=77 + number, name=runner_of(number)) for each in one for number in range(2)]
        return [each for each in both if each.id not in self.removed_runners]

    def delete_runner(self, *, runner_id: int, **_: Any) -> None:
        self._answer()
        if self.runner == "busy":
            raise Busy("busy")
        self.deleted.append(runner_id)
        self.removed_runners.add(runner_id)

    def get_job(self, *, job_id: int, **given: Any) -> JobSeen | None:
        found = GitHub.get_job(self, job_id=job_id, **given)
        if found is None or found.runner_name is None:
            return found
        return replace(found, runner_name=runner_of(job_id // 100))


@pytest.fixture(scope="module")
def home(admin: KubeClient) -> Iterator[str]:
    """A namespace with a pool for all tests here. The remains of each test are removed before the next one."""
    name = f"lanes-{secrets.token_hex(6)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    spec = {"image": "runner:1", "runnerLabels": ["self-hosted", "small"], "replicas": 3}
    create_pool(admin, namespace=name, name="small", spec=spec)
    yield name
    admin.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def stage(database: Database, admin: KubeClient, home: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Three warm Pods, and a runtime that waits for locks as long as a worker does."""
    see_own_nodes(monkeypatch)
    rt = StubRuntime(database, admin, home)
    current.install(rt)  # type: ignore[arg-type]
    stage = Stage(rt, home, admin)
    tidy(stage)
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    stage.outbox.sent.clear()
    TALLY.take()
    rt.engine = make_engine(database.url, pool_size=10, application="a worker")
    yield stage
    rt.engine.dispose()
    current.install(None)


def deliveries(subject: Subject, _github: GitHub) -> None:
    """A delivery that is old enough for the pruning."""
    guid = f"a{subject.number}"
    subject.rows(
        "INSERT INTO deliveries VALUES (:guid, 'workflow_job', 'queued', 1, 'accepted', now() - interval '8 d')",
        guid=guid,
    )


def lost_webhooks(subject: Subject, github: GitHub) -> None:
    """A delivery that failed, and that was requested once before."""
    at = utcnow() - timedelta(seconds=10)
    github.attempts.append(
        DeliverySeen(
            id=5 + subject.number,
            guid=f"a{subject.number}",
            delivered_at=at,
            accepted=False,
            event="workflow_job",
            action="queued",
        )
    )
    if subject.number == 0:
        subject.rows("INSERT INTO web_instances (id, started_at, beat_at) SELECT 'w', now(), now() + interval '1 h'")
        subject.rows(
            """
            INSERT INTO redeliveries (guid, delivery_id, first_failed_at, asks, due_at)
            VALUES ('a0', 5, now() - interval '5 min', 1, now() - interval '1 s')
            """
        )


def untold_jobs(subject: Subject, github: GitHub) -> None:
    """A job without any webhook. The first one lacks only the webhook of its end."""
    if subject.number == 1:
        github.listing.run(job(107))
        return
    Stage.job(subject, 7, state="running")
    subject.rows("UPDATE jobs SET queued_at = t.at, changed_at = t.at FROM (SELECT now() - interval '5 min' AS at) t")
    github.listing.run(job(7, "completed", conclusion="success", minutes=90, over=61), status="in_progress")


def caught_up(stage: Stage, _github: GitHub) -> int:
    return len(stage.rows("SELECT 1 FROM jobs WHERE (id = 7 AND state = 'completed') OR id = 107"))


def failing_upstreams(subject: Subject, _github: GitHub) -> None:
    """An upstream whose gate must trip. It has a row that was written while the gate was ok."""
    upstream = ("github", "kubernetes")[subject.number]
    if subject.number == 0:
        subject.rows("INSERT INTO gates (upstream) VALUES ('github') ON CONFLICT DO NOTHING")
    subject.rows("INSERT INTO upstream_calls VALUES (:upstream, now(), 20, 20)", upstream=upstream)


OWN: Mapping[str, Callable[[Subject, GitHub], object]] = {
    "prune": deliveries,
    "redelivery": lost_webhooks,
    "catch_up": untold_jobs,
    "gates": failing_upstreams,
}
"""Sweeps whose `Member` can stall one subject only."""


def pruned(stage: Stage, _github: GitHub) -> int:
    return 2 - len(stage.rows("SELECT FROM deliveries"))


DONE: Mapping[str, Callable[[Stage, GitHub], int]] = {"catch_up": caught_up, "prune": pruned}


def test_every_sweep_has_rows_that_are_locked() -> None:
    assert set(ROWS) == {member.name for member in FAMILY}


@pytest.mark.parametrize(("member", "row"), BOTH)
def test_sweep_repairs_another_subject_while_a_row_is_locked(
    stage: Stage, database: Database, member: Member, row: str
) -> None:
    github = TwoRunners()
    stage.rt.github = github
    names = sorted(stage.pods())
    uids = {name: pod.uid for name, pod in stage.pods().items()}
    first, second = (
        Subject(stage.rt, stage.namespace, stage.kube, number=number, pod=names[number]) for number in range(2)
    )
    stall, repaired = OWN.get(member.name, member.stall), DONE.get(member.name, member.repaired)
    stall(first, github)
    stall(second, github)
    forget_looks(stage)

    values = {"uid": uids[first.pod]} if ":uid" in row else {}
    with locked(database.url, row, **values) as waits:
        with suppress(OperationalError):  # a part that met the locked row fails the tick when all others are done
            member.task.run()
        done = repaired(stage, github)

    assert done >= 1
    waits.assert_short()
    if done == 1:  # what the row belongs to is repaired once the row is free
        forget_looks(stage)
        member.task.run()
        assert repaired(stage, github) == 2
