"""Each lane of a web process serves other requests while one row is locked (law L14)."""

from __future__ import annotations

import asyncio
import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from lab.redis import Redis
from tests.database import Database
from tests.integration.lanes.locks import locked
from tests.integration.lanes.table import LOOPS, RUNNING
from tests.integration.web.polls.stage import Pod, Stage, WebProcess, open_stage
from tests.integration.web.test_webhooks import payload, sign
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)

TWELVE = 12
"""Locked claims: three for each of four threads that would wait for them."""


@pytest.fixture
def stage(database: Database, redis_server: Redis) -> Iterator[Stage]:
    """Rows, and web processes whose engines wait for locks for as long as in production."""
    with open_stage(database, redis_server) as stage:
        yield stage


def deliver(web: WebProcess, body: bytes) -> int:
    """Send a webhook, and return the status of the answer."""
    headers = {
        "content-type": "application/json",
        "x-github-event": "workflow_job",
        "x-github-delivery": str(uuid.uuid4()),
        "x-hub-signature-256": sign(body, "of-these-tests-alone"),
    }
    return httpx.post(f"{web.url}/webhooks/github", content=body, headers=headers, timeout=60).status_code


def of_another(job_id: int) -> bytes:
    """Return the webhook of a job of another account."""
    return payload(job_id).replace(b'"id": 77', b'"id": 78').replace(b"acme", b"other")


@pytest.mark.parametrize("table", ["jobs", "claims", "accounts"])
def test_intake_stores_other_webhooks_while_a_row_is_locked(stage: Stage, table: str) -> None:
    web = stage.start_web()
    pool = stage.pool("linux")
    assert deliver(web, payload(1)) == 202
    stage.claim(stage.pod(pool), state="claimed", job_id=1)
    row = {
        "jobs": "SELECT 1 FROM jobs WHERE id = 1 FOR NO KEY UPDATE",
        "claims": "SELECT 1 FROM claims WHERE job_id = 1 FOR NO KEY UPDATE",
        "accounts": "SELECT 1 FROM accounts WHERE id = 77 FOR NO KEY UPDATE",
    }[table]

    with locked(stage.settings.database_url, row) as waits, ThreadPoolExecutor(8) as clients:
        stuck = clients.submit(deliver, web, payload(1, "in_progress", runner_name="elsewhere", runner_id=9))
        others = [clients.submit(deliver, web, of_another(job_id)) for job_id in range(100, 120)]
        answers = [other.result(60) for other in others]
        stuck.result(60)

    assert set(answers) == {202}
    waits.assert_short()


def polling(stage: Stage, web: WebProcess, count: int) -> tuple[list[Pod], list[Future[httpx.Response]]]:
    pool = stage.pool()
    pods = [stage.pod(pool) for _ in range(count)]
    polls = [web.begin_poll(pod.token) for pod in pods]
    eventually(lambda: all(stage.is_offered(pod, web) for pod in pods))
    return pods, polls


def test_offering_offers_other_pods_while_an_offer_is_locked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.runners.offering.BATCH_EVERY", 1.0)  # so that all share one statement on any machine
    web = stage.start_web()
    pool = stage.pool()
    stuck, *others = (stage.pod(pool) for _ in range(6))
    stage.execute(
        """
        INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)
        VALUES (:uid, :pool, 'other', 'x', now() + interval '1 min')
        """,
        uid=stuck.uid,
        pool=pool,
    )

    row = "SELECT 1 FROM offers WHERE pod_uid = :uid FOR UPDATE"
    with locked(stage.settings.database_url, row, uid=stuck.uid) as waits:
        polls = [web.begin_poll(pod.token) for pod in (stuck, *others)]
        eventually(
            lambda: all(stage.is_offered(pod, web) for pod in others) or any(poll.done() for poll in polls[1:]),
            within=30,
        )
        offered = [stage.is_offered(pod, web) for pod in others]

    assert all(offered)
    waits.assert_short()


def test_delivery_hands_over_another_jit_while_claims_are_locked(stage: Stage) -> None:
    web = stage.start_web()
    pods, polls = polling(stage, web, TWELVE + 1)
    *claims, mine = [stage.claim(pod, state="claimed") for pod in pods]
    for claim in claims:
        stage.mint(claim, notify=False)
    row = "SELECT 1 FROM claims WHERE id = ANY(:ids) FOR NO KEY UPDATE"
    with locked(stage.settings.database_url, row, ids=claims) as waits:
        for claim, pod in zip(claims, pods, strict=False):
            stage.execute("SELECT pg_notify('ostler', :payload)", payload=f"minted {claim} {pod.uid}")
        stage.mint(mine)
        answer = polls[-1].result(60)

    assert answer.status_code == 200
    waits.assert_short()


def test_listener_hears_while_the_row_of_a_dead_web_process_is_locked(stage: Stage) -> None:
    stage.execute("INSERT INTO web_instances (id, started_at, beat_at) VALUES ('dead', '2020-01-01', '2020-01-01')")
    row = "SELECT 1 FROM web_instances WHERE id = 'dead' FOR UPDATE"

    with locked(stage.settings.database_url, row) as waits:
        web = stage.start_web()
        pods, polls = polling(stage, web, 1)
        stage.mint(stage.claim(pods[0], state="claimed"))
        answer = polls[0].result(30)

    assert answer.status_code == 200
    waits.assert_short()


OF_THE_TEST = re.compile(r"MainThread|Thread-.*|ThreadPoolExecutor-\d+|waits|asyncio|pytest.*")
OF_UVICORN = re.compile(r"(Server|LifespanOn|RequestResponseCycle)\..*")


async def running_loops() -> set[str]:
    """Return the tasks that run in this event loop, except the server's own tasks and this one."""
    found = set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        coroutine = getattr(task.get_coro(), "__qualname__", "")
        if not OF_UVICORN.match(coroutine):
            found.add(coroutine if re.fullmatch(r"Task-\d+", task.get_name()) else task.get_name())
    return found


def test_everything_that_runs_in_web_is_in_the_table(stage: Stage) -> None:
    before = set(threading.enumerate())
    web = stage.start_web()
    polling(stage, web, 2)
    assert deliver(web, payload(1)) == 202
    assert web.get("/readyz").status_code == 200
    assert web.get("/metrics").status_code == 200
    web.get("/api/v1/jobs")

    threads = {re.sub(r"[_-]\d+$", "", thread.name) for thread in set(threading.enumerate()) - before}
    loops = asyncio.run_coroutine_threadsafe(running_loops(), web.web.listener._loop).result(60)

    assert {"intake", "listener", "publisher"} <= threads
    assert {name for name in threads if not OF_THE_TEST.fullmatch(name)} <= set(LOOPS)
    assert "intake" in loops
    assert loops <= {*LOOPS, *RUNNING}
