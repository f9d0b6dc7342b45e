"""Pools with images that contain no file of Ostler: the scripts of their Pods, and images that cannot be used."""

from __future__ import annotations

import pytest

from k8s_adapters.calls.client import Json, object_path
from k8s_adapters.runners import runner_scripts
from k8s_adapters.runners.runner_scripts import build_scripts, script_texts, scripts_name
from rules.pools.starts import UNUSABLE
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.fleet import beats, condition, kept, new_tick, polls, retired


def config_maps(stage: Stage) -> dict[str, Json]:
    """Return the data of the ConfigMaps with scripts, by name."""
    items = stage.kube.request("GET", object_path("configmaps", namespace=stage.namespace))["items"]
    found = {each["metadata"]["name"]: each["data"] for each in items}
    return {name: data for name, data in found.items() if name.startswith(runner_scripts.PREFIX)}


def mounted(stage: Stage, pod: str) -> str:
    """Return the name of the ConfigMap with the scripts that a Pod mounts."""
    spec = stage.kube.request("GET", object_path("pods", namespace=stage.namespace, name=pod))["spec"]
    (found,) = [each["configMap"]["name"] for each in spec["volumes"] if each["name"] == "ostler-scripts"]
    return str(found)


def test_scripts_exist_before_the_pods_that_mount_them(stage: Stage) -> None:
    stage.pool(replicas=2)
    kept(stage)

    assert config_maps(stage) == {scripts_name(): script_texts()}
    assert {mounted(stage, name) for name in stage.pods()} == {scripts_name()}


def test_pool_is_degraded_when_the_scripts_are_of_somebody_else(stage: Stage) -> None:
    path = object_path("configmaps", namespace=stage.namespace)
    foreign = build_scripts(namespace=stage.namespace) | {"data": {"poll.sh": "true"}}
    stage.kube.request("POST", path, body=foreign)
    stage.pool(replicas=1)
    kept(stage)

    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "PodRefused")
    assert (
        f"ConfigMap {stage.namespace}/{scripts_name()} does not contain the scripts of this release"
        in (found["message"])
    )
    assert not stage.pods()

    stage.kube.request("DELETE", f"{path}/{scripts_name()}")
    stage.rows("UPDATE pools SET create_after = NULL")
    kept(stage)
    assert condition(stage, "Degraded")["status"] == "False"
    assert len(stage.pods()) == 1


def test_other_scripts_roll_the_warm_pods_and_no_busy_pod(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.pool(replicas=2)
    kept(stage)
    polls(stage)
    busy, warm = sorted(stage.pods())
    stage.job(7)
    stage.claim(busy, job_id=7, state="executing")
    old = scripts_name()

    release(stage, monkeypatch)
    for _ in range(5):
        new_tick(stage)
        kept(stage)
        retired(stage)
        polls(stage)

    after = set(stage.pods())
    assert busy in after
    assert warm not in after
    assert mounted(stage, busy) == old
    assert {mounted(stage, name) for name in after - {busy}} == {scripts_name()} != {old}
    assert set(config_maps(stage)) == {old, scripts_name()}


def release(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a release with other scripts, whose upgrade is complete."""
    texts = {**script_texts(), "run.sh": "#!/bin/sh\nexit 0\n"}
    monkeypatch.setattr(runner_scripts, "script_texts", lambda: texts)
    runner_scripts.scripts_name.cache_clear()
    monkeypatch.setattr(stage.rt, "scripts", runner_scripts.RunnerScripts())
    stage.rows("UPDATE pools SET template_at = now() - interval '1 hour'")


@pytest.fixture(autouse=True)
def names() -> object:
    """Let the digest of each test's scripts be computed again."""
    runner_scripts.scripts_name.cache_clear()
    yield
    runner_scripts.scripts_name.cache_clear()


@pytest.mark.parametrize("code", [21, 22, 23, 128])
def test_pool_is_degraded_at_the_first_pod_of_an_unusable_image(stage: Stage, code: int) -> None:
    beats(stage)
    stage.pool(replicas=1)
    kept(stage)
    (name,) = stage.pods()
    stage.finish(name, phase="Failed", poller=code, runner=0 if code == 21 else code)
    kept(stage)

    found = condition(stage, "Degraded")
    assert (found["status"], found["reason"]) == ("True", "UnusableImage")
    assert found["message"] == f"The image cannot be used: {UNUSABLE[code]}"


def test_pool_recovers_when_its_image_is_replaced(stage: Stage) -> None:
    beats(stage)
    stage.pool(replicas=1)
    kept(stage)
    (name,) = stage.pods()
    stage.finish(name, phase="Failed", poller=22, runner=22)
    kept(stage)
    kept(stage)
    polls(stage)
    kept(stage)

    assert condition(stage, "Degraded")["status"] == "False"


def test_runner_that_ended_before_its_check_is_a_failed_start(stage: Stage) -> None:
    """The poller of such a Pod waits for the check, and so would never poll."""
    beats(stage)
    stage.pool(replicas=1)
    kept(stage)
    (name,) = stage.pods()
    stage.finish(name, phase="Running", poller=None, runner=128)
    kept(stage)
    retired(stage)

    assert condition(stage, "Degraded")["reason"] == "UnusableImage"
    assert name not in stage.pods()
