"""Metrics of all processes: the counters, gauges and histograms that code updates. `docs/metrics.md` lists them.

Code updates a metric where the event happens. `web.health.metrics` has the other metrics, which are computed at each
scrape from rows or from the memory of a process. No label has an unbounded number of values (job, claim, Pod, account,
repository or token), and no label contains a secret (law L13). A metric starts at 0 for every label value that is known
in advance.

If several processes share one port, `PROMETHEUS_MULTIPROC_DIR` names a folder. The client library stores the values of
all these processes in the folder. Each process then answers a scrape with the values of all processes.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    multiprocess,
    start_http_server,
)

from ostler.errors import ConfigurationError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20)
_WAITS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400)
_STALL_BUCKETS = (1, 2.5, 5, 10, 20, 30, 60, 90, 150, 200, 300, 480, 900, 1800, 3600)

disable_created_metrics()  # type: ignore[no-untyped-call]  # omits an unused `_created` series for each metric
_registry = CollectorRegistry()
ProcessCollector(registry=_registry)

BUILD = Gauge(
    "ostler_build_info",
    "Always 1; the labels carry the versions of Ostler and Python",
    ("version", "python"),
    registry=_registry,
    multiprocess_mode="max",
)
BUILD.labels(version("ostler"), platform.python_version()).set(1)

WEBHOOKS = Counter(
    "ostler_webhooks_total",
    "Webhooks that web answered, by event and outcome",
    ("event", "outcome"),
    registry=_registry,
)
WEBHOOK_SECONDS = Histogram(
    "ostler_webhook_seconds",
    "Seconds from the first byte of a webhook to its answer",
    buckets=_FAST,
    registry=_registry,
)
OF_POOL = ("namespace", "pool")
"""Labels of metrics about one pool. Their series begin when a process first sees the pool (`pool_served`)."""

REMAPS = Counter(
    "ostler_remaps_total", "Jobs that ran on a runner that was minted for another job", OF_POOL, registry=_registry
)
RUNNER_UPDATES = Counter(
    "ostler_runner_updates_total",
    "Checks of `unused_runners` that found an offline runner that might be updating itself",
    registry=_registry,
)
RUNNER_START_SECONDS = Histogram(
    "ostler_runner_start_seconds",
    "Seconds from the delivery of a JIT to GitHub's report that its runner executes a job, including self-updates",
    OF_POOL,
    buckets=_STALL_BUCKETS,
    registry=_registry,
)
JOB_WAIT_SECONDS = Histogram(
    "ostler_job_wait_seconds",
    "Seconds from the queue time of a job to each delivery of its JIT, or to its start on a persistent runner",
    OF_POOL,
    buckets=_WAITS,
    registry=_registry,
)
MESSAGES_MALFORMED = Counter(
    "ostler_messages_malformed_total",
    "Queue entries that were dropped because they are not valid messages",
    registry=_registry,
)
TRANSITIONS = Counter(
    "ostler_transitions_total",
    "Committed transitions of claims, jobs, stamps and leases",
    ("machine", "transition"),
    registry=_registry,
)
TRANSACTION_RETRIES = Counter(
    "ostler_transaction_retries_total", "Transactions that were retried, by cause", ("why",), registry=_registry
)
STAMPS_MISSED = Counter(
    "ostler_stamps_missed_total",
    "Attempts to stamp a Pod that failed, so that the claim continued without its stamp",
    registry=_registry,
)
TASKS = Counter("ostler_task_runs_total", "Executions of tasks, by outcome", ("task", "outcome"), registry=_registry)
TASK_SECONDS = Histogram(
    "ostler_task_seconds", "Duration of a task execution in seconds", ("task",), buckets=_SLOW, registry=_registry
)
SWEEP_SUCCESS = Gauge(
    "ostler_sweep_last_success_timestamp_seconds",
    "Unix time of the last success of a sweep or reconcile task in this process; 0 if there was none",
    ("sweep",),
    registry=_registry,
    multiprocess_mode="max",
)
REPAIRS = Counter(
    "ostler_repairs_total",
    "Repairs of sweeps, counted once for each outcome that they reach",
    ("sweep", "outcome"),
    registry=_registry,
)
REPAIR_OVERFLOW = Counter(
    "ostler_repair_overflow_total",
    "Repairs that the budget, a tripped gate or an unconfirmed epoch deferred to a later tick",
    ("sweep",),
    registry=_registry,
)
KUBERNETES_EVENTS = Counter(
    "ostler_kubernetes_events_total",
    "Kubernetes Events about pools and Pods, by outcome",
    ("outcome",),
    registry=_registry,
)
for _became in ("written", "dropped", "failed"):
    KUBERNETES_EVENTS.labels(_became)
PODS_CREATED = Counter("ostler_pods_created_total", "Runner Pods that reconcilers created", registry=_registry)
PODS_RETIRED = Counter(
    "ostler_pods_retired_total", "Pods that reconcilers began to retire, by reason", ("why",), registry=_registry
)
PODS_LOST = Counter(
    "ostler_pods_lost_total",
    "Pods that ended during a job claim, by cause",
    (*OF_POOL, "how"),
    registry=_registry,
)
FAILED_STARTS = Counter(
    "ostler_failed_starts_total",
    "Pods that did not begin to poll or that the API server refused, by cause",
    (*OF_POOL, "cause"),
    registry=_registry,
)
STALL_SECONDS = Histogram(
    "ostler_stall_seconds",
    "Seconds from the start of a stall until its end",
    ("cause", "found_by"),
    buckets=_STALL_BUCKETS,
    registry=_registry,
)
UNUSED_RUNNER_CHECKS = Counter(
    "ostler_unused_runner_checks_total",
    "Checks of `unused_runners` of a delivered claim without an execution, by verdict",
    ("verdict",),
    registry=_registry,
)
CATCH_UP_INCOMPLETE = Counter(
    "ostler_catch_up_incomplete_total",
    "Incomplete checks of a repository by `catch_up`, which a later tick continues, by cause",
    ("why",),
    registry=_registry,
)
GITHUB_REQUESTS = Counter(
    "ostler_github_requests_total",
    "Requests to GitHub, by endpoint class and status; `none` means no answer",
    ("endpoint", "status"),
    registry=_registry,
)
GITHUB_SECONDS = Histogram(
    "ostler_github_request_seconds",
    "Duration of a request to GitHub in seconds",
    ("endpoint",),
    buckets=_SLOW,
    registry=_registry,
)
UPSTREAM_CALLS = Counter(
    "ostler_upstream_calls_total",
    "Calls to GitHub and Kubernetes that count for the health of the upstream, by outcome",
    ("upstream", "outcome"),
    registry=_registry,
)
GATE_CHANGES = Counter(
    "ostler_gate_changes_total",
    "Trips (closed) and recoveries (opened) of gates by this process",
    ("upstream", "to"),
    registry=_registry,
)
SCALINGS = Counter(
    "ostler_scalings_total",
    "Decisions of the autoscaler, by verdict",
    ("verdict",),
    registry=_registry,
)
API_REQUESTS = Counter(
    "ostler_api_requests_total",
    "Requests to the REST API, by method and status",
    ("method", "status"),
    registry=_registry,
)
API_UNAUTHORIZED = Counter(
    "ostler_api_unauthorized_total",
    "Requests to the REST API that were refused because of their token, by cause",
    ("why",),
    registry=_registry,
)

CLOCK_SKEW = Gauge(
    "ostler_clock_skew_seconds",
    "Seconds between the clocks of this machine and of Postgres; Ostler corrects its own times by this difference",
    registry=_registry,
    multiprocess_mode="livemax",
)
WATCH_LEADER = Gauge(
    "ostler_watch_leader",
    "1 while this process holds the Lease of the watch",
    registry=_registry,
    multiprocess_mode="max",
)
WATCH_CONNECTED = Gauge(
    "ostler_watch_connected",
    "1 while this process watches the Pods of every namespace with runner Pods",
    registry=_registry,
    multiprocess_mode="max",
)
WATCH_EVENTS = Counter(
    "ostler_watch_events_total", "Events about Pods that the watch received, by type", ("type",), registry=_registry
)
WATCH_LAST_EVENT = Gauge(
    "ostler_watch_last_event_timestamp_seconds",
    "Unix time of the last event or bookmark of the watch of Pods",
    registry=_registry,
    multiprocess_mode="max",
)
WATCH_RESTARTS = Counter(
    "ostler_watch_restarts_total", "Restarts of the watch of Pods, by cause", ("why",), registry=_registry
)
WATCH_LISTS = Counter(
    "ostler_watch_lists_total",
    "Lists of Pods that the watch requested before it started to receive events",
    registry=_registry,
)
WATCH_HINTS = Counter(
    "ostler_watch_hints_total", "Hints that the watch recorded, by kind", ("hint",), registry=_registry
)

TASK_OUTCOMES = ("succeeded", "retried", "failed")
WEBHOOK_OUTCOMES = {
    "workflow_job": ("accepted", "duplicate", "ignored", "unsigned", "malformed", "refused", "unavailable", "failed"),
    "ping": ("pong", "unsigned", "refused", "unavailable"),
    "other": ("ignored", "unsigned", "refused", "unavailable"),
}
for _event, _outcomes in WEBHOOK_OUTCOMES.items():
    for _outcome in _outcomes:
        WEBHOOKS.labels(_event, _outcome)
for _why in ("deadlock", "lost_connection", "serialization", "start_over"):
    TRANSACTION_RETRIES.labels(_why)
_EVENTS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
for _event in _EVENTS:
    WATCH_EVENTS.labels(_event.lower())
for _why in ("ended", "expired", "silent", "failed"):
    WATCH_RESTARTS.labels(_why)
for _why in ("surplus", "drained", "forbidden", "template", "cordoned", "not_started", "age", "overdue", "over"):
    PODS_RETIRED.labels(_why)
_HOW = ("completed", "failed", "out_of_memory", "deleted", "evicted", "preempted", "node", "deadline", "unknown")
_TROUBLES = ("image", "container", "unschedulable", "poller", "unresponsive", "refused")
for _hint in ("gone", "spent", "executing", "unstamped", "pool", "hook_pod"):
    WATCH_HINTS.labels(_hint)
for _why in ("allowance", "limited", "no_answer", "uninstalled", "refused", "failed", "time"):
    CATCH_UP_INCOMPLETE.labels(_why)
for _upstream in ("github", "kubernetes"):
    for _outcome in ("answered", "failed"):
        UPSTREAM_CALLS.labels(_upstream, _outcome)
    for _to in ("closed", "opened"):
        GATE_CHANGES.labels(_upstream, _to)
for _verdict in ("up", "down", "steady", "cooling", "left", "overtaken", "failed"):
    SCALINGS.labels(_verdict)
for _why in ("missing", "malformed", "unknown", "expired", "revoked"):
    API_UNAUTHORIZED.labels(_why)

_ENDPOINTS = (
    ("POST", re.compile(r"^/app/installations/\d+/access_tokens$"), "installation_token"),
    ("POST", re.compile(r"/actions/runners/generate-jitconfig$"), "mint"),
    ("POST", re.compile(r"/actions/runners/registration-token$"), "registration_token"),
    ("DELETE", re.compile(r"/actions/runners/\d+$"), "delete_runner"),
    ("GET", re.compile(r"/actions/runners$"), "list_runners"),
    ("GET", re.compile(r"/actions/runner-groups$"), "list_runner_groups"),
    ("GET", re.compile(r"/actions/jobs/\d+$"), "get_job"),
    ("GET", re.compile(r"/actions/runs/\d+$"), "get_run"),
    ("GET", re.compile(r"/actions/runs$"), "list_runs"),
    ("GET", re.compile(r"/actions/runs/\d+/jobs$"), "list_run_jobs"),
    ("POST", re.compile(r"/check-runs$"), "create_check_run"),
    ("PATCH", re.compile(r"/check-runs/\d+$"), "update_check_run"),
    ("GET", re.compile(r"^/app/hook/deliveries$"), "list_deliveries"),
    ("POST", re.compile(r"^/app/hook/deliveries/\d+/attempts$"), "redeliver"),
)
_DONE = {"GET": "200", "PATCH": "200", "POST": "201", "DELETE": "204"}
_ALSO = {"mint": ("409", "422"), "delete_runner": ("422",), "list_runs": ("304",), "list_run_jobs": ("304",)}
for _verb, _form, _endpoint in _ENDPOINTS:
    GITHUB_SECONDS.labels(_endpoint)
    _done = "202" if _endpoint == "redeliver" else _DONE[_verb]
    for _code in (_done, "403", "404", "429", "500", "none", *_ALSO.get(_endpoint, ())):
        GITHUB_REQUESTS.labels(_endpoint, _code)
for _method in ("GET", "PUT"):
    for _code in ("200", "401", "403", "404", "422", "500", "503"):
        API_REQUESTS.labels(_method, _code)


def pool_served(namespace: str, pool: str) -> None:
    """Let the series of a pool begin at 0 in a process that serves polls and webhooks."""
    for metric in (REMAPS, JOB_WAIT_SECONDS, RUNNER_START_SECONDS):
        metric.labels(namespace, pool)


def pool_reconciled(namespace: str, pool: str) -> None:
    """Let the series of a pool begin at 0 in a process that reconciles it."""
    for how in _HOW:
        PODS_LOST.labels(namespace, pool, how)
    for trouble in _TROUBLES:
        FAILED_STARTS.labels(namespace, pool, trouble)


def runners_bound(*, remaps: Iterable[tuple[str, str]], starts: Iterable[tuple[tuple[str, str], float]]) -> None:
    """Count the remaps and the starts of runners that webhooks reported, by namespace and name of the pool."""
    for place in remaps:
        REMAPS.labels(*place).inc()
    for place, seconds in starts:
        RUNNER_START_SECONDS.labels(*place).observe(seconds)


def watch_event(kind: str) -> None:
    """Count an event of the watch. `kind` is the Kubernetes event type, such as `ADDED`."""
    if kind in _EVENTS:
        WATCH_EVENTS.labels(kind.lower()).inc()
    WATCH_LAST_EVENT.set_to_current_time()


def endpoint_of(method: str, path: str) -> str:
    """Return the name of a GitHub endpoint for metrics, or `other` for an unknown endpoint."""
    bare = path.partition("?")[0]
    return next((name for verb, form, name in _ENDPOINTS if verb == method and form.search(bare)), "other")


def github_answered(method: str, path: str, *, status: int | None, seconds: float) -> None:
    """Count a request to GitHub and its duration.

    `status` is the HTTP status, or None if no answer came. `seconds` is the duration of the request.
    """
    endpoint = endpoint_of(method, path)
    GITHUB_REQUESTS.labels(endpoint, "none" if status is None else str(status)).inc()
    GITHUB_SECONDS.labels(endpoint).observe(seconds)


def registry() -> CollectorRegistry:
    """Return the metrics that a scrape of this process reads.

    If `PROMETHEUS_MULTIPROC_DIR` is set, the metrics have the values of all processes that share this folder. Otherwise
    they have the values of this process.
    """
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return _registry
    shared = CollectorRegistry()
    multiprocess.MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    return shared


def exposition(found: CollectorRegistry | None = None) -> bytes:
    """Return the metrics of `found` in the text format of Prometheus.

    If `found` is None, return the metrics of `registry`.
    """
    return generate_latest(registry() if found is None else found)


def names() -> frozenset[str]:
    """Return the names of all metrics of this module, in the form that a scrape shows."""
    families = [family for family in _registry.collect() if family.name.startswith("ostler_")]
    return frozenset(family.name + ("_total" if family.type == "counter" else "") for family in families)


def serve(port: int) -> None:
    """Serve the metrics of this process from a thread until the process ends. If `port` is 0, serve no metrics.

    Raises `ConfigurationError` if the port cannot be opened.
    """
    if port == 0:
        return
    try:
        start_http_server(port, registry=registry())
    except OSError as error:
        raise ConfigurationError(
            f"OSTLER_METRICS_PORT: found {port}; the port cannot be opened: {error}; set a free port"
        ) from None
