"""Outages of Redis and Postgres: the visible effects, the automatic recoveries, and their times.

One system runs for the whole module. Each test prints its row of the table in `docs/operations/upstreams.md`.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from k8s_adapters.calls.client import KubeClient
from lab.control_plane import ClusterAccess
from lab.system import read_log
from lab.verdict import judge
from tests.integration.stores.bad_day import BadDay, Seen, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OUTAGE = 20.0


@pytest.fixture(scope="module")
def day(control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadDay]:
    """The system."""
    namespace = f"stores-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    with running(tmp_path_factory.mktemp("stores"), control_plane, namespace) as found:
        yield found
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


def nothing() -> None:
    """Do nothing."""


def tell(what: str, seen: Seen) -> None:
    """Print the row of the test."""
    print(f"\n{seen.row(what)}")  # noqa: T201


def assert_taken(seen: Seen) -> None:
    """Check that every webhook was accepted, and that web was always ready."""
    assert set(seen.webhooks) == {"202"}, seen
    assert set(seen.readiness) == {200}, seen


# Redis: webhooks are taken all the time; work goes on when it is back.


def test_redis_is_gone_in_mid_flight_and_comes_back_empty(day: BadDay) -> None:
    seen = day.suffer(day.system.redis.child.kill, day.system.redis.start, seconds=OUTAGE)
    tell("Redis gone for 20 s, back empty", seen)
    assert_taken(seen)
    assert seen.next_job_after < 60


def test_redis_is_gone_when_processes_start(day: BadDay) -> None:
    def begin() -> None:
        day.proxy.refuse("redis")
        day.restart("web", "worker", "beat")
        end = time.monotonic() + 120
        while day.readiness() != 200:
            assert time.monotonic() < end, "web does not get ready without Redis"
            time.sleep(0.2)

    seen = day.suffer(begin, lambda: day.proxy.restore("redis"), seconds=OUTAGE)
    tell("Redis refuses for 20 s while every process starts", seen)
    assert_taken(seen)
    assert seen.ended == ()
    assert seen.next_job_after < 60


def test_redis_stops_answering(day: BadDay) -> None:
    seen = day.suffer(lambda: day.proxy.silence("redis"), lambda: day.proxy.restore("redis"), seconds=OUTAGE)
    tell("Redis silent for 20 s, no connection ended", seen)
    assert_taken(seen)
    assert seen.next_job_after < 90


def test_redis_is_flushed(day: BadDay) -> None:
    seen = day.suffer(day.system.redis.flush, nothing, seconds=1)
    tell("Redis flushed", seen)
    assert_taken(seen)
    assert seen.next_job_after < 30


def redis_config(day: BadDay, **settings: str) -> None:
    """Change settings of the running Redis."""
    with day.system.redis.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


def test_redis_is_out_of_memory(day: BadDay) -> None:
    seen = day.suffer(
        lambda: redis_config(day, maxmemory="1"), lambda: redis_config(day, maxmemory="0"), seconds=OUTAGE
    )
    tell("Redis out of memory for 20 s (noeviction)", seen)
    assert_taken(seen)
    assert seen.next_job_after < 60


def test_redis_is_read_only(day: BadDay) -> None:
    def replica(host: str, port: str) -> None:
        with day.system.redis.client() as client:
            client.execute_command("REPLICAOF", host, port)

    seen = day.suffer(lambda: replica("127.0.0.1", "1"), lambda: replica("NO", "ONE"), seconds=OUTAGE)
    tell("Redis a read-only replica for 20 s", seen)
    assert_taken(seen)
    assert seen.next_job_after < 60


def test_redis_lacks_its_replicas(day: BadDay) -> None:
    seen = day.suffer(
        lambda: redis_config(day, min_replicas_to_write="1"),
        lambda: redis_config(day, min_replicas_to_write="0"),
        seconds=OUTAGE,
    )
    tell("Redis without enough replicas to write for 20 s", seen)
    assert_taken(seen)
    assert seen.next_job_after < 60


# Postgres: webhooks are refused with 503, which GitHub is asked to send again.


def test_postgres_is_restarted(day: BadDay) -> None:
    seen = day.suffer(day.system.postgres.restart, nothing, seconds=1)
    tell("Postgres restarted at once", seen)
    assert seen.next_job_after < 60


def test_postgres_refuses_connections(day: BadDay) -> None:
    seen = day.suffer(lambda: day.proxy.refuse("postgres"), lambda: day.proxy.restore("postgres"), seconds=OUTAGE)
    tell("Postgres refuses connections for 20 s", seen)
    assert set(seen.webhooks) <= {"503", "202"}, seen
    assert seen.readiness[503], seen
    assert seen.ended == ()
    assert seen.next_job_after < 60


def test_postgres_refuses_when_processes_start(day: BadDay) -> None:
    def begin() -> None:
        day.proxy.refuse("postgres")
        day.restart("web", "worker", "beat")

    seen = day.suffer(begin, lambda: day.proxy.restore("postgres"), seconds=OUTAGE)
    tell("Postgres refuses for 20 s while every process starts", seen)
    assert seen.ended == ()
    assert seen.next_job_after < 90


def test_postgres_stops_answering(day: BadDay) -> None:
    seen = day.suffer(lambda: day.proxy.silence("postgres"), lambda: day.proxy.restore("postgres"), seconds=OUTAGE)
    tell("Postgres silent for 20 s, no connection ended", seen)
    assert seen.readiness[503], seen
    assert seen.next_job_after < 90


def read_only(day: BadDay, *, on: bool) -> None:
    """Make new transactions of new sessions read-only, or no longer. Only the first of the two ends the sessions."""
    day.sql(f"ALTER DATABASE ostler SET default_transaction_read_only = {'on' if on else 'off'}")
    if on:
        day.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'ostler%'")


def test_postgres_is_read_only_and_its_sessions_stay_so(day: BadDay) -> None:
    seen = day.suffer(lambda: read_only(day, on=True), lambda: read_only_ends(day), seconds=OUTAGE)
    tell("Postgres read-only for 20 s, as after a failover; the sessions stay read-only", seen)
    assert set(seen.webhooks) <= {"503"}, seen
    assert seen.next_job_after < 60


def read_only_ends(day: BadDay) -> None:
    """Let new sessions write again. Existing sessions stay read-only, like those to a demoted server."""
    with day.administrator() as cursor:
        cursor.execute("SET default_transaction_read_only = off")
        cursor.execute("ALTER DATABASE ostler SET default_transaction_read_only = off")


def test_a_table_is_locked(day: BadDay) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with day.administrator() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
            held.set()
            release.wait(120)
            cursor.execute("COMMIT")

    holder = threading.Thread(target=hold)

    def begin() -> None:
        holder.start()
        assert held.wait(30)

    def end() -> None:
        release.set()
        holder.join()

    seen = day.suffer(begin, end, seconds=OUTAGE)
    tell("The table of jobs locked for 20 s", seen)
    assert seen.ended == ()
    assert seen.next_job_after < 60


def test_postgres_has_no_connection_left(day: BadDay) -> None:
    taken: list[Any] = []

    def begin() -> None:
        with day.administrator() as cursor:
            ours = "FROM pg_stat_activity WHERE application_name LIKE 'ostler%'"
            before, left = -1, 1
            while left or len(taken) > before:  # a backend that was just ending has left a place
                before = len(taken)
                cursor.execute(f"SELECT pg_terminate_backend(pid) {ours}")
                with contextlib.suppress(psycopg2.OperationalError):
                    while True:
                        taken.append(day.connect())
                cursor.execute(f"SELECT count(*) {ours}")
                ((left,),) = cursor.fetchall()

    def end() -> None:
        for each in taken:
            each.close()

    seen = day.suffer(begin, end, seconds=OUTAGE)
    tell("No connection to Postgres left for 20 s", seen)
    assert seen.ended == ()
    assert seen.next_job_after < 60


def test_after_all_of_it_every_job_has_run_once(day: BadDay) -> None:
    end = time.monotonic() + 300
    while day.system.lab("GET", "/runners")["runners"]:
        assert time.monotonic() < end, "runners are left at GitHub"
        time.sleep(1)
    verdict = judge(read_log(day.system.github_log), read_log(day.system.kubelet_log))
    assert verdict.problems == ()
    assert verdict.completed == verdict.jobs
