"""`ostler grafana`: prints a Grafana dashboard of the fleet or of tenants, both made from one list of panels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from cli.output import print_json

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_POOL = 'pool=~"$pool"'
_ACCOUNT = 'account=~"$account"'
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3


class Board(StrEnum):
    """A dashboard: of the whole fleet for its operators, or of accounts and pools for the people who run jobs."""

    FLEET = "fleet"
    TENANT = "tenant"


_FLEET = frozenset({Board.FLEET})
_TENANT = frozenset({Board.TENANT})
_BOTH = _FLEET | _TENANT


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `queries` maps the legend of each query to its expression; `unit` is a unit of Grafana."""

    title: str
    description: str
    unit: str
    queries: Mapping[str, str]
    stacked: bool = False
    boards: frozenset[Board] = _FLEET


def _quantiles(metric: str, *shares: float) -> dict[str, str]:
    """Return the queries for quantiles of a histogram with the label `pool`, by legend."""
    rate = f"sum by (le) (rate({metric}_bucket{{{_POOL}}}[5m]))"
    return {f"p{share * 100:.0f}": f"histogram_quantile({share}, {rate})" for share in shares}


ROWS: Mapping[str, Sequence[Panel]] = {
    "Accounts": (
        Panel(
            "Jobs of the account",
            "Jobs that are queued, held and running. OSTLER_METRICS_ACCOUNTS sets how many accounts are shown.",
            "short",
            {"{{account}} {{state}}": f"max by (account, state) (ostler_account_jobs{{{_ACCOUNT}}})"},
            stacked=True,
            boards=_TENANT,
        ),
        Panel(
            "Oldest queued job",
            "Age of the oldest job of the account that is not held.",
            "s",
            {"{{account}}": f"max by (account) (ostler_account_oldest_queued_job_seconds{{{_ACCOUNT}}})"},
            boards=_TENANT,
        ),
        Panel(
            "Pods and budget",
            "Pods that the account uses, and its budget. At the budget, further jobs wait.",
            "short",
            {"{{account}} {{is}}": f"max by (account, is) (ostler_account_pods{{{_ACCOUNT}}})"},
            boards=_TENANT,
        ),
    ),
    "Jobs": (
        Panel(
            "Oldest dispatchable job",
            "Age of the oldest job of a pool that is not held and fits the budget of its account. It should stay near "
            "the time that a Pod needs to start.",
            "s",
            {"{{pool}}": f"max by (pool) (ostler_pool_oldest_dispatchable_job_seconds{{{_POOL}}})"},
            boards=_BOTH,
        ),
        Panel(
            "Queue",
            "Queued jobs of each pool that are not held.",
            "short",
            {"{{pool}}": f'max by (pool) (ostler_pool_jobs{{{_POOL},state="queued"}})'},
            stacked=True,
            boards=_BOTH,
        ),
        Panel(
            "Held jobs",
            "Jobs that wait for something else than a Pod, by reason. `ostler job ID` explains each.",
            "short",
            {"{{hold_reason}}": 'max by (hold_reason) (ostler_jobs{state="queued",hold_reason!~"none|no_pool"})'},
            stacked=True,
        ),
        Panel(
            "Wait of jobs",
            "Time from the queue time of a job to its JIT, or to its start on a persistent runner.",
            "s",
            _quantiles("ostler_job_wait_seconds", 0.5, 0.95, 0.99),
            boards=_BOTH,
        ),
        Panel(
            "Start of runners",
            "Time from the delivery of a JIT until GitHub reports that the runner executes a job.",
            "s",
            _quantiles("ostler_runner_start_seconds", 0.5, 0.95),
            boards=_BOTH,
        ),
        Panel(
            "Claims",
            "Live claims by state. A state that grows shows which step is slow.",
            "short",
            {"{{purpose}} {{state}}": "max by (purpose, state) (ostler_claims)"},
            stacked=True,
        ),
    ),
    "Pods": (
        Panel(
            "Pods by state",
            "Pods of the chosen pools, as the reconciler counted them.",
            "short",
            {"{{state}}": f"sum by (state) (max by (namespace, pool, state) (ostler_pool_pods{{{_POOL}}}))"},
            stacked=True,
        ),
        Panel(
            "Warm Pods",
            "Pods of each pool that wait for a job.",
            "short",
            {"{{pool}}": f'max by (pool) (ostler_pool_pods{{{_POOL},state="warm"}})'},
            boards=_BOTH,
        ),
        Panel(
            "Created and retired",
            "Pods per minute that Ostler created and retired, by reason.",
            "short",
            {
                "created": "sum(rate(ostler_pods_created_total[5m])) * 60",
                "retired, {{why}}": "sum by (why) (rate(ostler_pods_retired_total[5m])) * 60",
            },
        ),
        Panel(
            "Lost and failed",
            "Pods per hour that ended before their job, and Pods that did not start, by cause.",
            "short",
            {
                "lost, {{how}}": f"sum by (how) (increase(ostler_pods_lost_total{{{_POOL}}}[1h]))",
                "failed, {{cause}}": f"sum by (cause) (increase(ostler_failed_starts_total{{{_POOL}}}[1h]))",
            },
            boards=_BOTH,
        ),
        Panel(
            "Remaps",
            "Jobs per minute that GitHub ran on a runner that was made for another job.",
            "short",
            {"{{pool}}": f"sum by (pool) (rate(ostler_remaps_total{{{_POOL}}}[5m])) * 60"},
        ),
    ),
    "Upstreams": (
        Panel(
            "Requests to GitHub",
            "Requests per minute by endpoint and status.",
            "short",
            {"{{endpoint}} {{status}}": "sum by (endpoint, status) (rate(ostler_github_requests_total[5m])) * 60"},
            stacked=True,
        ),
        Panel(
            "Gates and backoffs",
            "1 for a gate that is ok. While a gate is tripped, sweeps delete nothing. Backoffs delay mints.",
            "short",
            {
                "gate of {{upstream}}": "min by (upstream) (ostler_gate_open)",
                "backoffs, {{kind}}": "max by (kind) (ostler_backoffs)",
            },
        ),
        Panel(
            "Webhooks",
            "Webhooks per minute by outcome. Webhooks that are not stored come again by redelivery.",
            "short",
            {"{{outcome}}": "sum by (outcome) (rate(ostler_webhooks_total[5m])) * 60"},
            stacked=True,
        ),
    ),
    "Ostler": (
        Panel(
            "Repairs",
            "Repairs per hour by sweep and outcome. `ostler repairs` lists them.",
            "short",
            {"{{sweep}} {{outcome}}": "sum by (sweep, outcome) (increase(ostler_repairs_total[1h]))"},
        ),
        Panel(
            "Stalled work",
            "Age of the oldest work that only a repair can continue, by cause.",
            "s",
            {"{{cause}}": "max by (cause) (ostler_oldest_stall_seconds)"},
        ),
        Panel(
            "Duration of tasks",
            "95th percentile of the executions of each task.",
            "s",
            {"{{task}}": "histogram_quantile(0.95, sum by (le, task) (rate(ostler_task_seconds_bucket[5m])))"},
        ),
    ),
}


def panels_of(board: Board) -> dict[str, Sequence[Panel]]:
    """Return the panels of a dashboard, by the title of their row."""
    chosen = {row: [panel for panel in panels if board in panel.boards] for row, panels in ROWS.items()}
    return {row: panels for row, panels in chosen.items() if panels}


def dashboard(board: Board = Board.FLEET) -> dict[str, Any]:
    """Return the JSON of a dashboard, which Grafana imports."""
    variables = [_variable("pool", "Pool", "label_values(ostler_pool_jobs, pool)")]
    if board is Board.TENANT:
        variables.insert(0, _variable("account", "Account", "label_values(ostler_account_jobs, account)"))
    return {
        "uid": f"ostler-{board}",
        "title": f"Ostler: {board}",
        "tags": ["ostler"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                *variables,
            ]
        },
        "panels": list(_panels(panels_of(board))),
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"{name}s"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Mapping[str, Sequence[Panel]]) -> Iterator[dict[str, Any]]:
    number = top = 0
    for row, panels in rows.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": _WIDTH * _ACROSS, "h": 1},
            "panels": [],
        }
        for place, panel in enumerate(panels):
            number += 1
            x, y = place % _ACROSS * _WIDTH, top + 1 + place // _ACROSS * _HEIGHT
            yield _graph(panel, number=number, place={"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT})
        top += 1 + -(-len(panels) // _ACROSS) * _HEIGHT


def _graph(panel: Panel, *, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.stacked else "none"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {"stacking": stacking, "fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def grafana(
    board: Annotated[Board, typer.Argument(help="whose view: of the whole fleet, or of accounts and their pools")] = (
        Board.FLEET
    ),
) -> None:
    """Print a Grafana dashboard as JSON: import it, or store it where Grafana's provisioning finds it."""
    print_json(dashboard(board))
