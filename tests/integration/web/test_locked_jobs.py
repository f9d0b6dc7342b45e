"""One locked row delays no webhook that does not need it, neither in its batch nor in the next (law L14)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from sqlalchemy import Connection, Engine, text

from models.db.engine import make_engine
from models.intake.intake import Applied, Received
from tests.database import Database
from tests.integration.models.webhook_rows import add_claim, add_pool, job_row
from tests.integration.web.test_webhooks import Stage, blocked, payload, running, until

OTHERS = range(100, 120)
SOON = 2.5
"""Seconds within which other webhooks are stored on a busy machine. A wait for the locked row takes 5 to 8."""


@dataclass
class Sent:
    """Webhooks sent together: those that need the locked row, others in their batch, and others after them."""

    locked: list[tuple[int, float]] = field(default_factory=list)
    others: list[tuple[int, float]] = field(default_factory=list)
    behind: list[tuple[int, float]] = field(default_factory=list)

    def only_the_locked_are_refused(self) -> None:
        assert {code for code, _ in self.others + self.behind} == {202}
        assert max(seconds for _, seconds in self.others + self.behind) < SOON
        assert {code for code, _ in self.locked} == {503}
        assert max(seconds for _, seconds in self.locked) < 2 * SOON


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    """An engine as in production: a lock wait lasts 5 seconds."""
    made = make_engine(database.url, pool_size=10, application="as in production")
    yield made
    made.dispose()


async def send_all(
    stage: Stage, locked: list[bytes], *, held: Callable[[Connection], object], **headers: str | None
) -> Sent:
    """Send `locked` and others in one batch, and some after it, while a session holds the locks of `held`.

    `headers` are those of `locked`.
    """
    sent = Sent()

    async def send(body: bytes, to: list[tuple[int, float]], **headers: str | None) -> None:
        began = time.monotonic()
        answer = await stage.send(body, **headers)
        to.append((answer.status_code, time.monotonic() - began))

    with stage.engine.connect() as holder:
        held(holder)
        async with in_one_batch(stage, len(locked) + len(OTHERS)):
            first = [asyncio.ensure_future(send(body, sent.locked, **headers)) for body in locked]
            first += [asyncio.ensure_future(send(payload(job_id), sent.others)) for job_id in OTHERS]
        await asyncio.sleep(0.3)
        behind = [asyncio.ensure_future(send(payload(job_id), sent.behind)) for job_id in range(200, 205)]
        await asyncio.gather(*first, *behind)
        holder.rollback()
    return sent


@asynccontextmanager
async def in_one_batch(stage: Stage, size: int) -> AsyncIterator[None]:
    """Put the webhooks of the block into one batch, which is queued while another batch is being committed."""
    batches = stage.intake._batches
    apply, taken, gate = batches._apply, threading.Event(), threading.Event()

    def wait_and_apply(batch: Sequence[Received], lock_ms: int) -> Applied:
        taken.set()
        gate.wait(60)
        return apply(batch, lock_ms)

    batches._apply = wait_and_apply
    first = asyncio.ensure_future(stage.send(payload(99)))
    await until(taken.is_set)
    yield
    await until(lambda: stage.intake.depth >= size)
    gate.set()
    assert (await first).status_code == 202
    batches._apply = apply


def play(engine: Engine, story: Callable[[Stage], Awaitable[None]]) -> None:
    async def act() -> None:
        async with running(engine) as stage:
            await story(stage)

    asyncio.run(act())


def locks(statement: str) -> Callable[[Connection], object]:
    return lambda db: db.execute(text(statement))


def started(job_id: int, runner: str = "elsewhere") -> bytes:
    return payload(job_id, "in_progress", runner_name=runner, runner_id=9)


def ended(job_id: int, runner: str) -> bytes:
    return payload(job_id, "completed", runner_name=runner, runner_id=9, conclusion="success")


_LOCK_JOB = {
    "as Ostler does": "SELECT 1 FROM jobs WHERE id = 1 FOR NO KEY UPDATE",
    "as an operator does": "SELECT 1 FROM jobs WHERE id = 1 FOR UPDATE",
}


@pytest.mark.parametrize("strength", _LOCK_JOB)
def test_other_webhooks_are_stored_when_one_job_is_locked(engine: Engine, strength: str) -> None:
    add_pool(engine, "linux")

    async def story(stage: Stage) -> None:
        await stage.send(payload(1))
        held = locks(_LOCK_JOB[strength])
        (await send_all(stage, [started(1)], held=held)).only_the_locked_are_refused()
        assert (await stage.send(started(1))).status_code == 202

    play(engine, story)
    assert job_row(engine, 1).state == "running"


def test_other_webhooks_are_stored_when_many_jobs_of_their_batch_are_locked(engine: Engine) -> None:
    add_pool(engine, "linux")
    many = range(1, 51)

    async def story(stage: Stage) -> None:
        await asyncio.gather(*(stage.send(payload(job_id)) for job_id in many))
        held = locks("SELECT 1 FROM jobs WHERE id <= 50 FOR NO KEY UPDATE")
        (await send_all(stage, [started(job_id) for job_id in many], held=held)).only_the_locked_are_refused()

    play(engine, story)


def test_webhooks_that_lead_to_a_locked_claim_are_refused_alone(engine: Engine) -> None:
    pool = add_pool(engine, "linux")

    async def story(stage: Stage) -> None:
        await asyncio.gather(*(stage.send(payload(job_id)) for job_id in (1, 2, 3)))
        add_claim(engine, pool, 1, runner="r-1")
        add_claim(engine, pool, 2, runner="r-2")
        held = locks("SELECT 1 FROM claims WHERE job_id = 1 FOR NO KEY UPDATE")
        # By its job, by its runner.
        sent = await send_all(stage, [ended(1, "r-1"), started(3, "r-1")], held=held)
        sent.only_the_locked_are_refused()
        assert (await stage.send(started(2, "r-2"))).status_code == 202

    play(engine, story)
    assert [job_row(engine, job_id).state for job_id in (1, 2, 3)] == ["claimed", "running", "queued"]


def test_webhooks_of_other_accounts_are_stored_when_one_account_is_locked(engine: Engine) -> None:
    add_pool(engine, "linux")
    theirs = [of_account(job_id, 78) for job_id in (1, 2)]

    async def story(stage: Stage) -> None:
        assert (await stage.send(of_account(3, 78))).status_code == 202
        held = locks("SELECT 1 FROM accounts WHERE id = 78 FOR UPDATE")
        (await send_all(stage, theirs, held=held)).only_the_locked_are_refused()

    play(engine, story)


def test_a_new_login_is_left_to_a_later_webhook_when_the_account_is_locked(engine: Engine) -> None:
    add_pool(engine, "linux")

    def login() -> str:
        with engine.connect() as db:
            return str(db.execute(text("SELECT login FROM accounts WHERE id = 78")).scalar_one())

    async def story(stage: Stage) -> None:
        assert (await stage.send(of_account(1, 78))).status_code == 202
        with engine.connect() as holder:
            holder.execute(text("SELECT 1 FROM accounts WHERE id = 78 FOR NO KEY UPDATE"))  # as the matcher does
            assert (await stage.send(of_account(2, 78, login="apex"))).status_code == 202
            assert login() == "umbra"
        assert (await stage.send(of_account(3, 78, login="apex"))).status_code == 202

    play(engine, story)
    assert login() == "apex"
    assert {job_row(engine, job_id).scope for job_id in (1, 2, 3)} == {"orgs/apex"}


@pytest.mark.parametrize("table", ["jobs", "deliveries", "accounts", "installations"])
def test_other_webhooks_are_stored_when_another_process_has_inserted_the_same_row(engine: Engine, table: str) -> None:
    """The insert is not committed, so SKIP LOCKED cannot see it."""
    add_pool(engine, "linux")
    insert = {
        "jobs": """
            INSERT INTO jobs (id, account_id, repository, scope, run_id, run_attempt, name, labels, state, queued_at,
                              changed_at, priority)
            VALUES (1, 77, 'acme/app', 'orgs/acme', 1, 1, 'build', '{linux}', 'queued', now(), now(), 0)
        """,
        "deliveries": """
            INSERT INTO deliveries (guid, event, action, outcome, received_at)
            VALUES ('same', 'workflow_job', 'queued', 'accepted', now())
        """,
        "accounts": """
            INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at)
            VALUES (78, 'umbra', 1, 1, 1, now())
        """,
        "installations": "INSERT INTO installations (id, account_id, created_at) VALUES (9, 77, now())",
    }
    body = {
        "jobs": payload(1),
        "deliveries": payload(1),
        "accounts": of_account(1, 78),
        "installations": payload(1).replace(b'"installation": {"id": 3}', b'"installation": {"id": 9}'),
    }

    async def story(stage: Stage) -> None:
        headers = {"x_github_delivery": "same"} if table == "deliveries" else {}
        await stage.send(payload(98))  # the account has its row
        sent = await send_all(stage, [body[table]], held=locks(insert[table]), **headers)
        sent.only_the_locked_are_refused()
        assert (await stage.send(body[table], **headers)).status_code == 202

    play(engine, story)


def test_a_job_that_is_locked_for_a_moment_costs_no_answer(engine: Engine) -> None:
    add_pool(engine, "linux")

    async def story(stage: Stage) -> None:
        await stage.send(payload(1))
        with engine.connect() as holder:
            holder.execute(text("SELECT 1 FROM jobs WHERE id = 1 FOR NO KEY UPDATE"))
            answer = asyncio.ensure_future(stage.send(started(1)))
            await until(lambda: stage.intake.depth == 1)  # it was put aside
            holder.rollback()
        assert (await answer).status_code == 202

    play(engine, story)


def test_webhooks_are_stored_while_announcements_wait_for_locked_rows(engine: Engine) -> None:
    add_pool(engine, "linux")
    installed = (
        b'{"action": "created", "installation": {"id": 4, "account": {"id": 77, "login": "acme",'
        b' "type": "Organization"}}}'
    )

    async def story(stage: Stage) -> None:
        await stage.send(payload(1))
        with engine.connect() as holder:
            holder.execute(text("SELECT 1 FROM jobs WHERE id = 1 FOR NO KEY UPDATE"))
            began = time.monotonic()
            told = [asyncio.ensure_future(stage.send(installed, x_github_event="installation")) for _ in range(10)]
            await until(lambda: blocked(engine) > 0)
            assert {(await stage.send(payload(job_id))).status_code for job_id in OTHERS} == {202}
            assert time.monotonic() - began < SOON
            assert {(await each).status_code for each in told} == {503}
        assert (await stage.send(installed, x_github_event="installation")).status_code == 202

    play(engine, story)


def of_account(job_id: int, account_id: int, *, login: str = "umbra") -> bytes:
    return (
        payload(job_id)
        .replace(b'"id": 77, "login": "acme"', f'"id": {account_id}, "login": "{login}"'.encode())
        .replace(b'"full_name": "acme/app"', f'"full_name": "{login}/app"'.encode())
        .replace(b'"installation": {"id": 3}', f'"installation": {{"id": {account_id}}}'.encode())
    )
