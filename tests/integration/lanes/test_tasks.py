"""The matcher, the reconciler and the watch's tasks continue while a row of another subject is locked (law L14)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from k8s_adapters.pools.pools import get_pool, patch_pool_replicas
from models.db.engine import make_engine
from tasks.pools.autoscale import autoscale
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.pools.watch_reports import pods_changed
from tests.database import Database
from tests.integration.lanes.locks import locked
from tests.integration.matching.stage import Stage as Matching
from tests.integration.matching.stage import make_stage
from tests.integration.tasks.conftest import Stage, clusterless, stage
from tests.integration.tasks.pools.test_autoscale import fresh, queue
from tests.integration.tasks.pools.test_autoscale import pool as autoscaled

__all__ = ["clusterless", "fresh", "stage"]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def matching(database: Database) -> Iterator[Matching]:
    """A stage of the matcher, which waits for locks as long as a worker does."""
    engine = make_engine(database.url, pool_size=10, application="a worker")
    yield replace(make_stage(database), engine=engine)
    engine.dispose()


@pytest.fixture
def worker(database: Database, stage: Stage) -> Iterator[Stage]:
    """A stage with a cluster, which waits for locks as long as a worker does."""
    stage.rt.engine = make_engine(database.url, pool_size=10, application="a worker")
    yield stage
    stage.rt.engine.dispose()


@pytest.mark.parametrize(
    ("row", "pods"),
    [
        ("SELECT 1 FROM jobs WHERE id = (SELECT id FROM jobs ORDER BY queued_at LIMIT 1) FOR NO KEY UPDATE", 1),
        ("SELECT 1 FROM accounts WHERE id = 1 FOR NO KEY UPDATE", 1),
        ("SELECT 1 FROM runner_pods WHERE id = (SELECT min(id) FROM runner_pods) FOR NO KEY UPDATE", 3),
        ("SELECT 1 FROM offers WHERE pod_uid = (SELECT min(pod_uid) FROM offers) FOR UPDATE", 3),
    ],
    ids=["jobs", "accounts", "runner_pods", "offers"],
)
def test_dispatch_claims_another_job_while_a_row_is_locked(
    matching: Matching, database: Database, row: str, pods: int
) -> None:
    """One Pod for two jobs, the older one locked; or one job for three Pods, one of them locked."""
    pool = matching.pool()
    matching.job(matching.account(1), pool, age=500)
    if pods == 1:
        matching.job(matching.account(2), pool, age=300)
    for _ in range(pods):
        matching.pod(pool)

    with locked(database.url, row) as waits:
        matching.match(pool)
        claimed = matching.claimed()

    assert len(claimed) == 1
    waits.assert_short()


def test_dispatch_of_another_pool_follows_soon_when_a_matcher_holds_the_first(
    matching: Matching, database: Database
) -> None:
    """The worker has one thread. It finds the advisory lock of the first pool held, and runs the second pool next."""
    first, second = matching.pool(), matching.pool()
    wanted = matching.job(matching.account(1), second)
    matching.job(1, first)
    matching.pod(first)
    matching.pod(second)

    with locked(database.url, "SELECT pg_advisory_xact_lock(:pool)", pool=first) as waits:
        _tolerate(lambda: matching.match(first))
        matching.match(second)
        claimed = matching.claimed()

    assert claimed == [wanted]
    waits.assert_short()


def _tolerate(call: object) -> None:
    """Run a turn, and ignore a failure because of its own locked row."""
    try:
        call()  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001  what a locked row of its own raises is the lane's business
        print(f"its own turn ended with {type(error).__name__}")  # noqa: T201


@pytest.mark.parametrize("table", ["runner_pods", "claims"])
def test_reconcile_replaces_another_spent_pod_while_a_row_is_locked(
    worker: Stage, database: Database, table: str
) -> None:
    worker.pool(replicas=2)
    pools.run()
    for message in worker.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    first, second = sorted(worker.pods())
    uid = worker.pods()[first].uid
    worker.job(7, state="running")
    worker.claim(first, job_id=7, state="executing", runner="r-1")
    for pod in (first, second):
        worker.finish(pod)
    (pool,) = worker.rows("SELECT id FROM pools")
    column = "pod_uid" if table == "claims" else "uid"

    with locked(database.url, f"SELECT 1 FROM {table} WHERE {column} = :uid FOR NO KEY UPDATE", uid=uid) as waits:  # noqa: S608  one of two literals above
        for _ in range(2):
            _tolerate(lambda: reconcile.run(pool_id=pool.id))
        (row,) = worker.rows("SELECT terminal_at FROM runner_pods WHERE name = :name", name=second)
        names = set(worker.pods())

    assert row.terminal_at is not None
    assert names - {first, second}, "no Pod was created in its place"
    waits.assert_short()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("lane", ["pools", "autoscale"])
def test_other_pools_are_mirrored_and_scaled_while_a_pool_is_locked(
    worker: Stage, database: Database, lane: str
) -> None:
    autoscaled(worker, "one")
    autoscaled(worker, "two")
    queue(worker, 3, name="one")
    queue(worker, 3, name="two")
    if lane == "pools":
        for name in ("one", "two"):
            patch_pool_replicas(worker.kube, namespace=worker.namespace, name=name, replicas=4)

    with locked(database.url, "SELECT 1 FROM pools WHERE name = 'one' FOR NO KEY UPDATE") as waits:
        _tolerate({"pools": pools, "autoscale": autoscale}[lane].run)
        (row,) = worker.rows("SELECT replicas FROM pools WHERE name = 'two'")
        two = get_pool(worker.kube, namespace=worker.namespace, name="two")

    assert two is not None
    assert two.replicas == 4
    assert lane == "autoscale" or row.replicas == 4
    waits.assert_short()


def test_watch_has_other_claims_checked_while_a_claim_is_locked(clusterless: Stage, database: Database) -> None:
    clusterless.rt.engine = make_engine(database.url, pool_size=10, application="a worker")
    claims = []
    for number in (1, 2):
        clusterless.add_pod(f"pod-{number}")
        clusterless.job(number)
        claims.append(clusterless.claim(f"pod-{number}", job_id=number, state="delivered", runner=f"r-{number}"))

    with locked(database.url, "SELECT 1 FROM claims WHERE id = :id FOR NO KEY UPDATE", id=claims[0]) as waits:
        _tolerate(lambda: pods_changed.run(namespace="none", executing=["pod-1", "pod-2"]))
        sent = clusterless.outbox.take("ostler.pod_executes")

    assert {"claim_id": claims[1]} in sent
    waits.assert_short()
    clusterless.rt.engine.dispose()
