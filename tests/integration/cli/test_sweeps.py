"""The operator's commands for sweeps. The worker is a thread that serves the queue."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from redis import Redis as RedisClient
from sqlalchemy import text
from structlog.testing import capture_logs

from lab.redis import Redis
from ostler.clock import utcnow
from ostler.task_names import SWEEPS
from tasks.sweeps.rematch import rematch
from tasks.worker import runtime as current
from tests.database import Database
from tests.integration.cli.test_operator import Operator
from tests.integration.models.webhook_rows import add_claim, add_pool, deliver, queued
from tests.integration.tasks.conftest import StubRuntime


@pytest.fixture
def operator(database: Database) -> Operator:
    return Operator(database)


def test_every_sweep_is_listed(operator: Operator) -> None:
    assert [each["name"] for each in operator.json("sweep", "list")] == list(SWEEPS)
    assert "never" in operator.run("sweep", "list").stdout


def test_a_sweep_is_paused_and_resumed_by_name_and_all_of_them_at_once(operator: Operator) -> None:
    done = operator.run("sweep", "pause", "rematch", "--why", "we restore Postgres")
    assert done.stdout.startswith("rematch: paused by "), done.stderr
    (shown,) = [each for each in operator.json("sweep", "list") if each["paused_at"]]
    assert (shown["name"], shown["paused_why"]) == ("rematch", "we restore Postgres")
    operator.run("sweep", "pause", "all")
    assert all(each["paused_at"] for each in operator.json("sweep", "list"))
    operator.run("sweep", "resume", "all")
    assert not any(each["paused_at"] for each in operator.json("sweep", "list"))


@pytest.mark.parametrize("command", [("pause",), ("resume",), ("run",)])
def test_a_sweep_that_there_is_not_is_said_in_one_line(operator: Operator, command: tuple[str, ...]) -> None:
    done = operator.run("sweep", *command, "broom")
    assert done.returncode == 1
    assert done.stderr == "ostler: there is no sweep 'broom'; `ostler sweep list` lists the sweeps\n"


def test_running_a_sweep_needs_redis_and_says_so(operator: Operator) -> None:
    done = operator.run("sweep", "run", "rematch")
    assert done.returncode == 2
    assert "OSTLER_REDIS_URL" in done.stderr


def test_repairs_and_retirements_are_counted_by_day(operator: Operator) -> None:
    pool = add_pool(operator.database.engine, "linux")
    deliver(operator.database.engine, queued(11))
    retired = add_claim(operator.database.engine, pool, None)
    operator.execute(
        "UPDATE claims SET purpose = 'retire', account_id = NULL, release_reason = 'surplus', jit = NULL,"
        " created_at = now() WHERE id = :id RETURNING id",
        id=retired,
    )
    operator.execute(
        "INSERT INTO claim_events (claim_id, at, transition, to_state, who, why)"
        " VALUES (:id, now(), 'retire', 'claimed', 'reconcile', 'surplus') RETURNING id",
        id=retired,
    )
    for age, dry in ((0, False), (0, False), (2, False), (0, True), (9, False)):
        operator.execute(
            "INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, expects, outcome, verify_by)"
            " VALUES ('rematch', 1, now() - make_interval(days => :age), 'lift', 'x', '{}', false, :dry, 'nothing',"
            " 'verified', now()) RETURNING id",
            age=age,
            dry=dry,
        )
    today, earlier = (f"{utcnow() - timedelta(days=days):%Y-%m-%d}" for days in (0, 2))
    assert [(row["day"], row["who"], row["what"], row["changes"]) for row in operator.json("repairs", "--summary")] == [
        (today, "reconcile", "retire: surplus", 1),
        (today, "rematch", "lift", 2),
        (earlier, "rematch", "lift", 1),
    ]
    assert "retire: surplus" in operator.run("repairs", "--summary", "--since", "24h").stdout
    assert "no repair and no retirement since" in operator.run("repairs", "--summary", "--since", "0s").stdout
    wrong = operator.run("repairs", "--summary", "--job", "11")
    assert (wrong.returncode, "--summary" in wrong.stderr) == (2, True)


@pytest.fixture
def worker(database: Database, redis_server: Redis) -> Iterator[str]:
    """A thread that runs the messages of the queue `sweeps`. The fixture is the address of Redis."""
    current.install(StubRuntime(database, None, "none"))  # type: ignore[arg-type]
    client, stop = RedisClient.from_url(redis_server.url), threading.Event()
    client.delete("sweeps")

    def serve() -> None:
        while not stop.is_set():
            if (taken := client.blpop(["sweeps"], timeout=1)) is not None:
                _args, kwargs, _embed = json.loads(base64.b64decode(json.loads(taken[1])["body"]))
                rematch.run(**kwargs)

    thread = threading.Thread(target=serve)
    with capture_logs():  # or they would stand among what the command says
        thread.start()
        yield redis_server.url
        stop.set()
        thread.join()
    client.close()
    current.install(None)


def test_a_dry_run_says_what_would_be_repaired_and_a_real_one_repairs_it(operator: Operator, worker: str) -> None:
    operator.redis_url = worker
    deliver(operator.database.engine, queued(11))
    add_pool(operator.database.engine, "linux")
    asked = operator.run("sweep", "run", "rematch", "--dry-run")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("rematch: done. Listed 0, found 1, would repair 1,")
    assert state(operator) == "no_pool"
    ran = operator.json("sweep", "run", "rematch")
    assert (ran["run"]["outcome"], ran["run"]["repaired"]) == ("done", 1)
    assert [(each["job_id"], each["before"], each["outcome"]) for each in ran["repairs"]] == [
        (11, "no_pool", "verified")
    ]
    assert state(operator) is None
    assert [each["outcome"] for each in operator.json("repairs")] == ["verified", "dry"]
    assert [each["outcome"] for each in operator.json("repairs", "--real", "--job", "11")] == ["verified"]
    assert [each["outcome"] for each in operator.json("repairs", "--outcome", "dry", "--sweep", "rematch")] == ["dry"]
    assert operator.json("repairs", "--claim", "7") == []
    assert "no_pool" in operator.run("repairs").stdout
    assert [each["outcome"] for each in operator.json("repairs", "--since", "1h", "--real")] == ["verified"]
    assert operator.json("repairs", "--since", "2000-01-01", "--destructive") == []
    assert len(operator.json("repairs", "--harmless")) == 2


def test_a_sweep_that_is_paused_does_not_run_and_the_exit_status_says_so(operator: Operator, worker: str) -> None:
    operator.redis_url = worker
    operator.run("sweep", "pause", "rematch", "--why", "3 a.m.")
    done = operator.run("sweep", "run", "rematch")
    assert done.returncode == 1
    assert "3 a.m." in done.stdout


def state(operator: Operator) -> str | None:
    with operator.database.engine.connect() as db:
        hold: str | None = db.execute(text("SELECT hold_reason FROM jobs WHERE id = 11")).scalar_one()
        return hold
