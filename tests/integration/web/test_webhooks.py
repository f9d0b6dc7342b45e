"""GitHub's webhooks over HTTP: refusals, stored rows, and behaviour while a part is down."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import pytest
from cryptography.fernet import Fernet
from sqlalchemy import Connection, Engine, text
from starlette.applications import Starlette
from starlette.routing import Route
from structlog.testing import capture_logs

from models.db.engine import make_engine
from models.intake import intake
from ostler.secrets import Secret
from ostler.settings import Settings
from tests.database import Database
from tests.integration.models.webhook_rows import add_claim, add_pool, count, job_row
from tests.outbox import PublisherOutbox
from tests.timed import arranged
from web.intake import batches, webhooks
from web.intake.webhooks import Intake
from web.process import publisher as web_publisher

T = TypeVar("T")

OLD, NEW = "It's a Secret to Everybody", "the next one of these tests"
_guids = itertools.count(1)


class Broken(PublisherOutbox):
    """A publisher with a bug."""

    def wake(self, pool_ids: Iterable[int]) -> None:
        raise RuntimeError(f"no {list(pool_ids)}")


@dataclass
class Stage:
    """A running intake behind HTTP."""

    intake: Intake
    client: httpx.AsyncClient
    outbox: PublisherOutbox
    engine: Engine

    async def send(self, body: bytes, *, secret: str | None = NEW, **headers: str | None) -> httpx.Response:
        every: dict[str, str | None] = {
            "content-type": "application/json",
            "x-github-event": "workflow_job",
            "x-github-delivery": f"guid-{next(_guids)}",
            "x-hub-signature-256": None if secret is None else sign(body, secret),
        }
        every |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(
            "/webhooks",
            content=body,
            headers=[(name.encode(), value.encode("latin-1")) for name, value in every.items() if value is not None],
        )


def sign(body: bytes, secret: str) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def payload(job_id: int = 1, action: str = "queued", **job: Any) -> bytes:
    body = {
        "action": action,
        "workflow_job": {
            "id": job_id,
            "run_id": 2,
            "run_attempt": 1,
            "name": "build",
            "workflow_name": "CI",
            "status": action,
            "conclusion": None,
            "labels": ["linux"],
            "head_branch": "main",
            "created_at": "2026-11-20T12:00:00Z",
            "started_at": "2026-11-20T12:00:00Z",
            "completed_at": None,
            "runner_id": 0,
            "runner_name": None,
        }
        | job,
        "repository": {
            "id": 5,
            "full_name": "acme/app",
            "private": True,
            "owner": {"id": 77, "login": "acme", "type": "Organization"},
        },
        "installation": {"id": 3},
    }
    return json.dumps(body).encode()


@pytest.fixture(autouse=True)
def _patient_intake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an answer and a locked table take as long as a busy machine needs. The test of the limit resets this."""
    monkeypatch.setattr(webhooks, "ANSWER_WITHIN", 120.0)
    monkeypatch.setattr(batches, "LOCK_MS", 60_000)


@asynccontextmanager
async def running(engine: Engine, *, outbox: Any = None, **changes: Any) -> AsyncIterator[Stage]:
    settings = Settings(
        database_url=Secret("postgresql+psycopg2://unused"),
        redis_url=Secret("redis://unused"),
        github_app_id="1",
        github_private_key=Secret("unused"),
        webhook_secrets=(Secret(NEW), Secret(OLD)),
        encryption_keys=(Secret(Fernet.generate_key().decode()),),
        **arranged({"new_accounts": "serve"} | changes),
    )
    told = PublisherOutbox() if outbox is None else outbox
    intake = Intake(engine=engine, settings=settings, publisher=told)
    app = Starlette(routes=[Route("/webhooks", intake.receive, methods=["POST"])])
    intake.start()
    transport = httpx.ASGITransport(app=app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://ostler") as client:
            yield Stage(intake, client, told, engine)
    finally:
        await intake.stop()


def play(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


def on(database: Database, act: Callable[[Stage], Awaitable[T]], **changes: Any) -> T:
    async def story() -> T:
        async with running(database.engine, **changes) as stage:
            return await act(stage)

    return play(story())


@contextmanager
def stopped_commits(engine: Engine) -> Iterator[Connection]:
    """Make every intake transaction wait until the end of the block."""
    with engine.connect() as db, db.begin():
        db.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))  # the block can be slow
        db.execute(text("LOCK TABLE deliveries IN EXCLUSIVE MODE"))
        yield db


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def blocked(engine: Engine) -> int:
    with engine.connect() as db:
        found: int = db.execute(
            text("""
                SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
            """)
        ).scalar_one()
    return found


def problem(response: httpx.Response) -> Mapping[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body.keys() == {"title", "status"}
    assert body["status"] == response.status_code
    return body


# What is taken


def test_a_queued_job_is_stored_when_github_gets_its_answer(database: Database) -> None:
    pool = add_pool(database.engine, "linux")

    async def act(stage: Stage) -> None:
        response = await stage.send(payload(1))
        assert (response.status_code, response.json()) == (202, {"outcome": "accepted"})
        assert job_row(stage.engine, 1).pool_id == pool
        await until(lambda: stage.outbox.wakes == [pool])
        assert stage.intake.counts["accepted"] == 1
        assert stage.intake.depth == 0

    on(database, act)


def test_a_doubled_delivery_is_answered_as_one(database: Database) -> None:
    async def act(stage: Stage) -> None:
        await stage.send(payload(1), x_github_delivery="same")
        response = await stage.send(payload(1), x_github_delivery="same")
        assert (response.status_code, response.json()) == (202, {"outcome": "duplicate"})

    on(database, act)
    assert count(database.engine, "deliveries") == 1


@pytest.mark.parametrize("secret", [OLD, NEW])
def test_either_secret_is_good_while_they_rotate(database: Database, secret: str) -> None:
    async def act(stage: Stage) -> None:
        assert (await stage.send(payload(), secret=secret)).status_code == 202

    on(database, act)


def test_a_ping_is_answered(database: Database) -> None:
    async def act(stage: Stage) -> None:
        response = await stage.send(b"{}", x_github_event="ping")
        assert (response.status_code, response.json()) == (202, {"outcome": "pong"})

    on(database, act)


@pytest.mark.parametrize(
    ("event", "action", "reason"),
    [("push", "queued", "workflow_job"), (None, "queued", "workflow_job"), ("workflow_job", "exploded", "action")],
)
def test_what_we_do_not_use_is_ignored_with_its_reason(
    database: Database, event: str | None, action: str, reason: str
) -> None:
    async def act(stage: Stage) -> None:
        response = await stage.send(payload(1, action), x_github_event=event)
        assert response.status_code == 202
        assert response.json()["outcome"] == "ignored"
        assert reason in response.json()["reason"]

    on(database, act)
    assert count(database.engine, "deliveries") == 0


def test_a_large_body_within_the_limit_is_taken(database: Database) -> None:
    body = payload(1, steps=["x" * 1024] * 1024)

    async def act(stage: Stage) -> None:
        assert (await stage.send(body)).status_code == 202

    on(database, act)


# What is refused


def test_unsigned_deliveries_do_not_log_a_line_each(database: Database) -> None:
    async def act(stage: Stage) -> None:
        with capture_logs() as logs:
            for number in range(50):
                await stage.send(payload(number), x_hub_signature_256=None)
        assert sum(log["event"] == "webhook.signature_invalid" for log in logs) < 10
        assert stage.intake.counts["unsigned"] == 50

    on(database, act)


@pytest.mark.parametrize(
    "signature", [None, "", "sha256=", "sha256=" + "0" * 64, "sha1=" + "0" * 40, sign(payload(2), NEW), "ÿ"]
)
def test_a_delivery_without_the_right_signature_is_refused_counted_and_not_stored(
    database: Database, signature: str | None
) -> None:
    async def act(stage: Stage) -> None:
        with capture_logs() as logs:
            response = await stage.send(payload(1), x_hub_signature_256=signature)
        assert response.status_code == 401
        problem(response)
        assert [(log["event"], log["count_since_last_line"]) for log in logs] == [("webhook.signature_invalid", 1)]
        assert stage.intake.counts["unsigned"] == 1

    on(database, act)
    assert count(database.engine, "deliveries") == 0
    assert count(database.engine, "jobs") == 0


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_is_not_sent_as_json_is_refused(database: Database, content_type: str | None) -> None:
    async def act(stage: Stage) -> None:
        response = await stage.send(payload(), content_type=content_type)
        assert response.status_code == 415
        problem(response)

    on(database, act)


def test_json_with_a_charset_is_json(database: Database) -> None:
    async def act(stage: Stage) -> None:
        assert (await stage.send(payload(), content_type="Application/JSON; charset=utf-8")).status_code == 202

    on(database, act)


def test_too_large_body_is_refused_while_it_is_read_despite_its_content_length(database: Database) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"x" * 1024

    async def act(stage: Stage) -> None:
        response = await stage.client.post(
            "/webhooks", content=endless(), headers={"content-type": "application/json", "content-length": "10"}
        )
        assert response.status_code == 413
        problem(response)

    on(database, act, webhook_max_bytes=4096)
    assert taken == 5


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"action": "queued"}', payload(-1), payload(2**70), b"[" * 100_000]
)
def test_a_malformed_payload_is_refused_with_its_reason(database: Database, body: bytes) -> None:
    async def act(stage: Stage) -> None:
        response = await stage.send(body)
        assert response.status_code == 400
        assert "malformed" in problem(response)["title"]

    on(database, act)


@pytest.mark.parametrize("event", ["workflow_job", "installation", "repository"])
def test_malformed_delivery_is_noted_so_that_it_is_not_asked_for(database: Database, event: str) -> None:
    async def act(stage: Stage) -> None:
        for guid in ("bad", "worse", "bad"):
            answer = await stage.send(b"{", x_github_delivery=guid, x_github_event=event)
            assert answer.status_code == 400
        await stage.send(b"{", secret="a stranger's", x_github_delivery="unsigned", x_github_event=event)

    on(database, act)
    with database.engine.begin() as db:
        rows = db.execute(text("SELECT guid, malformed FROM redeliveries ORDER BY guid")).all()
    assert [tuple(row) for row in rows] == [("bad", True), ("worse", True)]


def test_notes_of_malformed_deliveries_are_written_within_seconds(database: Database) -> None:
    async def act(stage: Stage) -> None:
        await stage.send(b"{", x_github_delivery="bad")
        await until(lambda: count(database.engine, "redeliveries") == 1)

    on(database, act)


@pytest.mark.parametrize("guid", [None, "", "x" * 129])
def test_a_delivery_without_its_guid_is_refused(database: Database, guid: str | None) -> None:
    async def act(stage: Stage) -> None:
        response = await stage.send(payload(), x_github_delivery=guid)
        assert response.status_code == 400
        assert "X-GitHub-Delivery" in problem(response)["title"]

    on(database, act)


# What cannot be taken now


def test_when_too_many_wait_the_next_is_sent_away_and_those_that_wait_are_served(database: Database) -> None:
    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            running_one = asyncio.ensure_future(stage.send(payload(1)))
            await until(lambda: blocked(stage.engine) > 0)
            waiting = [asyncio.ensure_future(stage.send(payload(job_id))) for job_id in (2, 3)]
            await until(lambda: stage.intake.depth == 2)
            response = await stage.send(payload(4))
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            problem(response)
        assert [(await answer).status_code for answer in [running_one, *waiting]] == [202, 202, 202]

    on(database, act, intake_queue=2)
    assert count(database.engine, "jobs") == 3


def of_globex(job_id: int) -> bytes:
    body = json.loads(payload(job_id))
    body["repository"] |= {"full_name": "globex/app", "owner": {"id": 78, "login": "globex", "type": "Organization"}}
    return json.dumps(body).encode()


def test_burst_of_one_account_delays_webhook_of_another_by_one_batch(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH", 10)
    monkeypatch.setattr(batches, "LOCK_MS", 60_000)  # a batch that gives up is split, and its parts come later

    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            first = asyncio.ensure_future(stage.send(payload(1)))
            await until(lambda: blocked(stage.engine) > 0)
            burst = [asyncio.ensure_future(stage.send(payload(job_id))) for job_id in range(2, 102)]
            await until(lambda: stage.intake.depth == 100)
            honest = asyncio.ensure_future(stage.send(of_globex(200)))
            await until(lambda: stage.intake.depth == 101)
        await asyncio.gather(first, honest, *burst)

    on(database, act)
    with database.engine.connect() as db:
        before = db.execute(
            text("SELECT count(*) FROM job_events WHERE id < (SELECT id FROM job_events WHERE job_id = 200)")
        ).scalar_one()
    assert before <= 1 + 10


def test_full_queue_takes_webhook_of_another_account_in_place_of_the_newest(database: Database) -> None:
    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            running_one = asyncio.ensure_future(stage.send(payload(1)))
            await until(lambda: blocked(stage.engine) > 0)
            older = asyncio.ensure_future(stage.send(payload(2)))
            await until(lambda: stage.intake.depth == 1)
            newer = asyncio.ensure_future(stage.send(payload(3)))
            await until(lambda: stage.intake.depth == 2)
            honest = asyncio.ensure_future(stage.send(of_globex(4)))
            refused = await newer
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert (await stage.send(payload(5))).status_code == 503
        assert [(await each).status_code for each in (running_one, older, honest)] == [202, 202, 202]

    on(database, act, intake_queue=2)
    with database.engine.connect() as db:
        assert set(db.execute(text("SELECT id FROM jobs")).scalars()) == {1, 2, 4}


def test_github_is_answered_before_it_gives_up_and_its_next_try_changes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "ANSWER_WITHIN", 0.3)

    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            response = await stage.send(payload(1), x_github_delivery="late")
            assert response.status_code == 503
            problem(response)
        await until(lambda: count(stage.engine, "jobs") == 1)
        monkeypatch.setattr(webhooks, "ANSWER_WITHIN", 120.0)
        assert (await stage.send(payload(1), x_github_delivery="late")).json()["outcome"] == "duplicate"

    on(database, act)
    assert count(database.engine, "jobs") == 1


def test_stopping_answers_what_was_taken_and_takes_no_more(database: Database) -> None:
    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            taken = [asyncio.ensure_future(stage.send(payload(job_id))) for job_id in range(1, 6)]
            await until(lambda: blocked(stage.engine) > 0)
            stopping = asyncio.ensure_future(stage.intake.stop())
            await asyncio.sleep(0)
            assert (await stage.send(payload(9))).status_code == 503
        await stopping
        assert [(await answer).status_code for answer in taken] == [202] * 5
        await stage.intake.stop()

    on(database, act)
    assert count(database.engine, "jobs") == 5


def test_without_a_database_every_delivery_is_sent_away() -> None:
    engine = make_engine(
        Secret("postgresql+psycopg2://nobody@/nothing?host=/nonexistent"), pool_size=1, application="t"
    )

    async def story() -> None:
        async with running(engine) as stage:
            answers = await asyncio.gather(*(stage.send(payload(job_id)) for job_id in range(1, 11)))
            assert [answer.status_code for answer in answers] == [503] * 10
            assert all(answer.headers["retry-after"] for answer in answers)

    play(story())
    engine.dispose()


def test_a_database_that_cuts_the_connection_once_costs_nothing_and_twice_a_503(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = intake.apply

    def patient(*given: Any, lock_ms: int, **named: Any) -> intake.Applied:
        return apply(*given, lock_ms=100 * lock_ms, **named)  # so that every cut meets it, also on a busy machine

    monkeypatch.setattr(intake, "apply", patient)

    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            cut_once = asyncio.ensure_future(stage.send(payload(1)))
            await until(lambda: cut(stage.engine) > 0)
        assert (await cut_once).status_code == 202

        with stopped_commits(stage.engine):
            cut_twice = asyncio.ensure_future(stage.send(payload(2)))
            for _ in range(2):
                await until(lambda: cut(stage.engine) > 0)
            assert (await cut_twice).status_code == 503
        assert (await stage.send(payload(2))).status_code == 202

    on(database, act)


def cut(engine: Engine) -> int:
    """Cut the connections that wait for a lock, and return the number of those that are gone."""
    statement = text("""
        SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """)
    with engine.connect() as db:  # of its own: a transaction sees the activity of its first check
        return int(db.execute(statement).scalar_one())


def refuse_job_25(engine: Engine, code: str) -> None:
    with engine.begin() as db:
        db.execute(
            text(f"""
                CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN
                    IF NEW.id = 25 THEN RAISE EXCEPTION 'bad row' USING ERRCODE = '{code}'; END IF;
                    RETURN NEW;
                END $$
            """)
        )
        db.execute(text("CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()"))


def test_one_bad_row_among_50_blocks_nobody(database: Database) -> None:
    engine = database.engine
    refuse_job_25(engine, "23514")

    async def act(stage: Stage) -> None:
        with capture_logs() as logs:
            with stopped_commits(engine):
                first = asyncio.ensure_future(stage.send(payload(1000)))
                await until(lambda: blocked(engine) > 0)
                waiting = [
                    asyncio.ensure_future(stage.send(payload(job_id), x_github_delivery=f"of-{job_id}"))
                    for job_id in range(1, 51)
                ]
                await until(lambda: stage.intake.depth == 50)
            answers = [(await answer).status_code for answer in waiting]
            assert (await first).status_code == 202
        assert answers == [500 if job_id == 25 else 202 for job_id in range(1, 51)]
        assert [log["delivery"] for log in logs if log["event"] == "webhook.not_stored"] == ["of-25"]
        assert "bad row" not in (await waiting[24]).text

    on(database, act)
    assert count(engine, "jobs") == 50


@pytest.mark.parametrize("code", ["55P03", "57014", "40P01"])
def test_a_row_that_others_keep_locked_is_sent_away_for_later(database: Database, code: str) -> None:
    refuse_job_25(database.engine, code)

    async def act(stage: Stage) -> None:
        response = await stage.send(payload(25))
        assert response.status_code == 503
        assert response.headers["retry-after"]

    on(database, act)


def test_a_failed_batch_is_not_split_for_ever(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "SPLIT_WITHIN", 0.0)
    with database.engine.begin() as db:
        db.execute(text("ALTER TABLE jobs ADD CONSTRAINT nothing_fits CHECK (id < 0)"))

    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            first = asyncio.ensure_future(stage.send(payload(1)))
            await until(lambda: blocked(stage.engine) > 0)
            batch = [asyncio.ensure_future(stage.send(payload(job_id))) for job_id in range(2, 10)]
            await until(lambda: stage.intake.depth == 8)
        assert [(await answer).status_code for answer in (first, *batch)] == [500] + [503] * 8

    on(database, act)


def test_a_client_that_gives_up_hurts_nobody(database: Database) -> None:
    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            gone = asyncio.ensure_future(stage.send(payload(1)))
            await until(lambda: blocked(stage.engine) > 0)
            gone.cancel()
            other = asyncio.ensure_future(stage.send(payload(2)))
            await until(lambda: stage.intake.depth == 1)
        assert (await other).status_code == 202

    on(database, act)
    assert count(database.engine, "jobs") == 2


# After the commit


def test_a_remap_and_a_completion_send_what_they_ask_for(database: Database) -> None:
    engine = database.engine
    pool = add_pool(engine, "linux")

    async def act(stage: Stage) -> None:
        await stage.send(payload(1))
        add_claim(engine, pool, None, runner="r-1")
        loser = add_claim(engine, pool, 1, runner="r-2", state="minted")
        await stage.send(payload(1, "in_progress", runner_name="r-1", runner_id=4))
        await until(lambda: stage.outbox.sent == [("ostler.release", {"claim_id": loser})])
        assert stage.intake.counts["remapped"] == 1
        await stage.send(
            payload(1, "completed", runner_name="r-1", conclusion="success", completed_at="2026-11-20T12:01:00Z")
        )
        await until(lambda: stage.outbox.sent[1:] == [("ostler.reconcile", {"pool_id": pool, "ended": True})])

    on(database, act)


def test_a_strangers_job_is_held_and_github_is_asked_whose_the_app_is(database: Database) -> None:
    add_pool(database.engine, "linux")
    assert Settings.model_fields["new_accounts"].default == "hold"

    async def act(stage: Stage) -> None:
        await stage.send(payload(1))
        assert job_row(stage.engine, 1).hold_reason == "unknown_account"
        await until(lambda: stage.outbox.sent == [("ostler.ask_owner", {})])
        assert stage.outbox.wakes == []

    on(database, act, new_accounts="hold")


def test_many_jobs_that_end_together_ask_for_one_reconcile_of_their_pool(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "RECONCILE_AFTER", 3600.0)
    engine = database.engine
    pool = add_pool(engine, "linux")

    async def act(stage: Stage) -> PublisherOutbox:
        for job_id in (1, 2, 3):
            await stage.send(payload(job_id))
            add_claim(engine, pool, job_id, runner=f"r-{job_id}")
            await stage.send(payload(job_id, "completed", runner_name=f"r-{job_id}", conclusion="success"))
        assert stage.outbox.sent == []
        return stage.outbox

    # Stopping sends what was put off.
    assert on(database, act).sent == [("ostler.reconcile", {"pool_id": pool, "ended": True})]


def test_nothing_is_sent_before_the_commit(database: Database) -> None:
    add_pool(database.engine, "linux")

    async def act(stage: Stage) -> None:
        with stopped_commits(stage.engine):
            waiting = asyncio.ensure_future(stage.send(payload(1)))
            await until(lambda: blocked(stage.engine) > 0)
            assert stage.outbox.wakes == []
        await waiting
        await until(lambda: bool(stage.outbox.wakes))

    on(database, act)


def test_webhooks_are_taken_while_the_broker_is_away(database: Database) -> None:
    add_pool(database.engine, "linux")
    publisher = web_publisher.Publisher(Secret("redis://127.0.0.1:1/0"))
    publisher.start()

    async def act(stage: Stage) -> None:
        answers = await asyncio.gather(*(stage.send(payload(job_id)) for job_id in range(1, 21)))
        assert [answer.status_code for answer in answers] == [202] * 20
        await until(lambda: publisher.failures > 0)

    on(database, act, outbox=publisher)
    publisher.stop()
    assert count(database.engine, "jobs") == 20


def test_a_publisher_that_fails_stops_no_webhook(database: Database) -> None:
    add_pool(database.engine, "linux")

    async def act(stage: Stage) -> None:
        with capture_logs() as logs:
            assert (await stage.send(payload(1))).status_code == 202
            assert (await stage.send(payload(2))).status_code == 202
            await until(lambda: [log["event"] for log in logs].count("webhook.follow_up_messages_not_sent") == 2)
        assert [log["job"] for log in logs if log["event"] == "webhook.stored"] == [1, 2]

    on(database, act, outbox=Broken())
