"""A short run of unhealthy fleets, and the rules that judge the long run (`make chaos SCENARIO=fleets`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.chaos.fleets import SHORT, bound_for_an_hour, problems_of, rows_of, run_fleets


@pytest.mark.cluster  # a long story
@pytest.mark.timeout(300)
def test_healthy_pools_work_beside_bad_ones_and_each_cause_is_named(tmp_path: Path) -> None:
    result = run_fleets(tmp_path / "run", jobs=8, seed=1, cluster="embedded", causes=SHORT, quick=True, say=print)

    assert result.ok, "\n".join(result.lines())
    assert set(result.named) == set(SHORT)
    assert result.by_proxy > 0


@pytest.mark.cluster  # a long story
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lost_node_and_runners_without_a_way_out_are_named(tmp_path: Path) -> None:
    causes = ("lost-node", "no-egress")

    result = run_fleets(tmp_path / "run", jobs=8, seed=1, cluster="embedded", causes=causes, quick=True, say=print)

    assert result.ok, "\n".join(result.lines())
    assert set(result.named) == set(causes)


def test_an_hour_goes_on_at_the_rate_of_the_second_half() -> None:
    assert bound_for_an_hour([(0, 10), (200, 210), (400, 230)]) == 220 + 3200 * 0.1


def test_the_first_minutes_count_whole() -> None:
    assert bound_for_an_hour([(0, 0), (60, 900), (3600, 900)]) == 900


def test_job_that_fails_stays_open_or_waits_is_a_problem() -> None:
    log = [
        {"event": "job_completed", "job": 1, "conclusion": "success"},
        {"event": "job_completed", "job": 2, "conclusion": "failure"},
    ]
    found = list(problems_of(log, {1, 2, 3}, waits=[1.0, 61.0]))
    assert [line.partition(" of")[0] for line in found] == ["job 2", "job 3", "1 jobs"]


def test_wrapped_row_of_a_table_is_one_line() -> None:
    lines = [
        "pool  state     what is wrong",
        "new   ready     -",
        "old   degraded  Runners: do",
        16 * " " + "not start",
    ]
    table = "\n".join(lines)
    assert rows_of(table)["old"] == "old degraded Runners: do not start"
