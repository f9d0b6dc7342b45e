"""Time that the REST API takes for lists and for the usage of a month at 100,000 jobs, and costs for the intake.

Run `python -m benchmarks.rest_api` in the project's folder. Everything runs on this machine: Postgres, the web process,
the client. The costs are ratios of rounds that alternate in one run, so that a busy machine affects both sides equally.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import uvicorn
from cryptography.fernet import Fernet
from fastapi import FastAPI
from sqlalchemy import Engine, text
from starlette.applications import Starlette
from starlette.routing import Route

from lab.postgres import Postgres
from lab.processes import free_port
from models import api_tokens
from models.db import engine, migrate
from models.db.engine import make_engine, transaction
from ostler.clock import utcnow
from ostler.secrets import Secret
from ostler.settings import Settings
from rules.changes import Author, Via
from rules.token_scopes import TokenScope
from web.api.app import build_api
from web.api.database import Database
from web.intake import webhooks
from web.intake.webhooks import Intake

JOBS = 100_000
REQUESTS = 2000
ROUNDS = 8
DELIVERIES = 2000
AT_ONCE = 100
SECRET = "a secret of this run"

_FILL = """
    INSERT INTO accounts SELECT n, 'account-' || n, 1, 10, 10, 10, '[]', now() FROM generate_series(1, 1000) n;
    INSERT INTO pools (uid, namespace, name, image, labels, runner_group_id, vcpu, memory, replicas, allowed_accounts,
                       allowed_repositories, routing_priority, template_hash, created_at)
    SELECT n, 'r', 'pool-' || n, 'i', '{linux}', 1, 1000, 1024, 1, '{}', '{}', 0, 'h', now()
    FROM generate_series(1, 50) n;
    INSERT INTO jobs (id, account_id, repository, scope, run_id, run_attempt, name, labels, state, pool_id,
                      queued_at, completed_at, changed_at)
    SELECT n, 1 + n % 1000, 'acme/repo-' || n % 3000, 'orgs/acme', 1, 1, 'build', '{linux}',
           CASE WHEN n % 10 < 9 THEN 'completed' ELSE 'queued' END, 1 + n % 50, now() - interval '10 min',
           CASE WHEN n % 10 < 9 THEN now() END, now()
    FROM generate_series(1, :jobs) n;
    UPDATE pools SET start_target = 60;
    INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at, first_polled_at,
                             terminal_at, gone_at)
    SELECT pool_id, 'r', 'pod-' || id, 'pod-' || id, 'a', 'h', queued_at, queued_at + interval '1 min', now(), now()
    FROM jobs WHERE state = 'completed';
    INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, vcpu, memory, state, created_at,
                        changed_at, minted_at, delivered_at, ended_at, end_reason)
    SELECT 'job', j.id, r.id, r.uid, j.pool_id, j.account_id, 1000, 1024, 'ended', r.first_polled_at + interval '1 min',
           now(), r.first_polled_at + interval '2 min', r.first_polled_at + interval '2 min', now(), 'completed'
    FROM jobs j JOIN runner_pods r ON r.uid = 'pod-' || j.id;
    INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at, ended_at)
    SELECT job_id, 'runner-' || id, id, account_id, vcpu, memory, delivered_at, ended_at FROM claims
"""
_LISTS_INDEXES = (
    "ix_jobs_open_state_id",
    "ix_jobs_held_id",
    "ix_jobs_account_id_id",
    "ix_jobs_pool_id_id",
    "ix_jobs_repository_id",
)


class Nobody:
    """Stub that accepts every call and does nothing, for disabled telemetry or a publisher that sends nothing."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Nobody:
        return self


def settings_for(url: str) -> Settings:
    return Settings(
        database_url=Secret(url),
        redis_url=Secret("redis://unused"),
        github_app_id="1",
        github_private_key=Secret("unused"),
        new_accounts="serve",
        webhook_secrets=(Secret(SECRET),),
        encryption_keys=(Secret(Fernet.generate_key().decode()),),
    )


def serve(url: str, port: int) -> None:
    """Serve the API alone."""
    database = Database(make_engine(Secret(url), pool_size=2, application="bench"))
    nobody: Any = Nobody()
    app = FastAPI()
    app.mount("/api", build_api(settings_for(url), database=lambda: database, publisher=lambda: nobody))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", loop="uvloop", access_log=False)


def migrated(postgres: Postgres, name: str) -> Engine:
    postgres.create_database(name)
    made = make_engine(Secret(postgres.url(name)), pool_size=4, application="bench")
    migrate.upgrade(made)
    return made


def list_times(postgres: Postgres) -> None:
    """Print the latencies of lists, with one request at a time."""
    made = migrated(postgres, "lists")
    with made.begin() as db:
        for statement in _FILL.split(";\n"):
            db.execute(text(statement), {"jobs": JOBS} if ":jobs" in statement else {})
    with made.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text("VACUUM ANALYZE"))
    by = Author("benchmark", Via.SHELL, utcnow())
    _, token = transaction(
        made,
        lambda db: api_tokens.create(db, name="bench", scopes=[TokenScope.READ], expires_at=None, by=by),
    )
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(postgres.url("lists"), port), daemon=True)
    server.start()
    headers = {"Authorization": f"Bearer {token.reveal()}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=30) as api:
        wait_for(api)
        for query in ("", "?state=queued", "?account_id=7", "?repository=acme/repo-7", "?limit=200"):
            print(f"GET /api/v1/jobs{query}: {percentiles(list(timed(api, '/jobs' + query)))}")
        print(f"GET /api/v1/jobs/ID: {percentiles(list(timed(api, f'/jobs/{JOBS}')))}")
        for what in ("read", "shared"):
            began = time.perf_counter()
            api.get("/usage").raise_for_status()
            print(f"GET /api/v1/usage, {what}: {(time.perf_counter() - began) * 1000:.0f} ms")
    server.terminate()
    server.join()
    made.dispose()


def wait_for(api: httpx.Client) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            api.get("/pools").raise_for_status()
        except httpx.TransportError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def timed(api: httpx.Client, path: str) -> Iterator[float]:
    for _ in range(REQUESTS):
        began = time.perf_counter()
        api.get(path).raise_for_status()
        yield time.perf_counter() - began


def percentiles(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms ({len(seconds)} requests, one at a time)"


def intake_costs(postgres: Postgres) -> None:
    """Print the cost of metrics and of the lists' indexes for the intake."""
    with_indexes, without = migrated(postgres, "indexed"), migrated(postgres, "bare")
    with without.begin() as db:
        for name in _LISTS_INDEXES:
            db.execute(text(f"DROP INDEX {name}"))
    ids = count(1)

    def take(made: Engine) -> float:
        return asyncio.run(send_all(made, [next(ids) for _ in range(DELIVERIES)]))

    def dark(made: Engine) -> float:
        with telemetry_off():
            return take(made)

    take(with_indexes), take(without)  # warm-up
    compare("metrics", lambda: take(with_indexes), lambda: dark(with_indexes))
    compare("the lists' indexes", lambda: take(with_indexes), lambda: take(without))


def compare(what: str, on: Callable[[], float], off: Callable[[], float]) -> None:
    pairs = [(on(), off()) if number % 2 else tuple(reversed((off(), on()))) for number in range(ROUNDS)]
    ratios = sorted(each[0] / each[1] for each in pairs)
    print(
        f"intake with and without {what}: {DELIVERIES / statistics.median(p[0] for p in pairs):.0f}/s and "
        f"{DELIVERIES / statistics.median(p[1] for p in pairs):.0f}/s; median ratio of times "
        f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}, {ROUNDS} pairs of {DELIVERIES})"
    )


@contextmanager
def telemetry_off() -> Iterator[None]:
    with mock.patch.object(webhooks, "telemetry", Nobody()), mock.patch.object(engine, "telemetry", Nobody()):
        yield


async def send_all(made: Engine, job_ids: list[int]) -> float:
    """Send a webhook for each job. Return the seconds from the first webhook to the last answer."""
    nobody: Any = Nobody()
    intake = Intake(engine=made, settings=settings_for("postgresql+psycopg2://unused"), publisher=nobody)
    app = Starlette(routes=[Route("/webhooks", intake.receive, methods=["POST"])])
    intake.start()
    transport = httpx.ASGITransport(app=app)
    slots = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:
        requests = [
            client.build_request("POST", "/webhooks", content=body, headers=headers(body, job_id))
            for job_id in job_ids
            for body in [payload(job_id)]
        ]

        async def send(request: httpx.Request) -> None:
            async with slots:
                (await client.send(request)).raise_for_status()

        began = time.perf_counter()
        await asyncio.gather(*(send(request) for request in requests))
        took = time.perf_counter() - began
    await intake.stop()
    return took


def headers(body: bytes, job_id: int) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "x-github-event": "workflow_job",
        "x-github-delivery": f"guid-{job_id}",
        "x-hub-signature-256": "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest(),
    }


def payload(job_id: int) -> bytes:
    job = {
        "id": job_id,
        "run_id": 2,
        "run_attempt": 1,
        "name": "build",
        "workflow_name": "CI",
        "status": "queued",
        "conclusion": None,
        "labels": ["linux"],
        "head_branch": "main",
        "created_at": "2026-11-20T12:00:00Z",
        "started_at": "2026-11-20T12:00:00Z",
        "completed_at": None,
        "runner_id": 0,
        "runner_name": None,
    }
    owner = {"id": 77, "login": "acme", "type": "Organization"}
    repository = {"id": 5, "full_name": f"acme/app-{job_id % 100}", "private": True, "owner": owner}
    body = {"action": "queued", "workflow_job": job, "repository": repository, "installation": {"id": 3}}
    return json.dumps(body).encode()


def main() -> None:
    """Measure the lists and the intake."""
    with tempfile.TemporaryDirectory(prefix="ostler-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        postgres = Postgres(Path(folder) / "postgres")
        postgres.start()
        try:
            list_times(postgres)
            intake_costs(postgres)
        finally:
            postgres.stop()


if __name__ == "__main__":
    main()
