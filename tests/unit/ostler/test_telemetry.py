"""Metrics have a documented name, no label without a bound, and their zeros from the start."""

from __future__ import annotations

import ast
import importlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from models.api_tokens import Refused
from ostler import telemetry
from ostler.errors import ConfigurationError
from ostler.task_names import SWEEPS
from rules.claims.pod_ends import How
from rules.pools.pool_plan import Why
from rules.pools.scaling import Verdict
from rules.pools.starts import Trouble
from rules.sweeps.limits import Repaired
from tasks.worker.app import MODULES

ROOT = Path(__file__).parents[3]
BOUNDED = {
    "version",
    "python",
    "event",
    "outcome",
    "machine",
    "transition",
    "why",
    "task",
    "sweep",
    "endpoint",
    "status",
    "method",
    "state",
    "hold_reason",
    "purpose",
    "le",
    "type",
    "hint",
    "how",
    "upstream",
    "to",
    "cause",
    "found_by",
    "verdict",
    "namespace",
    "pool",
}
POOL = ("runners", "small")
EXPLAINED = {"cause", "found_by", "hint", "how", "outcome", "to", "type", "verdict", "why"}
"""Labels whose values the page about metrics explains."""


def seen() -> None:
    """Let the series of a pool begin."""
    telemetry.pool_served(*POOL)
    telemetry.pool_reconciled(*POOL)


def test_every_metric_is_named_by_convention() -> None:
    for name in telemetry.names():
        assert re.fullmatch(r"ostler_[a-z_]+", name)
        assert not name.endswith(("_count", "_sum", "_ms", "_milliseconds"))


def test_no_label_grows_with_use() -> None:
    labels = set(re.findall(r'[{,]([a-z_]+)="', telemetry.exposition().decode()))
    assert labels - {"implementation", "major", "minor", "patchlevel"} <= BOUNDED


def test_what_is_known_beforehand_is_there_as_zero() -> None:
    import tasks.sweeps.resume  # noqa: F401, PLC0415  registers its tasks

    seen()
    text = telemetry.exposition().decode()
    for line in (
        'ostler_webhooks_total{event="workflow_job",outcome="duplicate"}',
        'ostler_github_requests_total{endpoint="mint",status="429"}',
        'ostler_github_requests_total{endpoint="delete_runner",status="204"}',
        'ostler_github_requests_total{endpoint="delete_runner",status="422"}',
        'ostler_github_requests_total{endpoint="redeliver",status="202"}',
        'ostler_task_runs_total{outcome="failed",task="resume"}',
        'ostler_transitions_total{machine="claim",transition="deliver"}',
        'ostler_sweep_last_success_timestamp_seconds{sweep="resume"}',
        'ostler_api_unauthorized_total{why="revoked"}',
        "ostler_stamps_missed_total",
        'ostler_remaps_total{namespace="runners",pool="small"}',
        'ostler_job_wait_seconds_count{namespace="runners",pool="small"}',
        'ostler_pods_lost_total{how="evicted",namespace="runners",pool="small"}',
    ):
        assert f"\n{line} " in text, line


def test_every_sweep_has_its_zeros_and_no_family_is_without_any() -> None:
    for module in MODULES:
        importlib.import_module(module)
    seen()
    text = telemetry.exposition().decode()
    for sweep in SWEEPS:
        for line in (
            *(
                f'ostler_repairs_total{{outcome="{outcome}",sweep="{sweep}"}}'
                for outcome in Repaired
                if outcome != "begun"
            ),
            f'ostler_repair_overflow_total{{sweep="{sweep}"}}',
            f'ostler_sweep_last_success_timestamp_seconds{{sweep="{sweep}"}}',
        ):
            assert f"\n{line} " in text, line
    shown = set(re.findall(r"^(ostler_[a-z_]+?)(?:_bucket|_sum|_count)?(?:{| )", text, re.MULTILINE))
    assert telemetry.names() - shown == set()


@pytest.mark.parametrize(
    ("method", "path", "endpoint"),
    [
        ("POST", "/app/installations/5/access_tokens", "installation_token"),
        ("POST", "/orgs/acme/actions/runners/generate-jitconfig", "mint"),
        ("POST", "/repos/acme/shop/actions/runners/generate-jitconfig", "mint"),
        ("POST", "/orgs/acme/actions/runners/registration-token", "registration_token"),
        ("DELETE", "/orgs/acme/actions/runners/7", "delete_runner"),
        ("GET", "/orgs/acme/actions/runners?name=x&per_page=100", "list_runners"),
        ("GET", "/repos/acme/shop/actions/jobs/7", "get_job"),
        ("GET", "/repos/acme/shop/actions/runs/7", "get_run"),
        ("GET", "/repos/acme/shop/actions/runs?status=queued", "list_runs"),
        ("GET", "/repos/acme/shop/actions/runs/7/jobs?filter=all", "list_run_jobs"),
        ("GET", "/app/hook/deliveries?per_page=100", "list_deliveries"),
        ("POST", "/repos/acme/shop/check-runs", "create_check_run"),
        ("PATCH", "/repos/acme/shop/check-runs/7", "update_check_run"),
        ("POST", "/app/hook/deliveries/7/attempts", "redeliver"),
        ("GET", "/repos/acme/secret-project", "other"),
    ],
)
def test_endpoints_of_github_are_counted_by_class(method: str, path: str, endpoint: str) -> None:
    assert telemetry.endpoint_of(method, path) == endpoint


def test_processes_that_share_a_folder_are_summed(tmp_path: Path) -> None:
    program = (
        "from ostler import telemetry; telemetry.REMAPS.labels('runners', 'small').inc(3); "
        "print(telemetry.exposition().decode())"
    )
    said = ""
    for _ in range(2):
        said = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    assert '\nostler_remaps_total{namespace="runners",pool="small"} 6.0\n' in said


def test_a_port_that_is_taken_is_said_by_its_variable() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="OSTLER_METRICS_PORT"):
            telemetry.serve(taken.getsockname()[1])


ENUMS: dict[str, Iterable[str]] = {
    "API_UNAUTHORIZED": Refused,
    "FAILED_STARTS": set(Trouble) - {Trouble.QUOTA},
    "PODS_LOST": How,
    "PODS_RETIRED": [why.name.lower() for why in Why],
    "SCALINGS": Verdict,
}
"""Metrics whose label values come from an enum of the code."""


def literal_labels() -> set[tuple[str, tuple[str, ...]]]:
    """Return the metric and the label values of each call of `labels` in the product that has only literals."""
    found = set()
    for folder in ("cli", "github_adapters", "k8s_adapters", "models", "ostler", "poller", "tasks", "watch", "web"):
        for file in (ROOT / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr == "labels"
                    and isinstance(call.func.value, ast.Attribute)
                    and call.args
                    and all(isinstance(arg, ast.Constant) for arg in call.args)
                ):
                    values = tuple(str(arg.value) for arg in call.args if isinstance(arg, ast.Constant))
                    found.add((call.func.value.attr, values))
    return found


def test_every_label_value_that_the_code_uses_starts_at_zero() -> None:
    for module in MODULES:
        importlib.import_module(module)
    used = {(name, (str(value),)) for name, values in ENUMS.items() for value in values} | literal_labels()
    assert ("PODS_RETIRED", ("over",)) in used
    seen()
    missing = {
        f"{name}{list(values)}"
        for name, values in used
        if values not in getattr(telemetry, name)._metrics and (*POOL, *values) not in getattr(telemetry, name)._metrics
    }
    assert missing == set()


def test_every_label_value_is_explained_in_the_page() -> None:
    for module in MODULES:
        importlib.import_module(module)
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(ostler_\w+)` \|(.*)$", page, re.MULTILINE))
    rows["ostler_stall_seconds"] = page.partition("\n## Stalled\n")[2].partition("\n## ")[0]
    samples = re.findall(
        r"^(ostler_[a-z_]+?)(?:_bucket|_sum|_count)?{(.*)} ", telemetry.exposition().decode(), re.MULTILINE
    )
    missing = {
        f"{metric}: {value}"
        for metric, labels in samples
        for label, value in re.findall(r'([a-z_]+)="([^"]*)"', labels)
        if label in EXPLAINED and not re.search(rf"\b{value.replace('_', '[_ ]')}", rows[metric])
    }
    assert missing == set()
