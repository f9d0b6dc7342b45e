"""Webhooks that do not reach web are redelivered: the lab's GitHub, a bad connection, a real web, and the sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from github_adapters.client import GitHub
from lab.faults import Fault, FaultProxy
from lab.redis import Redis
from tasks.sweeps.redelivery import redelivery
from tasks.worker import runtime as current
from tests.contract.github.conftest import APP_ID, ORG_INSTALLATION, Lab, make_app_key, running
from tests.database import Database
from tests.integration.tasks.conftest import StubRuntime
from tests.integration.web.polls.stage import Stage as WebStage
from tests.integration.web.polls.stage import make_settings
from tests.waiting import eventually

WEBHOOKS = "/webhooks/github"


@dataclass
class Stage:
    """GitHub, its connection to web, and web's rows."""

    lab: Lab
    line: FaultProxy
    database: Database

    def jobs(self) -> dict[int, str]:
        """Return the known jobs with their states."""
        with self.database.engine.connect() as db:
            return {row.id: row.state for row in db.execute(text("SELECT id, state FROM jobs"))}

    def known(self, columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of all jobs."""
        with self.database.engine.connect() as db:
            return [tuple(row) for row in db.execute(text(f"SELECT {columns} FROM jobs ORDER BY id"))]  # noqa: S608

    def accepted(self) -> list[str]:
        """Return the GUIDs of the committed deliveries."""
        with self.database.engine.connect() as db:
            return list(db.execute(text("SELECT guid FROM deliveries ORDER BY guid")).scalars())

    def quiet(self) -> None:
        """Wait until no webhook is being sent."""
        eventually(lambda: self.lab.call("GET", "/_lab/stats")[1]["webhooks_in_flight"] == 0)

    def attempts(self) -> dict[str, list[int]]:
        """Return the statuses of each GUID's attempts, oldest first."""
        found: dict[str, list[int]] = {}
        for each in reversed(self.lab.deliveries()):
            found.setdefault(each["guid"], []).append(each["status_code"])
        return found

    def later(self) -> None:
        """Let the interval between two requests pass."""
        with self.database.engine.begin() as db:
            db.execute(text("UPDATE redeliveries SET due_at = now()"))


@pytest.fixture
def stage(database: Database, redis_server: Redis, tmp_path: Path) -> Iterator[Stage]:
    settings = make_settings(database_url=database.url, redis_url=redis_server.url)
    web = WebStage(engine=database.engine, settings=settings)
    process = web.start_web()
    key, secret = make_app_key(tmp_path), settings.webhook_secrets[0].reveal()
    with (
        FaultProxy(process.url) as line,
        running(key, tmp_path, webhook_url=line.url + WEBHOOKS, secret=secret) as lab,
    ):
        rt = StubRuntime(database, None, "none")
        rt.github = GitHub(api_url=lab.url, app_id=APP_ID, private_key=lab.private_key)
        current.install(rt)  # type: ignore[arg-type]
        yield Stage(lab, line, database)
        current.install(None)
        rt.github.close()
    web.stop_web(process)


@pytest.mark.parametrize(
    ("fault", "status", "committed"),
    [
        (Fault(kind="status", status=503, path_regex=WEBHOOKS), 503, False),
        (Fault(kind="reset_before", path_regex=WEBHOOKS), 0, False),
        (Fault(kind="reset_after", path_regex=WEBHOOKS), 0, True),
    ],
    ids=["503", "reset before the commit", "the answer is lost"],
)
def test_webhooks_that_failed_come_back_once_each_and_what_was_committed_does_not(
    stage: Stage, fault: Fault, status: int, *, committed: bool
) -> None:
    stage.line.add(fault)
    lost = stage.lab.jobs(count=12)
    stage.quiet()
    stage.line.clear()
    fine = stage.lab.jobs(count=3)
    stage.quiet()
    assert set(stage.jobs()) == {*fine, *(lost if committed else ())}

    redelivery.run()
    stage.quiet()
    redelivery.run()
    stage.quiet()

    assert stage.jobs() == dict.fromkeys([*lost, *fine], "queued")
    assert len(stage.accepted()) == 15
    again = [status] if committed else [status, 202]
    assert sorted(stage.attempts().values()) == sorted([*([again] * 12), *([[202]] * 3)])


def test_a_webhook_that_fails_again_is_asked_for_again_until_it_is_accepted(stage: Stage) -> None:
    stage.lab.call("POST", "/_lab/webhooks", {"drop_rate": 1})
    (job,) = stage.lab.jobs()
    redelivery.run()
    redelivery.run()
    (attempts,) = stage.attempts().values()
    assert attempts == [0, 0]
    stage.later()
    stage.line.add(Fault(kind="status", path_regex=WEBHOOKS, times=1))
    stage.lab.call("POST", "/_lab/webhooks", {"drop_rate": 0})
    for _ in range(2):
        redelivery.run()
        stage.quiet()
        stage.later()
    redelivery.run()
    assert stage.jobs() == {job: "queued"}
    (attempts,) = stage.attempts().values()
    assert attempts == [0, 0, 503, 202]
    with stage.database.engine.connect() as db:
        assert db.execute(text("SELECT count(*) FROM redeliveries")).scalar_one() == 0


def test_the_events_of_one_job_may_all_come_back_together(stage: Stage) -> None:
    stage.lab.call("POST", "/_lab/webhooks", {"drop_rate": 1})
    (job,) = stage.lab.jobs()
    assert stage.lab.call("POST", f"/_lab/jobs/{job}/cancel")[0] == 204
    stage.lab.call("POST", "/_lab/webhooks", {"drop_rate": 0})
    redelivery.run()
    stage.quiet()
    assert stage.jobs() == {job: "completed"}
    assert len(stage.accepted()) == 2


def test_several_pages_of_lost_webhooks_all_come_back(stage: Stage) -> None:
    stage.lab.call("POST", "/_lab/webhooks", {"drop_rate": 1})
    lost = stage.lab.jobs(count=230)
    stage.lab.call("POST", "/_lab/webhooks", {"drop_rate": 0})
    for _ in range(3):
        redelivery.run()
        stage.quiet()
    assert set(stage.jobs()) == set(lost)
    tries = Counter(each["guid"] for each in stage.lab.log() if each["event"] in {"webhook_sent", "webhook_lost"})
    assert set(tries.values()) == {2}


@pytest.mark.parametrize("lost", [False, True])
def test_new_names_are_heard_and_when_lost_heard_again(stage: Stage, *, lost: bool) -> None:
    stage.lab.jobs()
    stage.lab.jobs(repository="ada/app")
    stage.quiet()
    if lost:
        stage.line.add(Fault(kind="status", path_regex=WEBHOOKS))

    assert stage.lab.call("PATCH", "/_lab/repositories/acme/app", {"name": "tool"})[0] == 200
    assert stage.lab.call("PATCH", "/_lab/repositories/ada/app", {"name": "tool"})[0] == 200
    stage.quiet()
    for login in ("acme", "ada"):
        assert stage.lab.call("PATCH", f"/_lab/accounts/{login}", {"login": f"{login}-two"})[0] == 200
    stage.quiet()

    names = stage.known("repository, scope")
    if lost:
        assert names == [("acme/app", "orgs/acme"), ("ada/app", "repos/ada/app")]
        stage.line.clear()
        redelivery.run()
        stage.quiet()
        # In any order the owner is right; a repository's former name is redirected.
        assert next(scope for (scope,) in stage.known("scope")) == "orgs/acme-two"
    else:
        assert names == [("acme-two/tool", "orgs/acme-two"), ("ada-two/tool", "repos/ada-two/tool")]


def test_a_lost_installation_comes_back_and_frees_the_jobs_of_the_one_before(stage: Stage) -> None:
    (job,) = stage.lab.jobs()
    stage.quiet()
    assert stage.known("id, installation_id") == [(job, ORG_INSTALLATION)]
    stage.lab.call("POST", "/_lab/webhooks", {"drop_rate": 1})
    for change in ({"installed": False}, {"installed": True, "installation_id": 612}):
        assert stage.lab.call("PATCH", "/_lab/accounts/acme", change)[0] == 200
    stage.lab.call("POST", "/_lab/webhooks", {"drop_rate": 0})
    assert stage.known("installation_id") == [(ORG_INSTALLATION,)]

    redelivery.run()
    stage.quiet()

    assert stage.known("id, installation_id") == [(job, 612)]
    with stage.database.engine.connect() as db:
        told = db.execute(text("SELECT action FROM deliveries WHERE event = 'installation'")).scalars().all()
    assert told == ["created"], "that it was removed is not asked for again"
