"""`ostler usage` shows the use of a month and the starts against targets, for people, scripts and spreadsheets."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest

from ostler.clock import utcnow
from tests.integration.cli.test_operator import Operator, count_pods, operator

__all__ = ["operator"]

MONTH = (utcnow().replace(day=1) - timedelta(days=40)).strftime("%Y-%m")
BEGIN = datetime.strptime(MONTH, "%Y-%m").replace(tzinfo=UTC)
END = (BEGIN + timedelta(days=32)).replace(day=1)

WARM_BEFORE = """
    UPDATE runner_pods SET created_at = created_at - interval '1 h', first_polled_at = first_polled_at - interval '1 h'
"""
AT_BUDGET = """
    UPDATE runner_pods SET created_at = created_at - interval '1 h', first_polled_at = first_polled_at - interval '1 h';
    UPDATE accounts SET budget_count = 1
"""


@pytest.fixture
def history(operator: Operator) -> Operator:
    """Job 11 waited 10 minutes for a Pod, which began to poll 30 s after its creation, and ran over the month's end.

    The Pod was warm for 5 s. The target of the pool is one minute.
    """
    count_pods(operator)
    operator.execute("UPDATE pools SET start_target = 60")
    operator.execute(
        "UPDATE jobs SET state = 'completed', queued_at = :queued, completed_at = :until WHERE id = 11",
        queued=END - timedelta(minutes=20),
        until=END + timedelta(minutes=30),
    )
    claimed = END - timedelta(minutes=10, seconds=5)
    operator.execute(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at, first_polled_at,
                                 terminal_at, gone_at)
        SELECT pool_id, 'runners', 'old-1', 'old-1', 'old-1', 'h', :created, :polled, :until, :until
        FROM jobs WHERE id = 11
        """,
        created=claimed - timedelta(seconds=35),
        polled=claimed - timedelta(seconds=5),
        until=END + timedelta(minutes=30),
    )
    operator.execute(
        """
        INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory, state,
                            created_at, changed_at, minted_at, delivered_at, ended_at, end_reason)
        SELECT 'job', 11, r.id, r.uid, r.pool_id, 77, 'orgs/acme', 1, 1, 'ended', :at, :at, :at, :at, :until,
               'completed'
        FROM runner_pods r WHERE r.name = 'old-1'
        """,
        at=claimed,
        until=END + timedelta(minutes=30),
    )
    operator.execute(
        """
        INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at, ended_at)
        SELECT 11, 'r', id, 77, 1, 1, :started, :until FROM claims WHERE pod_uid = 'old-1'
        """,
        started=END - timedelta(minutes=10),
        until=END + timedelta(minutes=30),
    )
    return operator


def test_usage_counts_the_minutes_within_the_month_and_the_idle_time(history: Operator) -> None:
    found = history.json("usage", "--month", MONTH)
    used, idle = found["items"]
    assert (used["account"], used["pool"], used["repository"]) == ("acme", "linux", "acme/app")
    assert (used["jobs"], used["runner_minutes"], used["idle_minutes"]) == (1, 10, 0)
    assert (idle["account"], idle["pool"], idle["runner_minutes"]) == (None, "linux", 0)
    assert idle["idle_minutes"] == pytest.approx(5 / 60)
    assert found["rows_since_at"].startswith(f"{END:%Y-%m-%d}")
    (after,) = (each for each in history.json("usage", "--month", f"{END:%Y-%m}")["items"] if each["account"])
    assert (after["jobs"], after["runner_minutes"]) == (1, 30)
    assert history.json("usage", "--month", "2020-02")["items"] == []


def test_usage_has_the_vcpu_minutes_of_jobs_and_of_idle_pods_and_sums_by_account(history: Operator) -> None:
    history.execute("UPDATE executions SET vcpu = 1500 WHERE job_id = 11")
    history.execute("UPDATE pools SET vcpu = 4000")  # only idle time has the present size of the pool
    history.execute(
        """
        INSERT INTO jobs (id, account_id, repository, scope, run_id, run_attempt, name, labels, state, pool_id,
                          queued_at, completed_at, changed_at)
        SELECT 111, account_id, 'acme/other', scope, run_id, run_attempt, name, labels, state, pool_id, queued_at,
               completed_at, changed_at FROM jobs WHERE id = 11
        """
    )
    history.execute(
        """
        INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at, ended_at)
        SELECT 111, 'other', 77, 500, 1, started_at, started_at + interval '2 min' FROM executions WHERE job_id = 11
        """
    )
    found = history.json("usage", "--month", MONTH)
    minutes = {each["repository"]: (each["runner_minutes"], each["vcpu_minutes"]) for each in found["items"]}
    idle = minutes.pop(None)
    assert minutes == {"acme/app": (10, 15), "acme/other": (2, 1)}
    assert idle == (0, pytest.approx(4 * 5 / 60))
    acme, rest = found["accounts"]
    assert acme == {"account": "acme", "jobs": 2, "runner_minutes": 12, "idle_minutes": 0, "vcpu_minutes": 16}
    assert (rest["account"], rest["vcpu_minutes"]) == (None, pytest.approx(4 * 5 / 60))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ("SELECT", "capacity"),
        ("UPDATE runner_pods SET created_at = created_at - interval '9 min'", "cluster"),
        (WARM_BEFORE, "ostler"),
        (AT_BUDGET, "budget"),
        ("UPDATE claims SET created_at = created_at - interval '9 min'", "github"),
        ("UPDATE executions SET claim_id = NULL", "capacity"),
        ("UPDATE pools SET start_target = 700", None),
    ],
)
def test_usage_blames_the_longest_part_of_a_late_start(history: Operator, change: str, cause: str | None) -> None:
    history.execute(change)
    (found,) = history.json("usage", "--month", MONTH)["starts"]
    assert (found["pool"], found["jobs"], found["late"]) == ("linux", 1, int(cause is not None))
    assert {name for name, many in found["blamed"].items() if many} == ({cause} - {None})


@pytest.mark.parametrize(("outcome", "cause"), [(None, "cluster"), ("removed", "cluster"), ("refused", "github")])
def test_usage_blames_github_for_an_earlier_claim_only_after_a_refused_mint(
    history: Operator, outcome: str | None, cause: str
) -> None:
    """The first claim of the job was released, for example because its Pod was evicted, and the job waited again."""
    history.execute(WARM_BEFORE)
    history.execute("""
        INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory, state,
                            created_at, changed_at, ended_at, end_reason)
        SELECT 'job', 11, runner_pod_id, 'evicted', pool_id, 77, 'orgs/acme', 1, 1, 'ended',
               created_at - interval '9 min', created_at, created_at, 'pod_gone' FROM claims WHERE pod_uid = 'old-1'
    """)
    if outcome is not None:
        history.execute(
            "INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at, closed_at) "
            "SELECT id, 'r-1', :outcome, created_at, ended_at FROM claims WHERE pod_uid = 'evicted'",
            outcome=outcome,
        )
    (found,) = history.json("usage", "--month", MONTH)["starts"]
    assert {name for name, many in found["blamed"].items() if many} == {cause}


def test_usage_prints_tables_and_says_where_the_rows_begin(history: Operator) -> None:
    shown = " ".join(history.run("usage", "--month", MONTH).stdout.split())
    assert f"From {BEGIN:%Y-%m-%d} to {END:%Y-%m-%d} 00:00 UTC" in shown
    assert f"The stored jobs begin with those that ended on {END:%Y-%m-%d}." in shown
    assert "acme linux acme/app 1 10.0 0.0" in shown
    assert "account jobs runner min idle min vCPU min acme 1 10.0 0.0" in shown
    assert "linux 1m0s 1 0.0% 1 1 0 0 0 0" in shown
    assert "no job began in a pool with a target" in history.run("usage", "--month", "2020-02").stdout
    assert "linux 1m0s" not in history.run("report", "--since", "1h").stdout


def test_usage_as_csv_has_a_row_for_each_item(history: Operator) -> None:
    history.execute("UPDATE executions SET vcpu = 2000 WHERE job_id = 11")
    head, *rows = csv.reader(io.StringIO(history.run("usage", "--month", MONTH, "--csv").stdout))
    assert head == ["account", "pool", "repository", "jobs", "runner_minutes", "idle_minutes", "vcpu_minutes"]
    assert rows[0] == ["acme", "linux", "acme/app", "1", "10.0", "0.0", "20.0"]
    assert rows[1][:3] == ["", "linux", ""]


@pytest.mark.parametrize("month", ["2026-13", "november", "2999-01", "2026-11-01", "9999-12"])
def test_usage_refuses_a_month_that_is_none_or_has_not_begun(history: Operator, month: str) -> None:
    done = history.run("usage", "--month", month)
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert f"{month} has not begun" in said or f"found '{month}'; expected a month such as 2026-11" in said
