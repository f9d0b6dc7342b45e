"""`ostler stats` shows how long jobs waited and ran, for people and for scripts."""

from __future__ import annotations

import pytest

from models.browse.waits import By
from tests.integration.cli.test_operator import Operator, count_pods, operator

__all__ = ["operator"]


@pytest.fixture
def history(operator: Operator) -> Operator:
    """Job 11 waited 30 s and ran 10 minutes; the sweep `resume` made two repairs, and one 2 hours ago."""
    count_pods(operator)
    operator.execute(
        "UPDATE jobs SET state = 'completed', queued_at = now() - interval '50 minutes', completed_at = now() "
        "WHERE id = 11"
    )
    operator.execute(
        """
        INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at, ended_at)
        SELECT 11, 'r', 77, 1, 1, queued_at + interval '30 s', queued_at + interval '630 s' FROM jobs WHERE id = 11
        """
    )
    operator.execute(
        """
        INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, expects, outcome, verify_by)
        SELECT 'resume', 1, now() - CAST(ago AS interval), 'w', 'w', '{}', false, outcome = 'dry', 'own', outcome,
               now()
        FROM (VALUES ('1 min', 'verified'), ('2 min', 'failed'), ('3 min', 'dry'), ('2 h', 'verified'))
             AS r (ago, outcome)
        """
    )
    return operator


@pytest.mark.parametrize("by", list(By))
def test_stats_groups_the_jobs_of_the_last_day(history: Operator, by: By) -> None:
    found = history.json("stats", "--by", by)
    (group,) = found["groups"]
    assert found["by"] == by
    assert found["total"] == {**group, "name": None}
    assert {name: group[name] for name in group if name != "name"} == {
        "jobs": 1,
        "p50_seconds": 30,
        "p95_seconds": 30,
        "longest_seconds": 30,
        "runner_minutes": 10,
    }
    assert by not in (By.POOL, By.ACCOUNT) or group["name"] in ("linux", "acme")


def test_stats_prints_a_table(history: Operator) -> None:
    history.execute("UPDATE jobs SET state = 'completed', completed_at = now() WHERE state <> 'completed'")
    head, row, total, empty, waiting = history.run("stats").stdout.splitlines()
    assert (empty, waiting) == ("", "no job that was queued before the end of the span still waits")
    assert head.split() == ["pool", "jobs", "p50", "p95", "longest", "wait", "runner", "minutes"]
    assert row.split() == ["linux", "1", "30s", "30s", "30s", "10.0"]
    assert total.split() == ["all", "jobs", "1", "30s", "30s", "30s", "10.0"]


def test_stats_says_which_jobs_have_not_begun(history: Operator) -> None:
    history.execute("UPDATE jobs SET state = 'completed', completed_at = now() WHERE id <> 12")
    history.execute("UPDATE jobs SET queued_at = now() - interval '3 h' WHERE id = 12")
    history.execute("UPDATE pools SET name = 'gpu'")
    (waiting,) = history.json("stats", "--since", "1h")["still_waiting"]
    assert (waiting["name"], waiting["jobs"], waiting["held"]) == ("gpu", 1, 0)
    assert history.json("stats", "--since", "1d", "--until", "4h")["still_waiting"] == []
    shown = history.run("stats", "--since", "1h", "--by", "account").stdout.splitlines()
    assert [" ".join(each.split()) for each in shown[-2:]] == [
        "account not begun of them held oldest wait",
        "acme 1 0 3h0m",
    ]
    history.execute("UPDATE jobs SET state = 'claimed', hold_reason = NULL WHERE id = 12")
    assert len(history.json("stats", "--by", "hour")["still_waiting"]) == 1


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        (("--since", "1h"), 1),
        (("--since", "0h50m"), 1),
        (("--since", "40m"), 0),
        (("--since", "2d", "--until", "1h"), 0),
        (("--since", "2020-01-01", "--until", "2020-01-02T00:00+02:00"), 0),
    ],
)
def test_stats_counts_only_the_span(history: Operator, arguments: tuple[str, ...], jobs: int) -> None:
    assert sum(each["jobs"] for each in history.json("stats", *arguments)["groups"]) == jobs
    done = history.run("stats", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no job began to run between ") == (jobs == 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--since", "last week"),
        ("--since", ""),
        ("--since", "9" * 30 + "d"),
        ("--since", "99999999d"),
        ("--since", "1h", "--until", "2h"),
        ("--by", "all"),
    ],
)
def test_stats_refuses_a_wrong_span_or_group(operator: Operator, arguments: tuple[str, ...]) -> None:
    done = operator.run("stats", *arguments)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
