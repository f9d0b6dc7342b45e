"""Rows for the matcher, and a runtime for it: accounts, pools, offered Pods, queued jobs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import DateTime, Engine, text

from models.schema import metadata
from ostler.secrets import Secret
from ostler.settings import Settings
from tasks.claims.dispatch import Matched, run_matcher
from tasks.worker.transactions import Transactions
from tests.database import Database
from tests.integration.models.webhook_rows import NOW
from tests.rows import insert_pool
from tests.timed import arranged

WEB = "web-1"
PLENTY = 1000

_numbers = itertools.count(1)


class WakeKeys:
    """The wake keys of Redis. A key that is set is not set again until it is deleted."""

    def __init__(self) -> None:
        self.set: set[int] = set()

    def wake(self, pool_id: int) -> bool:
        """Set a pool's key. Return whether the key was not set before, so that a message is sent."""
        news = pool_id not in self.set
        self.set.add(pool_id)
        return news

    def clear_wake(self, pool_id: int) -> None:
        """Delete a pool's key."""
        self.set.discard(pool_id)


@dataclass
class Stage(Transactions):
    """One database and the processes on it. The stage is also the matcher's runtime."""

    engine: Engine
    settings: Settings
    wake_keys: WakeKeys = field(default_factory=WakeKeys)
    who: str = "test"

    def match(self, pool_id: int, *, now: datetime = NOW) -> Matched:
        """Run the matcher once."""
        return run_matcher(cast("Any", self), pool_id, now=now)

    def account(
        self, account_id: int, *, count: int = PLENTY, vcpu: int = PLENTY, memory: int = PLENTY, weight: float = 1.0
    ) -> int:
        """Insert an account. vCPU and GiB of its budget are whole numbers."""
        self._execute(
            """
            INSERT INTO accounts (id, login, weight, budget_count, budget_vcpu, budget_memory, created_at)
            VALUES (:id, :login, :weight, :count, :vcpu, :memory, :now)
            """,
            id=account_id,
            login=f"org-{account_id}",
            weight=weight,
            count=count,
            vcpu=vcpu * 1000,
            memory=memory * 1024,
            now=NOW,
        )
        return account_id

    def pool(self, *, vcpu: int = 2, memory: int = 4, template: str = "hash", autoscaled: bool = False) -> int:
        """Insert a pool. vCPU and GiB of its Pods are whole numbers."""
        name = f"pool-{next(_numbers)}"
        table = metadata.tables["pools"]
        times = {column.name: NOW for column in table.c if isinstance(column.type, DateTime) and not column.nullable}
        return insert_pool(
            self.engine,
            name,
            labels=[name],
            vcpu=vcpu * 1000,
            memory=memory * 1024,
            template_hash=template,
            autoscaled=autoscaled,
            **times,
        )

    def job(
        self,
        account_id: int,
        pool_id: int,
        *,
        age: float = 60,
        priority: int = 0,
        hold: str | None = None,
        scope: str | None = None,
    ) -> int:
        """Insert a queued job that is `age` seconds old."""
        return self._insert(
            """
            INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels,
                              state, pool_id, hold_reason, priority, queued_at, changed_at)
            VALUES (:id, :account, 1, 'org/app', :scope, 1, 1, 'build', '{}', 'queued', :pool, :hold, :priority,
                    :queued_at, :now) RETURNING id
            """,
            id=next(_numbers),
            account=account_id,
            scope=scope or f"orgs/org-{account_id}",
            pool=pool_id,
            hold=hold,
            priority=priority,
            queued_at=NOW - timedelta(seconds=age),
            now=NOW,
        )

    def pod(self, pool_id: int, *, web: str | None = WEB, template: str = "hash") -> str:
        """Insert a runner Pod and return its UID. The Pod is offered by `web`, unless `web` is None."""
        uid = f"pod-{next(_numbers)}"
        self._execute(
            """
            INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
            VALUES (:pool, 'runners', :uid, :uid, 'a', :template, :now)
            """,
            pool=pool_id,
            uid=uid,
            template=template,
            now=NOW,
        )
        if web is not None:
            self._execute(
                "INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until) VALUES (:uid, :pool, :web, 'p', :until)",
                uid=uid,
                pool=pool_id,
                web=web,
                until=NOW + timedelta(seconds=50),
            )
        return uid

    def spare(self, account_id: int, pool_id: int, *, age: float = 10, scope: str | None = None) -> int:
        """Insert a delivered claim without a job on a new Pod, and return its id."""
        uid = self.pod(pool_id, web=None)
        return self._insert(
            """
            INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory, state,
                                runner_name, created_at, changed_at, delivered_at, spare_since)
            SELECT 'job', p.id, p.uid, p.pool_id, :account, :scope, pools.vcpu, pools.memory, 'delivered', p.uid,
                   :since, :since, :since, :since
            FROM runner_pods p JOIN pools ON pools.id = p.pool_id WHERE p.uid = :uid RETURNING id
            """,
            account=account_id,
            scope=scope or f"orgs/org-{account_id}",
            uid=uid,
            since=NOW - timedelta(seconds=age),
        )

    def beats(self, web: str, *, ago: float = 0) -> None:
        """Record the last beat of a web process, `ago` seconds old."""
        self._execute(
            "INSERT INTO web_instances (id, started_at, beat_at) VALUES (:id, :at, :at)",
            id=web,
            at=NOW - timedelta(seconds=ago),
        )

    def rows(self, statement: str, **values: Any) -> Sequence[Any]:
        """Return the rows of a query."""
        with self.engine.connect() as db:
            return db.execute(text(statement), values).all()

    def change(self, statement: str, **values: Any) -> int:
        """Run a statement that returns no rows, and return how many rows it changed."""
        with self.engine.begin() as db:
            return db.execute(text(statement), values).rowcount

    def claimed(self) -> list[int]:
        """Return the jobs of live claims in the order in which they were claimed."""
        return [
            row.job_id
            for row in self.rows("SELECT job_id FROM claims WHERE ended_at IS NULL AND job_id IS NOT NULL ORDER BY id")
        ]

    def _execute(self, statement: str, **values: Any) -> None:
        with self.engine.begin() as db:
            db.execute(text(statement), values)

    def _insert(self, statement: str, **values: Any) -> int:
        with self.engine.begin() as db:
            return int(db.execute(text(statement), values).scalar_one())


def make_stage(database: Database, **changes: Any) -> Stage:
    """Return a stage with a live web process. `changes` are settings."""
    settings = Settings(
        database_url=database.url,
        redis_url=Secret("redis://localhost/0"),
        github_app_id="1",
        github_private_key=Secret("k"),
        webhook_secrets=(Secret("of-these-tests-alone"),),
        encryption_keys=(Secret("e"),),
        **arranged(changes),
    )
    stage = Stage(database.engine, settings)
    stage.beats(WEB)
    return stage
