"""GitHub is asked for the runners of a scope once a minute, whatever the number of sweeps and processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import text

from github_adapters.client import GitHub
from github_adapters.endpoints.runners import RunnerSeen
from models.db.engine import transaction
from models.sweeps import runner_lists
from ostler.clock import utcnow
from ostler.errors import Retryable
from rules.routing.scopes import Scope
from rules.sweeps.runner_checks import RunnerList
from tasks.sweeps.finished_jobs import finished_jobs
from tasks.sweeps.frame import runner_lists as listing
from tasks.sweeps.frame.pace import Pace, Sweep
from tasks.sweeps.frame.runner_lists import runners_of
from tasks.sweeps.orphaned_runners import orphaned_runners
from tasks.sweeps.unused_runners import unused_runners
from tasks.worker import runtime as current
from tests.contract.github.conftest import APP_ID, ORG_INSTALLATION, Lab, make_app_key, running
from tests.database import Database
from tests.integration.tasks.conftest import StubRuntime
from tests.rows import insert_pool

RUNNERS = 103
SCOPE = "orgs/acme"


@pytest.fixture
def rt(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubRuntime]:
    rt = StubRuntime(database, None, "none")
    current.install(rt)  # type: ignore[arg-type]
    monkeypatch.setattr(listing, "LONGEST_WAIT", 600.0)
    monkeypatch.setattr(listing, "remaining", lambda: 1200.0)
    yield rt
    current.install(None)


@pytest.fixture
def lab(tmp_path: Path, rt: StubRuntime) -> Iterator[Lab]:
    with running(make_app_key(tmp_path), tmp_path) as lab:
        rt.github = GitHub(api_url=lab.url, app_id=APP_ID, private_key=lab.private_key)
        yield lab
        rt.github.close()


def rows(rt: StubRuntime, statement: str, **values: Any) -> None:
    with rt.engine.begin() as db:
        db.execute(text(statement), values)


def claims(rt: StubRuntime, *runners: str) -> None:
    """Insert a claim for each runner. The first claim is live, and nothing happened for an hour."""
    rows(rt, "INSERT INTO accounts VALUES (1, 'acme', 1, 10, 100000, 100000, '[]', now())")
    insert_pool(rt.engine, "p", namespace="none", vcpu=1, memory=1)
    for number, runner in enumerate(runners):
        rows(
            rt,
            """
            WITH t AS (SELECT now() - interval '1 h' AS at),
            pod AS (
                INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
                SELECT id, 'none', :runner, :runner, 'a', 'h', t.at FROM pools, t RETURNING id, uid, pool_id),
            claim AS (
                INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope, vcpu,
                                    memory, state, ended_at, end_reason, created_at, changed_at, minted_at,
                                    delivered_at, spare_since, runner_name)
                SELECT 'job', id, uid, pool_id, 1, :installation, :scope, 1, 1,
                       CASE WHEN :live THEN 'delivered' ELSE 'ended' END, CASE WHEN NOT :live THEN t.at END,
                       CASE WHEN NOT :live THEN 'released' END, t.at, t.at, t.at, t.at, t.at, :runner
                FROM pod, t RETURNING id)
            INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at)
            SELECT id, :runner, 'minted', now() FROM claim
            """,
            runner=runner,
            live=number == 0,
            installation=ORG_INSTALLATION,
            scope=SCOPE,
        )


def lists(lab: Lab) -> int:
    """Return the number of pages of runners that GitHub was asked for."""
    calls: dict[str, int] = lab.call("GET", "/_lab/stats")[1]["calls"]
    return sum(many for call, many in calls.items() if call.startswith("GET") and call.endswith("/actions/runners"))


def test_three_sweeps_at_once_make_one_list_of_two_pages_and_a_minute_later_another(rt: StubRuntime, lab: Lab) -> None:
    names = [f"runner-{number}" for number in range(RUNNERS)]
    with ThreadPoolExecutor(8) as threads:
        mint = lambda name: rt.github.mint(  # noqa: E731
            installation_id=ORG_INSTALLATION, scope=Scope.parse(SCOPE), name=name, labels=["linux"], runner_group_id=1
        )
        list(threads.map(mint, names))
    claims(rt, *names[:3])
    before = lists(lab)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda sweep: sweep.run(), [unused_runners, finished_jobs, orphaned_runners]))

    assert lists(lab) - before == 2
    with rt.engine.connect() as db:
        looked = db.execute(text("SELECT sweep, outcome, listed FROM sweep_runs ORDER BY sweep")).all()
    assert [tuple(row) for row in looked] == [
        (sweep, "done", RUNNERS) for sweep in ("finished_jobs", "orphaned_runners", "unused_runners")
    ]
    rows(rt, "UPDATE runner_lists SET taken_at = taken_at - interval '61 s'")
    finished_jobs.run()
    assert lists(lab) - before == 4


@dataclass
class Slow:
    """A GitHub with one runner that answers at the command of the test."""

    answer: Callable[[], list[RunnerSeen]]
    calls: int = 0

    def list_runners(self, **_: Any) -> list[RunnerSeen]:
        self.calls += 1
        return self.answer()


RUNNER = RunnerSeen(id=7, name="runner-7", status="online", busy=True, labels=())


def ask(rt: StubRuntime) -> RunnerList:
    tick = Pace(cast("Any", rt), Sweep("test", quiet=False, again=False, lease=60, longest=600), lease_no=1, dry=False)
    return runners_of(tick, installation_id=ORG_INSTALLATION, scope=SCOPE)


def test_who_comes_while_another_lists_waits_for_that_list(rt: StubRuntime) -> None:
    asked, answered = threading.Event(), threading.Event()

    def answer() -> list[RunnerSeen]:
        asked.set()
        assert answered.wait(600)
        return [RUNNER]

    rt.github = Slow(answer)
    before = utcnow()
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(ask, rt)
        assert asked.wait(600)
        meanwhile = utcnow()
        others = [threads.submit(ask, rt) for _ in range(3)]
        answered.set()
        found = [each.result() for each in (first, *others)]
    assert rt.github.calls == 1
    assert {each.taken_at for each in found} == {found[0].taken_at}
    assert before <= found[0].taken_at <= meanwhile  # not when the answer came
    assert [(each.busy, each.online) for each in found[-1].runners.values()] == [(True, True)]


def test_a_list_made_while_a_process_waited_for_its_connection_is_used(
    rt: StubRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt.github = Slow(lambda: [RUNNER])
    begin_transaction = rt.transaction

    def late(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(rt, "transaction", begin_transaction)
        ask(rt)
        return begin_transaction(function, *args, **kwargs)

    monkeypatch.setattr(rt, "transaction", late)
    assert list(ask(rt).runners) == ["runner-7"]
    assert rt.github.calls == 1


def test_a_list_that_breaks_off_is_nobodys(rt: StubRuntime) -> None:
    def breaks() -> list[RunnerSeen]:
        raise Retryable("GitHub listed fewer runners than its own count")

    rt.github = Slow(breaks)
    for _ in range(2):  # the second does not wait for the first one's turn to run out
        with pytest.raises(Retryable, match="fewer"):
            ask(rt)
    rt.github.answer = lambda: [RUNNER]
    assert list(ask(rt).runners) == ["runner-7"]


@pytest.mark.parametrize(("took", "since", "asked"), [(1, 50, 1), (1, 60, 2), (90, 170, 1), (90, 190, 2)])
def test_a_list_that_took_long_is_used_for_longer(
    rt: StubRuntime, monkeypatch: pytest.MonkeyPatch, took: float, since: float, asked: int
) -> None:
    began = utcnow() - timedelta(hours=1)
    late = [0.0]
    monkeypatch.setattr(listing, "utcnow", lambda: began + timedelta(seconds=late[0]))
    monkeypatch.setattr("tasks.worker.transactions.utcnow", lambda: began + timedelta(seconds=late[0]))

    def answer() -> list[RunnerSeen]:
        late[0] += took
        return [RUNNER]

    rt.github = Slow(answer)
    assert ask(rt).taken_at == began
    late[0] = since
    ask(rt)
    assert rt.github.calls == asked


@pytest.mark.parametrize("sweep", [unused_runners, finished_jobs, orphaned_runners])
def test_a_list_of_minutes_is_whole_within_one_tick(
    rt: StubRuntime, monkeypatch: pytest.MonkeyPatch, sweep: Any
) -> None:
    """10,000 runners are 100 pages, and each page might take more than a second."""
    claims(rt, "runner-7")
    if sweep is finished_jobs:
        rows(rt, "UPDATE claims SET state = 'executing', spare_since = NULL")
    late = [0.0]
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])

    def pages(*, between: Callable[[], Any], **_: Any) -> list[RunnerSeen]:
        for _page in range(100):
            late[0] += 1.5
            between()
        return [RUNNER]

    rt.github = Slow(lambda: [RUNNER])
    rt.github.list_runners = pages
    sweep.run()
    with rt.engine.connect() as db:
        assert db.execute(text("SELECT outcome, listed FROM sweep_runs")).all() == [("done", 1)]


def test_the_turn_of_a_killed_process_is_anothers_when_it_runs_out(
    rt: StubRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = runner_lists.Wanted(ORG_INSTALLATION, SCOPE, reader="killed")
    now = utcnow()
    assert transaction(rt.engine, lambda db: runner_lists.begin(db, killed, seconds=600, now=now))
    rt.github = Slow(lambda: [RUNNER])
    monkeypatch.setattr(listing, "LONGEST_WAIT", 0.0)
    with pytest.raises(Retryable, match="another process"):
        ask(rt)
    rows(rt, "UPDATE runner_lists SET reading_until = now()")
    assert list(ask(rt).runners) == ["runner-7"]

    late = RunnerList(now - timedelta(seconds=5), {})
    transaction(rt.engine, lambda db: runner_lists.store(db, killed, late, now=utcnow()))  # it was not killed after all
    assert list(ask(rt).runners) == ["runner-7"]


def test_a_list_of_a_clock_that_is_ahead_is_not_used_and_is_replaced(rt: StubRuntime) -> None:
    rt.github = Slow(lambda: [RUNNER])
    ask(rt)
    rows(rt, "UPDATE runner_lists SET taken_at = taken_at + interval '10 min'")
    rt.github.answer = lambda: [RUNNER, replace(RUNNER, id=8, name="runner-8")]

    for _ in range(2):
        assert list(ask(rt).runners) == ["runner-7", "runner-8"]

    assert rt.github.calls == 1 + 1
