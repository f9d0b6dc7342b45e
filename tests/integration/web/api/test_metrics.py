"""`/metrics`: gauges from rows, counters of events, and a page of the docs that lists all of them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from models.db.engine import make_engine, transaction
from models.state.transitions import move_jobs
from ostler import telemetry
from ostler.clock import utcnow
from ostler.secrets import Secret
from ostler.task_names import SWEEPS
from tests.integration.models.webhook_rows import add_claim
from tests.integration.web.api.conftest import Stage
from web.api.database import Database
from web.health import metrics as web_metrics
from web.health.metrics import Held, Metrics
from web.health.watchdog import Watchdog

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


@pytest.fixture(autouse=True)
def _patient_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rows take as long as a busy machine needs, and keep them during a whole test."""
    monkeypatch.setattr(web_metrics, "WITHIN", 90.0)
    monkeypatch.setattr(web_metrics, "EVERY", 3600.0)
    monkeypatch.setattr(web_metrics, "RENDERED", 0.0)


def scrape(metrics: Metrics) -> dict[str, float]:
    """Return a scrape as a mapping of series to values."""
    answer = asyncio.run(metrics.serve(None))  # type: ignore[arg-type]
    lines = bytes(answer.body).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def make(database: Database, **counts: int) -> Metrics:
    return with_setting(database, (), **counts)


def with_setting(database: Database, off: Collection[str], **counts: int) -> Metrics:
    """Return the metrics of a web process with these names in `OSTLER_SWEEPS_PAUSED`."""
    held = Held(polls=3, webhooks=2, messages=1, messages_dropped=0)
    watchdog = Watchdog(dict.fromkeys(SWEEPS, 60.0), off=off, since=utcnow() - timedelta(seconds=200))
    return Metrics(database=database, watchdog=watchdog, counts=Counter(counts), held=lambda: held)


def test_scrapes_of_one_second_are_given_one_page(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_metrics, "RENDERED", 3600.0)
    database = Database(stage.engine)
    metrics = make(database)

    async def story() -> list[bytes]:
        answers = []
        for _ in range(80):
            metrics._counts["poll.204"] += 1
            answers.append(bytes((await metrics.serve(None)).body))  # type: ignore[arg-type]
        return answers

    assert len(set(asyncio.run(story()))) == 1
    database.stop()


def test_rows_are_shown_in_numbers_and_zeros_are_shown_too(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    for number in range(1, 4):
        stage.job(number, pool_id=pool)
    stage.job(5, hold_reason="no_pool")
    stage.job(6, pool_id=pool, state="completed")
    add_claim(stage.engine, pool, 1, account_id=7)
    stage.execute("UPDATE claims SET changed_at = now() - interval '61 s'")
    database = Database(stage.engine)
    found = scrape(make(database, **{"poll.204": 9, "delivery.first": 4}))
    assert found["ostler_database_up"] == 1
    assert found['ostler_jobs{hold_reason="none",state="queued"}'] == 2
    assert found['ostler_jobs{hold_reason="no_pool",state="queued"}'] == 1
    assert found['ostler_jobs{hold_reason="set_aside",state="queued"}'] == 0
    assert found['ostler_claims{purpose="job",state="delivered"}'] == 1
    assert found['ostler_claims{purpose="retire",state="claimed"}'] == 0
    assert 60 < found['ostler_oldest_claim_seconds{purpose="job",state="delivered"}'] < 120
    assert found['ostler_oldest_claim_seconds{purpose="job",state="releasing"}'] == 0
    assert found["ostler_oldest_queued_job_seconds"] > 0
    assert (found["ostler_polls_held"], found["ostler_webhooks_waiting"]) == (3, 2)
    assert (found['ostler_polls_total{status="204"}'], found['ostler_polls_total{status="410"}']) == (9, 0)
    assert found['ostler_deliveries_total{outcome="first"}'] == 4
    database.stop()


def test_a_braked_pool_is_shown_with_its_runners_and_others_are_not(stage: Stage) -> None:
    stage.pool()
    database = Database(stage.engine)
    assert not [series for series in scrape(make(database)) if series.startswith("ostler_pool_braked")]
    stage.execute("""
        INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at, at,
                                     exit_code, why)
        SELECT n, id, template_hash, n, n, 'pod-' || n, now(), now(), 1, 'it ended' FROM pools, generate_series(1, 4) n
    """)
    found = [(series, value) for series, value in scrape(make(database)).items() if "ostler_pool_braked" in series]
    ((series, value),) = found
    assert value == 4
    assert 'why="never_executed"' in series
    database.stop()


def test_oldest_dispatchable_job_is_of_an_account_whose_budget_has_room(stage: Stage) -> None:
    """An account at its limit waits for itself, so no operator must be alarmed."""
    pool, now = stage.pool(), utcnow()
    stage.account(count=1)
    stage.job(1, pool_id=pool, state="running")
    add_claim(stage.engine, pool, 1, account_id=7)
    stage.job(2, pool_id=pool, queued_at=now - timedelta(hours=2))
    database = Database(stage.engine)
    found = scrape(make(database))
    assert found["ostler_oldest_queued_job_seconds"] > 7000
    assert found["ostler_oldest_dispatchable_job_seconds"] == 0
    database.stop()

    stage.account(8, "globex", count=1)
    stage.job(3, pool_id=pool, account_id=8, queued_at=now - timedelta(minutes=10))
    stage.job(4, pool_id=pool, account_id=8, queued_at=now - timedelta(hours=3), hold_reason="set_aside")
    database = Database(stage.engine)
    assert 599 < scrape(make(database))["ostler_oldest_dispatchable_job_seconds"] < 700
    database.stop()


@pytest.mark.parametrize("budget", ["budget_vcpu = 1999", "budget_memory = 4095", "budget_count = 0"])
def test_oldest_dispatchable_job_fits_the_budget_in_every_measure(stage: Stage, budget: str) -> None:
    stage.account()
    stage.job(2, pool_id=stage.pool(), queued_at=utcnow() - timedelta(hours=2))
    database = Database(stage.engine)
    assert scrape(make(database))["ostler_oldest_dispatchable_job_seconds"] > 7000
    database.stop()

    stage.execute(f"UPDATE accounts SET {budget}")  # noqa: S608  a literal above
    database = Database(stage.engine)
    assert scrape(make(database))["ostler_oldest_dispatchable_job_seconds"] == 0
    database.stop()


def test_each_pool_shows_its_queue_and_the_pods_that_the_reconciler_counted(stage: Stage) -> None:
    database = Database(stage.engine)
    stage.account()
    pool = stage.pool()
    stage.pool("idle", labels=("idle",))
    stage.job(1, pool_id=pool, queued_at=utcnow() - timedelta(seconds=90))
    stage.job(2, pool_id=pool, hold_reason="backoff")
    stage.execute(
        "UPDATE pools SET status = CAST(:s AS jsonb), status_at = now() WHERE id = :id", s='{"warm": 2}', id=pool
    )
    try:
        found = scrape(make(database))
    finally:
        database.stop()
    place = 'namespace="runners",pool="small"'
    assert found[f'ostler_pool_jobs{{{place},state="queued"}}'] == 1
    assert found[f'ostler_pool_jobs{{{place},state="held"}}'] == 1
    assert found[f'ostler_pool_pods{{{place},state="warm"}}'] == 2
    assert found[f'ostler_pool_pods{{{place},state="busy"}}'] == 0
    assert 90 <= found[f"ostler_pool_oldest_dispatchable_job_seconds{{{place}}}"] < 200
    idle = 'namespace="runners",pool="idle"'
    assert found[f"ostler_pool_oldest_dispatchable_job_seconds{{{idle}}}"] == 0
    assert not [series for series in found if series.startswith("ostler_pool_pods") and idle in series]


def test_counters_of_a_pool_begin_at_zero_when_web_first_sees_the_pool(stage: Stage) -> None:
    stage.pool("fresh")
    database = Database(stage.engine)
    try:
        found = scrape(make(database))
    finally:
        database.stop()
    assert found['ostler_remaps_total{namespace="runners",pool="fresh"}'] == 0
    assert found['ostler_job_wait_seconds_count{namespace="runners",pool="fresh"}'] == 0


@pytest.mark.parametrize(
    ("most", "shown"), [(0, set()), (1, {"acme", "(others)"}), (3, {"acme", "globex", "umbrella"})]
)
def test_accounts_have_metrics_only_up_to_the_bound_of_the_setting(stage: Stage, most: int, shown: set[str]) -> None:
    pool = stage.pool()
    for number, login in ((7, "acme"), (8, "globex"), (9, "umbrella")):
        stage.account(number, login, count=number)
        stage.job(number * 10, pool_id=pool, account_id=number, queued_at=utcnow() - timedelta(seconds=number * 100))
    stage.job(71, pool_id=pool, account_id=7, hold_reason="backoff")
    database = Database(stage.engine)
    metrics = make(database)
    metrics._accounts = most
    try:
        found = {series: value for series, value in scrape(metrics).items() if series.startswith("ostler_account")}
    finally:
        database.stop()
    assert {match for series in found for match in re.findall(r'account="([^"]*)"', series)} == shown
    assert len(found) == 6 * len(shown)
    if most == 1:
        assert found['ostler_account_jobs{account="acme",state="held"}'] == 1
        assert found['ostler_account_jobs{account="(others)",state="queued"}'] == 2
        assert found['ostler_account_pods{account="(others)",is="budget"}'] == 17
        assert 900 <= found['ostler_account_oldest_queued_job_seconds{account="(others)"}'] < 1000


def test_an_autoscaled_pool_shows_what_its_replicas_were_decided_from(stage: Stage) -> None:
    stage.pool()
    told = '{"load": 3, "queue": 2, "usual": 4, "min_warm": 1, "max_replicas": 9, "why": "words"}'
    database = Database(stage.engine)
    assert not [series for series in scrape(make(database)) if series.startswith("ostler_pool_scaling")]
    stage.execute("UPDATE pools SET autoscaled = true, replicas = 6, scaling = CAST(:told AS jsonb)", told=told)
    found = {series: value for series, value in scrape(make(database)).items() if "ostler_pool_scaling" in series}
    assert sorted(found.values()) == [1, 2, 3, 4, 6, 9]
    (series,) = (series for series, value in found.items() if value == 6)
    assert 'part="replicas",pool="small"' in series
    database.stop()


def test_a_sweep_that_missed_three_periods_is_late_and_a_paused_one_is_not(stage: Stage) -> None:
    stage.execute("INSERT INTO sweeps (name, succeeded_at) VALUES ('rematch', now() - interval '179 s')")
    stage.execute("INSERT INTO sweeps (name, succeeded_at) VALUES ('resume', now() - interval '181 s')")
    stage.execute("INSERT INTO sweeps (name, paused_at, paused_by) VALUES ('redelivery', now(), 'bo')")
    database = Database(stage.engine)
    found = scrape(make(database))
    late = {name: found[f'ostler_sweep_late{{sweep="{name}"}}'] for name in SWEEPS}
    assert late == {name: float(name not in {"rematch", "redelivery"}) for name in SWEEPS}
    assert 179 <= found['ostler_sweep_lag_seconds{sweep="rematch"}'] < 200
    assert found['ostler_sweep_lag_seconds{sweep="stale_claims"}'] >= 200
    assert found['ostler_sweep_paused{sweep="redelivery"}'] == 1
    assert found['ostler_sweep_paused{sweep="resume"}'] == 0
    database.stop()


def test_a_sweep_that_the_setting_pauses_is_paused_and_not_late(stage: Stage) -> None:
    stage.execute("INSERT INTO sweeps (name, succeeded_at) VALUES ('resume', now() - interval '181 s')")
    stage.execute("INSERT INTO sweeps (name, succeeded_at) VALUES ('rematch', now() - interval '181 s')")
    database = Database(stage.engine)
    for off, rematch in (("rematch", (1, 0)), ("all", (1, 0)), ("prune", (0, 1))):
        found = scrape(with_setting(database, (off,)))
        assert tuple(found[f'ostler_sweep_{each}{{sweep="rematch"}}'] for each in ("paused", "late")) == rematch
        assert found['ostler_sweep_late{sweep="resume"}'] == (off != "all")
    database.stop()


def test_after_a_copy_was_put_back_a_sweep_is_late_by_what_it_did_since_then(stage: Stage) -> None:
    stage.execute("INSERT INTO sweeps (name, succeeded_at) VALUES ('rematch', now() - interval '3 h')")
    database = Database(stage.engine)
    assert scrape(make(database))['ostler_sweep_late{sweep="rematch"}'] == 1
    for seconds, late in ((179, 0), (181, 1)):
        stage.execute("UPDATE epochs SET lost_until = now() - make_interval(secs => :s)", s=seconds)
        assert scrape(make(Database(stage.engine)))['ostler_sweep_late{sweep="rematch"}'] == late
    database.stop()


def test_coverage_is_shown_before_and_after_the_first_check(stage: Stage) -> None:
    series = {f'ostler_catch_up_repositories{{is="{part}"}}' for part in ("due", "checked")}
    series |= {f'ostler_redelivery_read_timestamp_seconds{{part="{part}"}}' for part in ("newest", "all")}
    database = Database(stage.engine)
    assert {name: value for name, value in scrape(make(database)).items() if name in series} == dict.fromkeys(series, 0)
    stage.execute(
        """
        INSERT INTO catch_up_repositories (repository, due_at, checked_at) VALUES
            ('acme/a', now(), now() - interval '14 min'), ('acme/b', now(), now() - interval '16 min'),
            ('acme/c', now(), NULL), ('acme/old', now() - interval '1 h', now() - interval '1 min')
        """
    )
    stage.execute(
        "INSERT INTO redelivery_progress (id, checked_at, checkpoint) VALUES (1, now(), now() - interval '1 h')"
    )
    found = scrape(make(database))
    assert [found[f'ostler_catch_up_repositories{{is="{part}"}}'] for part in ("due", "checked")] == [3, 1]
    newest, every = (found[f'ostler_redelivery_read_timestamp_seconds{{part="{part}"}}'] for part in ("newest", "all"))
    assert 3599 < newest - every < 3601
    database.stop()


def test_the_rows_are_asked_once_however_many_scrape(stage: Stage) -> None:
    asked: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    event.listen(stage.engine, "before_cursor_execute", note)
    database = Database(stage.engine)
    metrics = make(database)

    async def many() -> None:
        await asyncio.gather(*(metrics.serve(None) for _ in range(20)))  # type: ignore[arg-type]
        await metrics.serve(None)  # type: ignore[arg-type]

    asyncio.run(many())
    event.remove(stage.engine, "before_cursor_execute", note)
    assert len([statement for statement in asked if "GROUP BY state, hold_reason" in statement]) == 1
    database.stop()


def test_without_postgres_the_rows_are_missing_rather_than_wrong(stage: Stage) -> None:
    del stage
    away = make_engine(Secret("postgresql+psycopg2://u@127.0.0.1:1/x"), pool_size=1, application="test")
    database = Database(away)
    found = scrape(make(database))
    assert found["ostler_database_up"] == 0
    assert not [name for name in found if name.startswith(("ostler_jobs", "ostler_claims", "ostler_oldest"))]
    assert "ostler_stamps_missed_total" in found
    database.stop()


def test_a_transition_is_counted_when_it_is_committed_and_by_rows(stage: Stage) -> None:
    stage.account()
    for number in (1, 2):
        stage.job(number, pool_id=stage.pool(f"p{number}"))

    def counted() -> float:
        value = telemetry.TRANSITIONS.labels("job", "job_claim")._value.get()
        return float(value)

    def claim(db: Any, *, fail: bool) -> None:
        move_jobs(db, "job_claim", [1, 2], now=utcnow(), who="test", why="test")
        if fail:
            db.execute(text("SELECT 1 / 0"))

    before = counted()
    with pytest.raises(DBAPIError, match="division"):
        transaction(stage.engine, lambda db: claim(db, fail=True))
    assert counted() == before
    transaction(stage.engine, lambda db: claim(db, fail=False))
    assert counted() == before + 2


def test_refused_tokens_and_answers_of_the_api_are_counted(stage: Stage) -> None:
    def counted() -> float:
        return float(telemetry.API_UNAUTHORIZED.labels("unknown")._value.get())

    before = counted()
    assert stage.client.call("GET", "/api/v1/jobs", token=f"ostler_{'0' * 16}_{'A' * 43}").status_code == 401
    assert counted() == before + 1


def test_the_page_lists_every_metric_and_no_other(stage: Stage) -> None:
    database = Database(stage.engine)
    answer = asyncio.run(make(database).serve(None))  # type: ignore[arg-type]
    types = dict(re.findall(r"^# TYPE (ostler_\w+) (\w+)$", bytes(answer.body).decode(), flags=re.MULTILINE))
    documented = dict(re.findall(r"^\| `(ostler_\w+)` \| (\w+)", DOCS.read_text(), flags=re.MULTILINE))
    assert documented == types
    database.stop()
