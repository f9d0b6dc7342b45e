"""Two `ostler worker` processes with one GitHub: the limits that one of them learns bind the other too.

Redis and Postgres are real, and so are the messages on the queue `github`. GitHub counts the received calls. The events
of a claim show which worker decided on the claim.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text

from lab.processes import Child
from lab.redis import Redis
from ostler.secrets import Secret
from ostler.task_names import MINT
from ostler.wakes import Waker, producer
from tests.contract.github.conftest import APP_ID, ORG_INSTALLATION, Lab
from tests.contract.github.test_governor import mints
from tests.database import Database
from tests.rows import insert_pool
from tests.waiting import eventually

THREADS = 2
MOST_ROUNDS = 30
"""Number of successive messages. Each worker must get one of them: Redis serves the longest waiting worker first."""

SEEDS = ["", *(pytest.param(name, marks=pytest.mark.seeds) for name in ("a bucket per worker", "a flush forgets"))]

NO_CLUSTER = """
apiVersion: v1
kind: Config
current-context: none
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
"""


@dataclass
class Fleet:
    """The workers, and the claims to mint."""

    database: Database
    redis: Redis
    workers: list[Child]
    waker: Waker
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def claims(self, count: int) -> list[int]:
        """Return new claims that wait for their mint, each on its own Pod."""
        found = []
        with self.database.engine.begin() as db:
            for number in itertools.islice(self.numbers, count):
                row = db.execute(
                    text("""
                        WITH pod AS (
                            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash,
                                                     created_at)
                            SELECT id, 'runners', 'small-' || :number, 'u' || :number, 'a', 'h', now() FROM pools
                            RETURNING *
                        ), job AS (
                            INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt,
                                              name, labels, state, pool_id, queued_at, changed_at)
                            SELECT :number, 1, :installation, 'acme/app', 'orgs/acme', 1, 1, 'build', '{linux}',
                                   'claimed', pool_id, now(), now() FROM pod RETURNING *
                        )
                        INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id,
                                            installation_id, scope, vcpu, memory, state, stamp, created_at, changed_at)
                        SELECT 'job', job.id, pod.id, pod.uid, pod.pool_id, 1, :installation, 'orgs/acme', 1000, 1024,
                               'claimed', 'gave_up', now(), now() FROM pod, job RETURNING id
                    """),
                    {"number": number, "installation": ORG_INSTALLATION},
                ).one()
                found.append(int(row.id))
        return found

    def send(self, claims: list[int]) -> None:
        """Send the mint message of each claim."""
        for claim_id in claims:
            self.waker.send(MINT, claim_id=claim_id, chain_no=1)

    def decided(self, claims: list[int]) -> Counter[tuple[str, str]]:
        """Wait until each claim was minted or given up, and return the counts by worker and decision."""

        def found() -> list[tuple[str, str]]:
            with self.database.engine.connect() as db:
                rows = db.execute(
                    text("""
                        SELECT e.who, c.state FROM claims c JOIN claim_events e ON e.claim_id = c.id
                        WHERE c.id = ANY(:claims) AND c.state IN ('minted', 'releasing')
                    """),
                    {"claims": claims},
                )
                return [(row.who, row.state) for row in rows]

        eventually(lambda: len(found()) == len(claims))
        return Counter(found())

    def one_after_the_other(self, until: Callable[[Counter[tuple[str, str]]], bool]) -> Counter[tuple[str, str]]:
        """Let the workers decide on single claims, one after the other, until `until` is true of all decisions."""
        seen: Counter[tuple[str, str]] = Counter()
        for _ in range(MOST_ROUNDS):
            claims = self.claims(1)
            self.send(claims)
            seen += self.decided(claims)
            if until(seen):
                return seen
        raise AssertionError(f"not in {MOST_ROUNDS} rounds: {seen}")

    def all_have(self, state: str) -> Callable[[Counter[tuple[str, str]]], bool]:
        """Return a condition: each worker has brought a claim into this state."""
        everybody = {(f"worker:{worker.pid}", state) for worker in self.workers}
        return lambda seen: everybody <= seen.keys()


@contextlib.contextmanager
def fleet(lab: Lab, database: Database, redis: Redis, folder: Path, *, burst: int, seed: str = "") -> Iterator[Fleet]:
    """Run two workers on the queue `github`."""
    (folder / "kubeconfig").write_text(NO_CLUSTER)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))},
        "OSTLER_DATABASE_URL": database.url.reveal(),
        "OSTLER_REDIS_URL": redis.url,
        "OSTLER_GITHUB_API_URL": lab.url,
        "OSTLER_GITHUB_APP_ID": APP_ID,
        "OSTLER_GITHUB_PRIVATE_KEY": lab.private_key.reveal(),
        "OSTLER_WEBHOOK_SECRETS": "of-these-tests-alone",
        "OSTLER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "OSTLER_KUBECONFIG": str(folder / "kubeconfig"),
        "OSTLER_DISPATCH_URL": "http://127.0.0.1:1/runners/v1/dispatch",
        "OSTLER_WORKER_THREADS": str(THREADS),
        "GOVERNOR_BURST": str(burst),
        "GOVERNOR_SEED": seed,
    }
    with database.engine.begin() as db:
        db.execute(text("INSERT INTO accounts VALUES (1, 'acme', 1, 1000, 10000000, 10000000, '[]', now())"))
    insert_pool(database.engine)
    app = producer(Secret(redis.url))
    command = [sys.executable, "-m", "tests.contract.github.worker", "worker", "--queues=github"]
    workers = [Child(name, command, log=folder / f"{name}.log", env=environment) for name in ("worker-0", "worker-1")]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until(lambda worker=worker: " ready." in worker.log.read_text(), timeout=120)  # type: ignore[misc]
        waker = Waker(Secret(redis.url), app=app)
        yield Fleet(database, redis, workers, waker)
        waker.close()
    finally:
        for worker in workers:
            worker.kill()
        app.close()


def made(lab: Lab) -> int:
    """Return the number of runners in GitHub's log."""
    return sum(each["event"] == "runner_registered" for each in lab.log())


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_two_workers_share_one_bucket_of_ten_and_a_flush_gives_it_once_more(
    lab: Lab, database: Database, redis_server: Redis, tmp_path: Path, seed: str
) -> None:
    with fleet(lab, database, redis_server, tmp_path, burst=10, seed=seed) as workers:
        workers.one_after_the_other(workers.all_have("minted"))
        rest = workers.claims(40)
        workers.send(rest)
        workers.decided(rest)
        workers.one_after_the_other(workers.all_have("releasing"))

        assert (mints(lab) == made(lab) == 10) is (seed == "")

        workers.send(workers.claims(40))
        redis_server.flush()  # the bucket, and what is left of these messages
        again = workers.claims(40)
        workers.send(again)
        workers.decided(again)

        assert (10 < mints(lab) <= 20) is (seed == "")


@pytest.mark.parametrize("seed", SEEDS)
def test_retry_after_seen_by_one_worker_stops_the_other_and_survives_a_flush(
    lab: Lab, database: Database, redis_server: Redis, tmp_path: Path, seed: str
) -> None:
    with fleet(lab, database, redis_server, tmp_path, burst=1000, seed=seed) as workers:
        workers.one_after_the_other(workers.all_have("minted"))
        before = mints(lab)
        lab.fault(
            method="POST", path_regex="generate-jitconfig", status=403, headers={"Retry-After": "600"}, times=1000
        )

        workers.one_after_the_other(workers.all_have("releasing"))

        assert (mints(lab) == before + 1) is (seed != "a bucket per worker")
        redis_server.flush()
        workers.one_after_the_other(workers.all_have("releasing"))
        assert (mints(lab) == before + 1) is (seed == "")
