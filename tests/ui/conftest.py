"""Debian's Chromium, and the dashboard over a full and over an empty database, served on a port of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, Playwright, sync_playwright

from models.db import epochs
from ostler.clock import utcnow
from rules.token_scopes import TokenScope
from tests.database import Database
from tests.integration.models.webhook_rows import add_claim
from tests.integration.web.api.conftest import make_settings, make_token
from tests.outbox import PublisherOutbox
from tests.rows import insert_account, insert_job, insert_pool, run_sql
from tests.served import served
from web.api.database import Database as ApiDatabase
from web.ui.app import mount_ui
from web.ui.streams import Streams

LISTS = tuple(
    f"/ui/{each}" for each in ("", "jobs", "pools", "pods", "nodes", "sweeps", "repairs", "waits", "usage", "changes")
)
"""Paths of the pages that name no object."""

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\N{RIGHT-TO-LEFT OVERRIDE}txt.exe " + "x" * 300

ENDED = 49_876_543_104
"""Id of the job that has ended, as long as the ids of GitHub are."""


@dataclass(frozen=True)
class Site:
    """A dashboard on a port, with a token, and the paths of its pages."""

    url: str
    token: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Stored(Site):
    """A dashboard over a database of a test."""

    database: Database


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="session")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("these tests need Chromium on PATH: apt-get install chromium")
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    yield browser
    browser.close()


@contextmanager
def dashboard_of(database: Database, *paths: str) -> Iterator[Stored]:
    """Serve the dashboard of a database."""
    pool, app = ApiDatabase(database.engine), FastAPI()
    streams = Streams(pool)
    mount_ui(app, make_settings(database), database=lambda: pool, streams=lambda: streams, publisher=PublisherOutbox)
    token = make_token(database.engine, TokenScope.READ, TokenScope.WRITE, name="writer")
    try:
        with served(app) as url:
            yield Stored(url, token, paths, database)
    finally:
        pool.stop()


@pytest.fixture
def empty(database: Database) -> Iterator[Stored]:
    with dashboard_of(database, *LISTS) as site:
        yield site


@pytest.fixture
def full(database: Database) -> Iterator[Stored]:
    """A fleet with each state that a page draws, and names that attack a page."""
    now = utcnow()
    pool_id = _fill(database, now=now)
    paths = (
        *LISTS,
        "/ui/jobs?held=true",
        *(f"/ui/jobs/{job}" for job in (100, 101, 102, 103, ENDED)),
        f"/ui/pools/{pool_id}",
        "/ui/pods/small-1",
        "/ui/accounts/7",
        "/ui/accounts/8",
        f"/ui/change?what=pause-pool&object={pool_id}",
        f"/ui/change?what=requeue&object={ENDED}",
        "/ui/change?what=pause&object=rematch",
        "/ui/jobs/1",
        "/ui/jobs?limit=x",
    )
    with dashboard_of(database, *paths) as site:
        yield site


def _fill(database: Database, *, now: datetime) -> int:
    engine = database.engine

    def put(statement: str, **values: object) -> None:
        run_sql(engine, statement, **values)

    with engine.begin() as db:
        epochs.confirm(db, epochs.read(db, now=now).epoch, trusted_for=timedelta(hours=1), now=now)
    insert_account(engine, 7, "acme", count=3)
    insert_account(engine, 8, "globex", count=3)
    put("UPDATE accounts SET access = 'held' WHERE id = 8")
    pool_id = insert_pool(engine, "small")
    put(
        """
        UPDATE pools SET autoscaled = true, min_warm = 1, max_replicas = 9, status_at = now(),
            status_checked_at = now(), scaled_up_at = now(),
            scaling = '{"at": "2026-11-29T12:00:00Z", "verdict": "up", "replicas": 6, "load": 3, "queue": 2,
                        "usual": 1, "why": "3 with jobs + 2 queued + 1 warm = 6"}',
            status = '{"starting": 1, "warm": 2, "reserved": 1, "busy": 4, "ending": 1, "stale": 1, "conditions": [
                {"type": "Degraded", "status": "True", "reason": "PodsDoNotStart",
                 "message": "no node accepts its Pods <b>x</b>", "lastTransitionTime": "2026-11-29T12:00:00Z"},
                {"type": "Ready", "status": "False", "reason": "PodsDoNotStart", "message": "no Pod is warm",
                 "lastTransitionTime": "2026-11-29T12:00:00Z"}]}'
        WHERE id = :id
        """,
        id=pool_id,
    )
    insert_job(engine, 100, pool_id=pool_id, queued_at=now - timedelta(minutes=7))
    insert_job(engine, 101, pool_id=pool_id, state="claimed", queued_at=now - timedelta(minutes=2))
    insert_job(engine, 102, hold_reason="no_pool", hold_detail="labels gpu", labels=["gpu"])
    insert_job(engine, 103, account_id=8, hold_reason="unknown_account", repository="globex/app")
    insert_job(
        engine,
        ENDED,
        pool_id=pool_id,
        state="completed",
        name=HOSTILE,
        queued_at=now - timedelta(minutes=30),
        started_at=now - timedelta(minutes=29),
    )
    put(
        "UPDATE jobs SET conclusion = 'failure', completed_at = now() - interval '5 min', head_branch = :name,"
        " workflow_name = :name WHERE id = :id",
        name=HOSTILE,
        id=ENDED,
    )
    put(
        "INSERT INTO executions (runner_name, account_id, job_id, vcpu, memory, started_at, ended_at) "
        "VALUES ('r', 7, :job, 1, 1, now() - interval '29 min', now() - interval '5 min')",
        job=ENDED,
    )
    add_claim(engine, pool_id, 101, account_id=7)
    ended = add_claim(engine, pool_id, ENDED, state="executing", account_id=7)
    put(
        "UPDATE claims SET (runner_pod_id, pod_uid, state, ended_at, jit, end_reason, release_reason) ="
        " (first.runner_pod_id, first.pod_uid, 'ended', now(), NULL, 'completed', :words)"
        " FROM claims AS first WHERE first.job_id = 101 AND claims.id = :id",
        words=HOSTILE,
        id=ended,
    )
    put("DELETE FROM runner_pods WHERE uid NOT IN (SELECT pod_uid FROM claims)")
    put(
        "UPDATE runner_pods SET name = 'small-1', first_polled_at = created_at, polled_at = created_at,"
        " event_message = :words, event_by = :words, event_reason = 'Killing'",
        words=HOSTILE,
    )
    pause = "INSERT INTO sweeps (name, paused_at, paused_by, paused_why) VALUES ('rematch', now(), 'ops', :why)"
    put(pause, why=HOSTILE)
    put(
        """
        INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, job_id, expects, outcome,
                             verify_by)
        VALUES ('stale_claims', 1, now(), 'release', 'never delivered', '{}', false, false, 101, 'claim_ended',
                'verified', now())
        """
    )
    return pool_id
