"""A real Prometheus scrapes a system that runs jobs, and every panel of both dashboards shows something."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cli.grafana import Board, Panel, panels_of
from lab.processes import free_port
from lab.prometheus import Prometheus
from lab.system import Options, System
from lab.timings import timings
from lab.traffic import follow, send
from tests.waiting import eventually

pytestmark = pytest.mark.slow
JOBS = 30
PANELS = {(board, panel.title): panel for board in Board for panels in panels_of(board).values() for panel in panels}
VARIABLES = {"$pool": ".*", "$account": ".*"}


@dataclass
class Scraped:
    """A Prometheus that has scraped web and worker, before and after the jobs."""

    prometheus: Prometheus

    def values(self, expression: str) -> list[float]:
        """Return the present values of an expression of a panel."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        return [float(series["value"][1]) for series in self.prometheus.query(expression)]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("panels")
    worker = free_port()
    options = Options(
        settings={
            **timings(sweep_every=3),
            "OSTLER_METRICS_PORT": str(worker),
            "OSTLER_METRICS_ACCOUNTS": "10",
        },
    )
    with System(folder / "system", options, say=print, cluster="embedded") as system:
        system.wait_for_warm_pods(4, timeout=180)
        targets = [url.removeprefix("http://") for url in (*system.private_urls, f"127.0.0.1:{worker}")]
        with Prometheus(folder / "prometheus", targets) as prometheus:
            found = Scraped(prometheus)
            eventually(lambda: found.values("sum(up)") == [len(targets)], within=60)
            assert follow(system.github_url, send(system.github_url, jobs=JOBS, seed=1), say=print)
            eventually(lambda: sum(found.values("sum(ostler_job_wait_seconds_count)")) >= JOBS, within=60)
            yield found


@pytest.mark.parametrize("panel", PANELS.values(), ids=[f"{board}: {title}" for board, title in PANELS])
def test_each_query_of_a_panel_has_a_result(scraped: Scraped, panel: Panel) -> None:
    for expression in panel.queries.values():
        assert scraped.values(expression), expression


def test_quantiles_of_waits_and_starts_are_numbers_after_jobs(scraped: Scraped) -> None:
    for title in ("Wait of jobs", "Start of runners"):
        for expression in PANELS[Board.FLEET, title].queries.values():
            assert all(math.isfinite(value) for value in scraped.values(expression))


def test_a_metric_that_does_not_exist_has_no_result(scraped: Scraped) -> None:
    assert scraped.values("ostler_metric_of_no_process") == []
