"""promtool accepts the alerts, and each alert fires on series that it is for, and on no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import alerts
from lab import helm
from lab.prometheus import PromtoolRefused, promtool

RULES = helm.CHART / "files" / "alerts.yaml"
KNOWN: Mapping[str, Mapping[str, Any]] = {
    rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
}
STEP = 30  # seconds between two samples and between two evaluations
AT = 40 * 60  # seconds after the first sample at which an alert fires or not

Series = Mapping[str, str]
"""Samples of each series, in the notation of promtool: `3x100` is 3 a hundred times, `0+2x100` grows by 2."""


@dataclass(frozen=True)
class Case:
    """Series that fire an alert with this summary and these labels, and series that must not fire it."""

    fires: Series
    summary: str
    quiet: Series
    labels: Mapping[str, str] = field(default_factory=dict)


POOL = 'namespace="runners",pool="small"'
IN_POOL = {"namespace": "runners", "pool": "small"}
CASES = {
    "OstlerJobsWait": Case(
        {f"ostler_pool_oldest_dispatchable_job_seconds{{{POOL}}}": "400x100"},
        "A job of pool small waits for 6m 40s, and its account has budget",
        {f"ostler_pool_oldest_dispatchable_job_seconds{{{POOL}}}": "299x100"},
        IN_POOL,
    ),
    "OstlerJobsHeld": Case(
        {'ostler_jobs{state="queued",hold_reason="budget"}': "3x100"},
        "3 jobs are held: budget",
        {
            'ostler_jobs{state="queued",hold_reason="no_pool"}': "3x100",
            'ostler_jobs{state="queued",hold_reason="none"}': "3x100",
            'ostler_jobs{state="queued",hold_reason="backoff"}': "3x20 0x100",
        },
        {"hold_reason": "budget"},
    ),
    "OstlerReleaseWaits": Case(
        {'ostler_oldest_claim_seconds{purpose="job",state="releasing"}': "301x100"},
        "GitHub or the cluster refuses a call of a release",
        {
            'ostler_oldest_claim_seconds{purpose="job",state="releasing"}': "299x100",
            'ostler_oldest_claim_seconds{purpose="job",state="executing"}': "9999x100",
        },
    ),
    "OstlerMintsFail": Case(
        {'ostler_backoffs{kind="account"}': "1x100"},
        "GitHub refuses mints, or does not answer them (account)",
        {'ostler_backoffs{kind="account"}': "1x10 0x100"},
        {"kind": "account"},
    ),
    "OstlerNoMetrics": Case({}, "No web process of Ostler is scraped", {"ostler_database_up": "0x100"}),
    "OstlerDatabaseDown": Case(
        {'ostler_database_up{pod="a"}': "0x100", 'ostler_database_up{pod="b"}': "0x100"},
        "No web process reaches Postgres",
        {'ostler_database_up{pod="a"}': "0x100", 'ostler_database_up{pod="b"}': "1x100"},
    ),
    "OstlerNoSweepRuns": Case(
        {"ostler_last_tick_timestamp_seconds": "0x100"},
        "No sweep runs: no beat, no Redis, no worker on the queue sweeps, or all sweeps are paused",
        {"ostler_last_tick_timestamp_seconds": f"0+{STEP}x100"},
    ),
    "OstlerSweepLate": Case(
        {'ostler_sweep_late{sweep="resume"}': "1x100"},
        "The sweep resume is late",
        {'ostler_sweep_late{sweep="resume"}': "0x100", 'ostler_sweep_late{sweep="prune"}': "1x9 0x100"},
        {"sweep": "resume"},
    ),
    "OstlerDatabaseOlder": Case(
        {"ostler_database_older": "1x100"},
        "Postgres was restored to an earlier state than the cluster, so no job is matched",
        {"ostler_database_older": "0x100"},
    ),
    "OstlerEpochUnconfirmed": Case(
        {"ostler_epoch_confirmed_timestamp_seconds": "0x100"},
        "No delivered claim is released and no Pod is retired: the epoch is not confirmed",
        {"ostler_epoch_confirmed_timestamp_seconds": f"0+{STEP}x100"},
    ),
    "OstlerGateClosed": Case(
        {
            'ostler_gate_open{upstream="github",pod="a"}': "0x100",
            'ostler_gate_open{upstream="github",pod="b"}': "1x100",
            'ostler_gate_open{upstream="kubernetes",pod="a"}': "1x100",
        },
        "The gate of github is tripped: sweeps delete nothing, and no pool is scaled",
        {'ostler_gate_open{upstream="github"}': "1x100"},
        {"upstream": "github"},
    ),
    "OstlerRepairsFail": Case(
        {'ostler_repairs_total{sweep="missing_pods",outcome="failed"}': "0x70 1x40"},
        "Repairs of the sweep missing_pods fail",
        {
            'ostler_repairs_total{sweep="missing_pods",outcome="failed"}': "5x100",
            'ostler_repairs_total{sweep="missing_pods",outcome="done"}': "0+1x100",
        },
        {"sweep": "missing_pods"},
    ),
    "OstlerRepairsOverflow": Case(
        {'ostler_repair_overflow_total{sweep="orphaned_runners"}': "0+1x100"},
        "The sweep orphaned_runners finds more work than its budget allows",
        {'ostler_repair_overflow_total{sweep="orphaned_runners"}': "0x70 9x40"},
        {"sweep": "orphaned_runners"},
    ),
    "OstlerWorkStalls": Case(
        {'ostler_oldest_stall_seconds{cause="pod_gone"}': "301x100"},
        "Stalled work is not served (pod_gone) for 5m 1s",
        {
            'ostler_oldest_stall_seconds{cause="message_lost"}': "39x100",
            'ostler_oldest_stall_seconds{cause="pod_spent"}': "299x100",
            'ostler_oldest_stall_seconds{cause="runner_unused"}': "599x100",
        },
        {"cause": "pod_gone"},
    ),
    "OstlerWebhooksNotStored": Case(
        {'ostler_webhooks_total{event="workflow_job",outcome="unavailable"}': "0+1x100"},
        "Webhooks of GitHub are not stored",
        {
            'ostler_webhooks_total{event="workflow_job",outcome="unavailable"}': "7x100",
            'ostler_webhooks_total{event="workflow_job",outcome="unsigned"}': "0+1x100",
        },
    ),
    "OstlerStampsMissed": Case(
        {"ostler_stamps_missed_total": "0+1x100"},
        "Pods cannot be stamped, so busy Pods might have no stamp",
        {"ostler_stamps_missed_total": "7x100"},
    ),
    "OstlerRunnerVersionEnds": Case(
        {f'ostler_runner_version_ends_timestamp_seconds{{{POOL},version="2.1"}}': f"{13 * 86400}x200"},
        "GitHub will soon refuse the runner version of pool small",
        {
            f'ostler_runner_version_ends_timestamp_seconds{{{POOL},version="2.1"}}': f"{15 * 86400}x200",
            'ostler_runner_version_ends_timestamp_seconds{namespace="runners",pool="new",version="2.1"}': "0x200",
        },
        IN_POOL,
    ),
    "OstlerPoolBraked": Case(
        {f'ostler_pool_braked{{{POOL},why="too_old"}}': "4x100"},
        "The runners of pool small do not execute jobs (too_old)",
        {f'ostler_pool_braked{{{POOL},why="too_old"}}': "4x9 _x100"},
        {**IN_POOL, "why": "too_old"},
    ),
    "OstlerWatchDown": Case(
        {'ostler_watch_connected{pod="a"}': "0x100", 'ostler_watch_connected{pod="b"}': "0x100"},
        "No watch is connected, so Pods that disappear are found later",
        {'ostler_watch_connected{pod="a"}': "0x100", 'ostler_watch_connected{pod="b"}': "1x100"},
    ),
}


def story(alert: str, series: Series, expected: Mapping[int, bool], case: Case) -> dict[str, Any]:
    """Return a test of promtool: whether the alert fires at each of these times, in seconds after the first sample."""
    rule = KNOWN[alert]
    firing = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    return {
        "name": alert,
        "interval": f"{STEP}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{at}s", "alertname": alert, "exp_alerts": [firing] if fires else []}
            for at, fires in expected.items()
        ],
    }


def seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def run_promtool(folder: Path, rules: Path, stories: list[dict[str, Any]]) -> None:
    (file := folder / "series.yaml").write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": f"{STEP}s", "tests": stories})
    )
    promtool("test", "rules", str(file))


def test_promtool_finds_no_fault_with_the_rules() -> None:
    assert f"SUCCESS: {len(KNOWN)} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_each_alert_fires_after_its_time_and_on_no_other_series(tmp_path: Path) -> None:
    assert CASES.keys() == KNOWN.keys()
    stories = []
    for alert, case in CASES.items():
        after = seconds(KNOWN[alert].get("for", "0s"))
        early = {after - STEP: False} if after else {}
        stories.append(story(alert, case.fires, {**early, max(AT, after + STEP): True}, case))
        stories.append(story(alert, case.quiet, {max(AT, after + STEP): False}, case))
    run_promtool(tmp_path, RULES, stories)


@pytest.mark.parametrize(
    ("alert", "was", "wrong"),
    [
        ("OstlerJobsWait", "> 300", "> 200"),
        ("OstlerGateClosed", "min by (upstream)", "max by (upstream)"),
        ("OstlerJobsHeld", "none|no_pool", "none"),
        ("OstlerRepairsOverflow", "for: 30m", "for: 1m"),
        ("OstlerWatchDown", "max(ostler_watch_connected)", "min(ostler_watch_connected)"),
    ],
)
def test_series_detect_a_wrong_rule(tmp_path: Path, alert: str, was: str, wrong: str) -> None:
    begin, found, end = RULES.read_text().partition(f"- alert: {alert}\n")
    assert was in end
    (rules := tmp_path / "rules.yaml").write_text(begin + found + end.replace(was, wrong, 1))
    case = CASES[alert]
    stories = [story(alert, case.fires, {AT: True}, case), story(alert, case.quiet, {AT: False}, case)]
    with pytest.raises(PromtoolRefused, match=alert):
        run_promtool(tmp_path, rules, stories)


def test_a_watch_that_nobody_scrapes_counts_as_down(tmp_path: Path) -> None:
    case = CASES["OstlerWatchDown"]
    unrelated = {'ostler_watch_connected_since{pod="a"}': "1x100"}
    run_promtool(tmp_path, RULES, [story("OstlerWatchDown", unrelated, {AT: True}, case)])


def test_chart_and_command_give_the_same_rules_with_the_address_of_the_runbooks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = "https://git.example.com/ostler/blob/main/"
    (rule,) = (
        each
        for each in helm.render(values={"metrics": {"rules": True, "runbooks": base}})
        if each["kind"] == "PrometheusRule"
    )
    alerts.alerts(runbooks=base)
    assert rule["spec"] == yaml.safe_load(capsys.readouterr().out)
    for each in rule["spec"]["groups"][0]["rules"]:
        assert each["annotations"]["runbook_url"].startswith(f"{base}docs/")
