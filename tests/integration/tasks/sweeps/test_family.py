"""The same failures for every sweep that finds something in rows, in the cluster or at GitHub.

A sweep joins by an entry in `family.FAMILY`. The first test fails for a sweep without an entry.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row, select

from k8s_adapters.calls import metadata
from k8s_adapters.calls.client import KubeClient
from k8s_adapters.cluster.nodes import NodeSeen, get_node
from k8s_adapters.names import OWNER_LABEL
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners.pods import list_pods
from models import schema
from models.db.engine import transaction
from models.sweeps import sweep_runs
from ostler.clock import utcnow
from ostler.errors import Gone, Retryable
from ostler.task_names import SWEEPS
from ostler.upstreams import TALLY
from rules.pools.fleets import NOTHING, Node
from rules.sweeps.nodes import NodeHealth, Ready
from rules.upstream.retry import RetryPolicy
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.sweeps.catch_up import ACTIVE
from tasks.sweeps.frame.sweep import LEASE
from tasks.sweeps.frame.tick import Tick
from tasks.sweeps.redelivery import redelivery
from tasks.worker import nodes
from tasks.worker import runtime as current
from tasks.worker.app import app
from tests.database import Database
from tests.integration.tasks.conftest import Stage, StubRuntime
from tests.integration.tasks.sweeps.family import (
    FAMILY,
    RELEASING,
    RETIRING,
    Between,
    GitHub,
    Member,
    No,
    create_pod,
    delete_pod,
)
from tests.rows import author


def of(*days: str) -> pytest.MarkDecorator:
    """Parametrise a test with the sweeps that one of these failures concerns, or with all sweeps if none is named."""
    concerned = [
        member for member in FAMILY if not days or any(not isinstance(getattr(member, day), No) for day in days)
    ]
    return pytest.mark.parametrize("member", concerned, ids=lambda member: member.name)


def test_every_sweep_is_of_the_family_and_says_why_a_bad_day_does_not_concern_it() -> None:
    registered = set(SWEEPS) | {
        name.removeprefix("ostler.") for name, task in app.tasks.items() if task.__module__.startswith("tasks.sweeps.")
    }
    assert sorted(member.name for member in FAMILY) == sorted(registered)
    for member in FAMILY:
        for day, what in vars(member).items():
            assert not isinstance(what, No) or what.why, (member.name, day)
            assert what or isinstance(what, No) or day in {"of_a_part", "late_strands", "namesake", "repeats"}


@pytest.fixture(scope="module")
def home(admin: KubeClient) -> Iterator[str]:
    """A namespace with a pool for all tests here. The remains of each test are removed before the next one."""
    name = f"family-{secrets.token_hex(6)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    spec = {"image": "runner:1", "runnerLabels": ["self-hosted", "small"], "replicas": 3}
    create_pool(admin, namespace=name, name="small", spec=spec)
    yield name
    admin.request("DELETE", f"/api/v1/namespaces/{name}")
    with suppress(Gone):
        admin.request("DELETE", f"/api/v1/nodes/{name}-gone")


def out_of_service(client: KubeClient, *, name: str, policy: RetryPolicy | None = None) -> NodeSeen | None:
    """Return a node with the test's own taint. The taint manager would delete the Pods of a really tainted node."""
    node = get_node(client, name=name, policy=policy)
    return None if node is None else replace(node, health=NodeHealth(Ready.FALSE, out_of_service=True))


def see_own_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """List one healthy node, and none of other tests. A node that is read by its name is out of service."""
    other = NodeSeen(
        "other", cordoned=False, health=NodeHealth(Ready.TRUE), room=Node({}, usable=True, allocatable=NOTHING)
    )
    monkeypatch.setattr(nodes, "list_nodes", lambda *_, **__: [other])
    monkeypatch.setattr(nodes, "get_node", out_of_service)


@pytest.fixture
def stage(database: Database, admin: KubeClient, home: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Three warm Pods, so that a list has a second page even without one of them, and no nodes of other tests."""
    see_own_nodes(monkeypatch)
    rt = StubRuntime(database, admin, home)
    current.install(rt)  # type: ignore[arg-type]
    stage = Stage(rt, home, admin)
    tidy(stage)
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    stage.outbox.sent.clear()
    TALLY.take()
    yield stage
    current.install(None)


def tidy(stage: Stage) -> None:
    """Delete everything except untouched Pods of the reconciler, and every ServiceAccount without a Pod."""
    warm = set()
    for pod in list_pods(stage.kube, namespace=stage.namespace):
        if pod.owner is None and pod.attempt is not None and pod.node is None and not pod.terminating:
            warm.add(pod.name)
        else:
            delete_pod(stage, pod.name)
    pages = metadata.metadata_pages(
        stage.kube, "serviceaccounts", namespace=stage.namespace, selector=metadata.OF_POOLS
    )
    for account in [account.name for page in pages for account in page if account.name not in warm]:
        stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/serviceaccounts/{account}")


@pytest.fixture
def github(stage: Stage) -> GitHub:
    stub = GitHub()
    stage.rt.github = stub
    return stub


def ledger(stage: Stage, sweep: str) -> list[Row[Any]]:
    return stage.rows("SELECT * FROM repairs WHERE sweep = :sweep ORDER BY id", sweep=sweep)


def state(stage: Stage) -> list[Any]:
    """Return the state that sweeps may change, without their own rows and their records of checks."""
    claims = stage.rows("SELECT id, purpose, state, end_reason, job_id, chain_no, due_at FROM claims ORDER BY id")
    jobs = stage.rows("SELECT id, state, hold_reason, pool_id, conclusion FROM jobs ORDER BY id")
    others = stage.rows(
        "SELECT closed_at FROM gates WHERE closed_at IS NOT NULL UNION ALL SELECT ended_at FROM executions"
    )
    github = stage.rt.github
    return [claims, jobs, others, [*stage.outbox.sent], [*github.deleted], [*github.asked], sorted(stage.pods())]


DRY_WRITES = {"sweep_runs", "repairs", "runner_lists", "catch_up_quotas"}
"""Tables that a dry run may write: its run, its planned repairs, shared lists of GitHub, and paid calls.

The calls of a dry run are real.
"""


def written_by(stage: Stage, act: Callable[[], object]) -> set[str]:
    """Return the tables in which `act` changes any row."""

    def rows() -> dict[str, list[str]]:
        with stage.rt.engine.begin() as db:
            return {table.name: sorted(map(str, db.execute(select(table)))) for table in schema.metadata.sorted_tables}

    before = rows()
    act()
    return {table for table, found in rows().items() if found != before[table]}


def take_lease(stage: Stage, member: Member) -> int:
    taken = transaction(
        stage.rt.engine,
        lambda db: sweep_runs.take(db, member.name, holder="another", lease=LEASE, again=False, now=utcnow()),
    )
    assert isinstance(taken, sweep_runs.Taken)
    return taken.lease_no


def forget_looks(stage: Stage) -> None:
    """Let runners be listed again, and unanswered questions be repeated at once."""
    stage.rows("DELETE FROM runner_lists")
    stage.rows("UPDATE jobs SET ask_after = NULL")
    stage.rows("UPDATE redelivery_progress SET not_before = NULL")


@of("writes")
def test_what_is_stalled_is_repaired_and_written_down_with_its_grounds(
    stage: Stage, github: GitHub, member: Member
) -> None:
    member.stall(stage, github)
    member.task.run()
    assert member.repaired(stage, github) == 1
    (row,) = ledger(stage, member.name)
    assert row.outcome in {"done", "verified"}
    assert row.what
    assert row.why
    assert (row.claim_id, row.job_id, row.pod_uid, row.subject) != (None, None, None, None)
    assert row.kills == (member.kills is True)
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (run.outcome, run.found, run.repaired, row.run_id) == ("done", 1, 1, run.id)


@of()
def test_sweep_changes_nothing_when_paused_or_beside_a_tick_and_a_dry_run_only_names(
    stage: Stage, github: GitHub, member: Member
) -> None:
    member.stall(stage, github)
    before = state(stage)

    transaction(stage.rt.engine, lambda db: sweep_runs.pause(db, member.name, by=author("bo"), why=""))
    member.task.run()
    assert state(stage) == before
    transaction(stage.rt.engine, lambda db: sweep_runs.resume(db, member.name, by=author("bo")))

    number = take_lease(stage, member)
    member.task.run()
    assert state(stage) == before
    assert ledger(stage, member.name) == []

    assert written_by(stage, lambda: member.task.run(dry=True)) <= DRY_WRITES  # also beside the other
    assert (state(stage), member.repaired(stage, github)) == (before, 0)
    assert [(row.outcome, row.dry) for row in ledger(stage, member.name)] == [("dry", True)] * (member.writes is True)

    stage.rows("UPDATE sweeps SET leased_until = NULL, lease_holder = NULL WHERE lease_no = :no", no=number)
    member.task.run()
    assert member.repaired(stage, github) == 1


@of("asks")
def test_dry_run_records_nothing_when_github_shows_nothing_or_fails(
    stage: Stage, github: GitHub, member: Member
) -> None:
    without_an_earlier_look(member).stall(stage, github)
    for github.broken, github.shows_nothing in ((True, False), (False, True)):
        assert written_by(stage, lambda: member.task.run(dry=True)) <= DRY_WRITES
        stage.rows("DELETE FROM runner_lists")


@pytest.mark.parametrize(
    "member", [member for member in FAMILY if member.task is not redelivery], ids=lambda member: member.name
)
def test_where_nothing_is_stalled_a_sweep_does_nothing_and_asks_github_for_nothing(
    stage: Stage, github: GitHub, member: Member
) -> None:
    stage.job(7, state="running")
    stage.claim(min(stage.pods()), job_id=7, state="executing")
    stage.rows(
        "INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at)"
        " SELECT 7, 'r', id, 1, 1, 1, now() FROM claims"
    )
    before = state(stage)
    member.task.run()
    assert (state(stage), ledger(stage, member.name)) == (before, [])
    assert github.calls == (len(ACTIVE) if member.name == "catch_up" else 0)  # it lists the runs that are under way
    (sweep,) = stage.rows("SELECT outcome FROM sweeps")
    assert sweep.outcome == "done"


@of()
def test_two_copies_at_once_repair_it_once(stage: Stage, github: GitHub, member: Member) -> None:
    member.stall(stage, github)
    together = threading.Barrier(2)

    def copy(_: int) -> None:
        together.wait(60)
        member.task.run()

    with ThreadPoolExecutor(2) as copies:
        list(copies.map(copy, range(2)))
    assert len(ledger(stage, member.name)) == (member.writes is True)
    assert member.repaired(stage, github) in ({1, 2} if member.repeats else {1})


@of("reads")
def test_a_list_that_cannot_be_trusted_changes_nothing(
    stage: Stage, github: GitHub, monkeypatch: pytest.MonkeyPatch, member: Member
) -> None:
    """If absence from a list means nothing, only what the list shows may lead to an action."""
    if member.name == "finished_jobs":  # one check of two, however empty, is none that repairs
        member = without_an_earlier_look(member)
    member.stall(stage, github)
    before = state(stage)
    for how in ("fails", "empty", "partial"):
        with monkeypatch.context() as patch:
            spoil(stage, github, patch, member, how)
            member.task.run()
        github.broken = github.shows_nothing = github.breaks_off = False
        forget_looks(stage)
        if how == "partial" and member.of_a_part:
            break
        assert (state(stage), member.repaired(stage, github)) == (before, 0), how
        assert ledger(stage, member.name) == []
        (run,) = stage.rows("SELECT outcome FROM sweep_runs ORDER BY id DESC LIMIT 1")
        assert how == "empty" or run.outcome == "aborted"
    if member.of_a_part:
        assert member.repaired(stage, github) == member.of_a_part
        return
    stage.rows("UPDATE claims SET runner_absent_at = NULL")
    if member.name == "finished_jobs":
        stage.rows("UPDATE claims SET runner_idle_at = now() - interval '61 s'")
    member.task.run()
    assert member.repaired(stage, github) == 1


def without_an_earlier_look(member: Member) -> Member:
    def stall(stage: Stage, github: GitHub) -> None:
        member.stall(stage, github)
        stage.rows("UPDATE claims SET runner_idle_at = NULL")

    return Member(**{**vars(member), "stall": stall})


def spoil(stage: Stage, github: GitHub, patch: pytest.MonkeyPatch, member: Member, how: str) -> None:
    """Break the list that a sweep reads: no answer, an empty answer, or no answer for its second page."""
    if member.reads in {"runners", "deliveries"}:
        github.shows_nothing = how == "empty"
        github.breaks_off = how == "partial" and member.reads == "deliveries"
        github.broken = not github.shows_nothing and not github.breaks_off  # the adapter gives all runners or none
        return
    if member.reads == "runs":
        if how == "fails":
            github.broken = True
        elif how == "empty":
            patch.setattr(github.listing, "runs", {})
        else:
            patch.setattr(github.listing, "withheld", 1)
        return
    patch.setattr(metadata, "PAGE", 1)
    original = stage.kube.get
    pages = 0

    def get(path: str, **given: Any) -> Any:
        nonlocal pages
        pages += 1
        if how == "fails" or (how == "partial" and pages > 1):
            raise Retryable("no answer")
        page = original(path, **given)
        if how == "partial":  # what is stalled came first
            page.metadata.following = "more"
        else:
            page.items, page.metadata = [], None
        return page

    if how == "partial" and member.of_a_part:
        patch.setattr(metadata, "PAGE", 500)
    patch.setattr(stage.kube, "get", get)


@of("asks", "gets")
def test_while_github_or_the_api_server_does_not_answer_nothing_is_repaired(
    stage: Stage, github: GitHub, monkeypatch: pytest.MonkeyPatch, member: Member
) -> None:
    member.stall(stage, github)
    before = state(stage)
    if member.asks is True:
        github.broken = True
        member.task.run()
        assert (state(stage), member.repaired(stage, github)) == (before, 0)
        github.broken = False
    if member.gets is True:
        with monkeypatch.context() as patch:
            failing_gets(stage, patch)
            member.task.run()
        assert (state(stage), member.repaired(stage, github)) == (before, 0)
        (run,) = stage.rows("SELECT outcome, why FROM sweep_runs ORDER BY id DESC LIMIT 1")
        assert tuple(run) == ("aborted", "every check failed")
        (sweep,) = stage.rows("SELECT succeeded_at FROM sweeps")
        assert sweep.succeeded_at is None or member.asks is True
    assert [row for row in ledger(stage, member.name) if row.outcome not in {"failed", "moved_on"}] == []
    forget_looks(stage)
    member.task.run()
    assert member.repaired(stage, github) == 1


def failing_gets(stage: Stage, patch: pytest.MonkeyPatch) -> None:
    original = stage.kube.request

    def request(method: str, path: str, **given: Any) -> Any:
        if method == "GET" and "/pods/" in path:
            raise Retryable("no answer")
        return original(method, path, **given)

    patch.setattr(stage.kube, "request", request)


@pytest.mark.parametrize(
    ("member", "moves"),
    [
        pytest.param(member, moves, id=f"{member.name}-{number}")
        for member in FAMILY
        if not isinstance(member.moves, No)
        for number, moves in enumerate(member.moves)
    ],
)
def test_a_row_that_moved_between_verdict_and_action_is_left(
    stage: Stage, github: GitHub, monkeypatch: pytest.MonkeyPatch, member: Member, moves: Between
) -> None:
    member.stall(stage, github)
    before_its(monkeypatch, ("repair", "repair_by"), lambda: moves(stage))
    member.task.run()
    assert member.repaired(stage, github) == 0
    assert [row for row in ledger(stage, member.name) if row.outcome != "moved_on"] == []
    assert (stage.outbox.sent, github.deleted) == ([], [])
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (run.found, run.repaired, run.moved_on) == (1, 0, 1)


@of("late")
def test_what_is_claimed_between_the_list_and_the_rows_is_left(
    stage: Stage, github: GitHub, monkeypatch: pytest.MonkeyPatch, member: Member
) -> None:
    late = member.late
    assert not isinstance(late, No)
    if member.late_strands:
        member.stall(stage, github)
    before_its(monkeypatch, ("listed",), lambda: late(stage))
    member.task.run()
    monkeypatch.undo()
    assert member.repaired(stage, github) == 0
    assert ledger(stage, member.name) == []
    assert stage.outbox.sent == []
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (run.outcome, run.found) == ("done", 0)


def before_its(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], act: Callable[[], object]) -> None:
    """Do something once, before a tick calls one of these functions."""
    todo = [act]
    for name in names:
        original = getattr(Tick, name)

        def meanwhile(tick: Tick, *given: Any, original: Any = original, **named: Any) -> Any:
            if todo:
                todo.pop()()
            return original(tick, *given, **named)

        monkeypatch.setattr(Tick, name, meanwhile)


@of("remapped")
def test_job_remapped_by_a_webhook_during_the_sweep_is_left_unchanged(
    stage: Stage, github: GitHub, member: Member
) -> None:
    member.stall(stage, github)
    then: list[Any] = []
    remapped = member.remapped
    assert not isinstance(remapped, No)

    def meanwhile() -> None:
        remapped(stage)
        then.append(state(stage)[:4])

    github.meanwhile = meanwhile
    member.task.run()
    assert [state(stage)[:4]] == then
    assert [row for row in ledger(stage, member.name) if row.outcome != "moved_on"] == []


@of("namesake")
@pytest.mark.parametrize("when", ["before the tick", "after the list"])
def test_another_pod_of_that_name_is_not_taken_for_it(
    stage: Stage, github: GitHub, monkeypatch: pytest.MonkeyPatch, member: Member, when: str
) -> None:
    member.stall(stage, github)
    uids = {pod.uid for pod in stage.pods().values()}
    name = min(row.name for row in stage.rows("SELECT name FROM runner_pods"))
    if when == "before the tick":
        replace_pod(stage, name)
    else:
        before_its(monkeypatch, ("listed",), lambda: replace_pod(stage, name))
    member.task.run()
    monkeypatch.undo()
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (member.repaired(stage, github), run.found) == (member.namesake, member.namesake)
    assert stage.pods()[name].uid not in uids
    assert stage.rows("SELECT 1 FROM claims WHERE pod_uid = :uid", uid=stage.pods()[name].uid) == []


def replace_pod(stage: Stage, name: str) -> None:
    """Create another Pod of this name, which is stamped and whose poller failed too."""
    if name in stage.pods():
        delete_pod(stage, name)
    create_pod(stage, name, **{OWNER_LABEL: "1"})
    stage.finish(name, phase="Running", poller=1, runner=None)


BUDGET = {"repair_budget_least": 0, "repair_budget_percent": 0}
SHUT = "INSERT INTO gates (upstream, closed_at, why) VALUES ('kubernetes', now(), 'it fails')"
OLDER = "UPDATE epochs SET older_since = now(), why = 'it was put back'"


@of("writes")
def test_only_killing_repairs_wait_without_budget_behind_a_closed_gate_or_when_older(
    stage: Stage, github: GitHub, member: Member
) -> None:
    member.stall(stage, github)
    before = state(stage)
    if isinstance(member.kills, No):
        stage.with_settings(**BUDGET)
        stage.rows(SHUT)
        member.task.run()
        assert member.repaired(stage, github) == 1
        return
    settings = stage.rt.settings
    for obstacle in (BUDGET, SHUT, OLDER):
        if isinstance(obstacle, dict):
            stage.with_settings(**obstacle)
        else:
            stage.rows(obstacle)
        member.task.run()
        (run,) = stage.rows("SELECT * FROM sweep_runs ORDER BY id DESC LIMIT 1")
        assert (run.found, run.repaired, run.overflow, run.outcome) == (1, 0, 1, "unfinished")
        stage.rt.settings = settings
        stage.rows("DELETE FROM gates")
        stage.rows("UPDATE epochs SET older_since = NULL, why = NULL")
    assert state(stage)[3:] == before[3:]
    assert RELEASING(stage, github) + RETIRING(stage, github) == 0
    member.task.run()
    assert member.repaired(stage, github) == 1
