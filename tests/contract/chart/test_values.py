"""Helm refuses invalid values with a message that names the value and gives a valid one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from lab import helm
from models.db.connections import RESERVE, WEB, worker_pool
from ostler.settings import BeatSettings
from tests.contract.chart.values import MATRIX


def test_helm_finds_no_fault_with_the_chart() -> None:
    assert "0 chart(s) failed" in helm.lint()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"imag": {}}, "imag"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"runners": {"namespace": "Runners"}}, "namespace"),
        ({"runners": {"namespace": ""}}, "namespace"),
        ({"pools": {"small": 3}}, "pools"),
        ({"existingSecret": ""}, "existingSecret"),
        ({"secretRefs": {"OSTLER_LOG_LEVEL": {"name": "a", "key": "b"}}}, "secretRefs"),
        ({"settings": {"LOG_LEVEL": "INFO"}}, "/settings.*LOG_LEVEL"),
        ({"workers": {"Default": {}}}, "/workers.*Default"),
        ({"dispatchUrl": "http://web"}, "dispatchUrl"),
        ({"web": {"replicas": 0}}, "replicas"),
        ({"worker": {"terminationGracePeriodSeconds": 20}}, "got 20, want 30"),
        ({"worker": {"queues": ["dispatch", "mints"]}}, "queues"),
        ({"workers": {"default": {"thread": 3}}}, "thread"),
        ({"keda": {"redis": {"address": "redis://:secret@redis:6379/0"}}}, "address"),
        ({"postgres": {"maxConnections": 300000}}, "maxConnections"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmRefused, match=named):
        helm.render(values=values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"runners": {"namespace": "ostler"}}, 'runners.namespace: found "ostler", the release\'s own.*name another'),
        ({"settings": {"OSTLER_DATABASE_URL": "x"}}, "settings.OSTLER_DATABASE_URL: it is a secret.*existingSecret"),
        ({"settings": {"OSTLER_WEB_PORT": 1}}, "settings.OSTLER_WEB_PORT: the chart sets it from other values"),
        ({"worker": {"queues": ["github", "pools"]}}, "no group serves the queue dispatch.*add it"),
        ({"worker": {"threads": 16}}, "postgres.maxConnections: found 100.* 100 connections .*max_connections to 110"),
        (
            {
                "pools": {
                    "small": {"image": "i", "runnerLabels": ["l"], "replicas": 3, "autoscaling": {"enabled": True}}
                }
            },
            "pools.small: found replicas together with autoscaling.enabled.*remove replicas",
        ),
        ({"worker": {"keda": {"enabled": True}}}, "keda.redis.address: it is not set.*set it to host:port"),
        (
            {"worker": {"autoscaling": {"enabled": True}, "keda": {"enabled": True}}},
            "workers.default: autoscaling and keda are both enabled.*disable one",
        ),
        (
            {"worker": {"autoscaling": {"enabled": True, "minReplicas": 9}}, "postgres": {"maxConnections": 900}},
            "workers.default.autoscaling: minReplicas 9 is more than maxReplicas 4",
        ),
        (
            {"uninstall": {"settle": 121}},
            "uninstall.deadline: 180 seconds are not enough for settle .121. and 60 more.*raise deadline to 181",
        ),
        ({"ingress": {"enabled": True}}, "ingress.host: it is not set.*name the host"),
    ],
)
def test_values_that_do_not_fit_each_other_are_refused_with_cause_and_cure(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmRefused, match=said):
        helm.render(values=values)


@pytest.mark.parametrize("which", MATRIX)
def test_helm_4_renders_the_objects_that_helm_3_renders(which: str) -> None:
    # So every test that judges rendered objects with Helm 3 judges Helm 4 as well.
    before = helm.render(values=MATRIX[which], crds=True)
    with helm.using(4):
        assert helm.render(values=MATRIX[which], crds=True) == before


def test_helm_4_refuses_what_helm_3_refuses_with_the_same_words() -> None:
    mistakes: dict[str, dict[str, Any]] = {
        "imag": {"imag": {}},
        "remove replicas": {
            "pools": {"small": {"image": "i", "runnerLabels": ["l"], "replicas": 3, "autoscaling": {"enabled": True}}}
        },
    }
    with helm.using(4):
        for said, values in mistakes.items():
            with pytest.raises(helm.HelmRefused, match=said):
                helm.render(values=values)
        assert "0 chart(s) failed" in helm.lint()


@pytest.mark.parametrize("which", MATRIX)
def test_the_connection_budget_is_what_the_processes_ask_for(which: str) -> None:
    budgets, together = set(), 0
    objects = helm.render(values=MATRIX[which])
    most = {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"].get("maxReplicas") or each["spec"]["maxReplicaCount"]
        for each in objects
        if each["kind"] in {"HorizontalPodAutoscaler", "ScaledObject"}
    }
    for each in objects:
        component = each["metadata"].get("labels", {}).get("app.kubernetes.io/component")
        if each["kind"] != "Deployment" or component not in {"web", "worker"}:
            continue
        (container,) = each["spec"]["template"]["spec"]["containers"]
        said = {variable["name"]: variable.get("value") for variable in container["env"]}
        share = int(said["OSTLER_CONNECTION_SHARE"])
        if component == "web":
            assert share == WEB
        else:
            queues = re.sub("^--queues=", "", container["args"][1]).split(",")
            assert share == worker_pool(threads=int(said["OSTLER_WORKER_THREADS"]), queues=queues)
        budgets.add(int(said["OSTLER_CONNECTION_BUDGET"]))
        # While it rolls: one more beside all old ones, and an old one that has not ended yet.
        together += share * (most.get(each["metadata"]["name"], each["spec"].get("replicas")) + 2)

    assert budgets == {together}
    assert together + RESERVE <= MATRIX[which].get("postgres", {}).get("maxConnections", 100)


@pytest.mark.parametrize(("value", "asked"), [(True, False), ("true", False), (False, True), (None, True)])
def test_flower_needs_no_login_in_the_secret_if_it_asks_for_none(*, value: object, asked: bool) -> None:
    settings = {} if value is None else {"OSTLER_FLOWER_WITHOUT_LOGIN": value}
    (flower,) = (
        each
        for each in helm.render(values={"settings": settings})
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "ostler-flower")
    )
    (container,) = flower["spec"]["template"]["spec"]["containers"]

    assert ("OSTLER_FLOWER_BASIC_AUTH" in {each["name"] for each in container["env"]}) is asked


def test_a_setting_arrives_as_it_was_written_in_the_processes_that_read_it() -> None:
    settings = {
        "OSTLER_KEEP_JOBS": 31536000,
        "OSTLER_REPAIR_BUDGET_PERCENT": 0.25,
        "OSTLER_FLOWER_WITHOUT_LOGIN": True,
        "OSTLER_LOG_LEVEL": "DEBUG",
        "OSTLER_TIMINGS": '{"gates_every": 7}',
    }
    found = {}
    for each in helm.render(values={"settings": settings}):
        if each["kind"] == "Deployment":
            said = {one["name"]: one.get("value") for one in each["spec"]["template"]["spec"]["containers"][0]["env"]}
            component = each["metadata"]["labels"]["app.kubernetes.io/component"]
            found[component] = {name: value for name, value in said.items() if name in settings}

    whole = {
        "OSTLER_KEEP_JOBS": "31536000",
        "OSTLER_REPAIR_BUDGET_PERCENT": "0.25",
        "OSTLER_FLOWER_WITHOUT_LOGIN": "true",
        "OSTLER_LOG_LEVEL": "DEBUG",
        "OSTLER_TIMINGS": settings["OSTLER_TIMINGS"],
    }
    of_beat = {name: whole[name] for name in ("OSTLER_LOG_LEVEL", "OSTLER_TIMINGS")}
    assert found == {
        "web": whole,
        "worker": whole,
        "beat": of_beat,
        "watch": of_beat,
        "flower": {"OSTLER_FLOWER_WITHOUT_LOGIN": "true", "OSTLER_LOG_LEVEL": "DEBUG"},
    }


def test_beat_is_given_every_setting_that_it_reads() -> None:
    settings = {f"OSTLER_{name.upper()}": "{}" for name in BeatSettings.model_fields if name != "redis_url"}
    (beat,) = (each for each in _containers(helm.render(values={"settings": settings})) if each["name"] == "beat")
    assert {each["name"] for each in beat["env"]} == {"OSTLER_REDIS_URL", *settings}


def test_beat_watch_and_flower_are_given_their_own_user_of_redis() -> None:
    values = {
        "redis": {"usersPerProcess": True},
        "secretRefs": {"OSTLER_REDIS_URL_WATCH": {"name": "redis", "key": "watch"}},
    }
    found = {
        each["name"]: (env["valueFrom"]["secretKeyRef"]["name"], env["valueFrom"]["secretKeyRef"]["key"])
        for each in _containers(helm.render(values=values))
        for env in each["env"]
        if env["name"] == "OSTLER_REDIS_URL"
    }
    assert found == {
        "web": ("ostler", "OSTLER_REDIS_URL"),
        "worker": ("ostler", "OSTLER_REDIS_URL"),
        "beat": ("ostler", "OSTLER_REDIS_URL_BEAT"),
        "watch": ("redis", "watch"),
        "flower": ("ostler", "OSTLER_REDIS_URL_FLOWER"),
    }


def test_each_process_is_given_the_secrets_that_the_readme_says() -> None:
    rows = re.findall(r"^\| (`OSTLER_[^|]+) \| ([^|]+) \|$", (helm.CHART / "README.md").read_text(), re.MULTILINE)
    told: dict[str, set[str]] = {}
    for variables, processes in rows:
        for process in processes.removesuffix(", the migration").split(", "):
            told.setdefault(process.lower(), set()).update(re.findall(r"`(\w+)`", variables))
    found = {
        each["name"]: {one["name"] for one in each["env"] if "valueFrom" in one} for each in _containers(helm.render())
    }
    assert found == told


def _containers(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the container of each Deployment."""
    return [each["spec"]["template"]["spec"]["containers"][0] for each in objects if each["kind"] == "Deployment"]


def test_the_readme_names_every_value() -> None:
    told = set(re.findall(r"`([a-zA-Z.]+)`", (helm.CHART / "README.md").read_text()))
    untold = [path for path in _paths(yaml.safe_load((helm.CHART / "values.yaml").read_text())) if not told & path]
    assert not untold


def _paths(values: dict[str, Any], above: str = "") -> Iterator[set[str]]:
    """Yield the path of each value, together with the paths of its parents."""
    for name, value in values.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, dict) and value and not above:
            for deeper in _paths(value, path):
                yield {path, *deeper}
        else:
            yield {path}
