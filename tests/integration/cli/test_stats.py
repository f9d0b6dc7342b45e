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
    head, row, total = history.run("stats").stdout.splitlines()
    assert head.split() == ["pool", "jobs", "p50", "p95", "longest", "wait", "runner", "minutes"]
    assert row.split() == ["linux", "1", "30s", "30s", "30s", "10.0"]
    assert total.split() == ["all", "jobs", "1", "30s", "30s", "30s", "10.0"]


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
