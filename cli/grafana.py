"""`ostler grafana`: prints a Grafana dashboard of the fleet, made from one list of panels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.output import print_json

UID = "ostler-fleet"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_POOL = 'pool=~"$pool"'
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `queries` maps the legend of each query to its expression; `unit` is a unit of Grafana."""

    title: str
    description: str
    unit: str
    queries: Mapping[str, str]
    stacked: bool = False


ROWS: Mapping[str, Sequence[Panel]] = {
    "Jobs": (
        Panel(
            "Oldest dispatchable job",
            "Age of the oldest job of a pool that is not held and fits the budget of its account. It should stay near "
            "the time that a Pod needs to start.",
            "s",
            {"{{pool}}": f"max by (pool) (ostler_pool_oldest_dispatchable_job_seconds{{{_POOL}}})"},
        ),
        Panel(
            "Queue",
            "Queued jobs of each pool that are not held.",
            "short",
            {"{{pool}}": f'max by (pool) (ostler_pool_jobs{{{_POOL},state="queued"}})'},
            stacked=True,
        ),
        Panel(
            "Held jobs",
            "Jobs that wait for something else than a Pod, by reason. `ostler job ID` explains each.",
            "short",
            {"{{hold_reason}}": 'max by (hold_reason) (ostler_jobs{state="queued",hold_reason!~"none|no_pool"}) > 0'},
            stacked=True,
        ),
        Panel(
            "Wait of jobs",
            "Time from the creation of a job at GitHub to its JIT, or to its start on a persistent runner.",
            "s",
            {
                name: f"histogram_quantile({share}, sum by (le) (rate(ostler_job_wait_seconds_bucket[5m])))"
                for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
            },
        ),
        Panel(
            "Start of runners",
            "Time from the delivery of a JIT until GitHub reports that the runner executes a job.",
            "s",
            {
                name: f"histogram_quantile({share}, sum by (le) (rate(ostler_runner_start_seconds_bucket[5m])))"
                for name, share in (("p50", 0.5), ("p95", 0.95))
            },
        ),
        Panel(
            "Claims",
            "Live claims by state. A state that grows shows which step is slow.",
            "short",
            {"{{purpose}} {{state}}": "max by (purpose, state) (ostler_claims) > 0"},
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
        ),
        Panel(
            "Created, retired, lost, failed",
            "Pods that Ostler created and retired, Pods that ended before their job, and Pods that did not start.",
            "short",
            {
                "created": "sum(rate(ostler_pods_created_total[5m])) * 60",
                "retired, {{why}}": "sum by (why) (rate(ostler_pods_retired_total[5m])) * 60 > 0",
                "lost, {{how}}": "sum by (how) (rate(ostler_pods_lost_total[5m])) * 60 > 0",
                "failed, {{cause}}": "sum by (cause) (rate(ostler_failed_starts_total[5m])) * 60 > 0",
            },
        ),
    ),
    "Upstreams": (
        Panel(
            "Requests to GitHub",
            "Requests per minute by endpoint and status.",
            "short",
            {"{{endpoint}} {{status}}": "sum by (endpoint, status) (rate(ostler_github_requests_total[5m])) * 60 > 0"},
            stacked=True,
        ),
        Panel(
            "Gates and backoffs",
            "1 for an open gate. While a gate is closed, sweeps delete nothing. Backoffs delay mints.",
            "short",
            {
                "gate of {{upstream}}": "min by (upstream) (ostler_gate_open)",
                "backoffs, {{kind}}": "max by (kind) (ostler_backoffs) > 0",
            },
        ),
        Panel(
            "Webhooks",
            "Webhooks per minute by outcome. Webhooks that are not stored come again by redelivery.",
            "short",
            {"{{outcome}}": "sum by (outcome) (rate(ostler_webhooks_total[5m])) * 60 > 0"},
            stacked=True,
        ),
    ),
    "Ostler": (
        Panel(
            "Repairs",
            "Repairs per hour by sweep and outcome. `ostler repairs` lists them.",
            "short",
            {"{{sweep}} {{outcome}}": "sum by (sweep, outcome) (increase(ostler_repairs_total[1h])) > 0"},
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


def dashboard() -> dict[str, Any]:
    """Return the JSON of the dashboard, which Grafana imports."""
    return {
        "uid": UID,
        "title": "Ostler: fleet",
        "tags": ["ostler"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "pool",
                    "label": "Pool",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "query": {"query": "label_values(ostler_pool_jobs, pool)", "refId": "pools"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    number = top = 0
    for row, panels in ROWS.items():
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


def grafana() -> None:
    """Print a Grafana dashboard of the fleet as JSON: import it, or store it where Grafana's provisioning finds it."""
    print_json(dashboard())
