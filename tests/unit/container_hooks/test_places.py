"""The environment of the sidecar, as `build_pod` sets it and as GitHub's own hooks name its variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from container_hooks.places import read_place
from container_hooks.ports import World
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.runners import build_pod
from ostler.errors import ConfigurationError
from ostler.variables import strangers
from tests.unit.container_hooks.worlds import Stage

FIELDS = {"metadata.uid": "u-1", "spec.nodeName": "node-1"}


def test_limit_of_disk_space_of_the_pool_is_that_of_its_hook_pods() -> None:
    assert read_place(environment(OSTLER_HOOKS_DISK_MIB="20480")).settings.disk_mib == 20480


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the sidecar in a Pod that Ostler builds."""
    metadata = {"name": "small", "namespace": "runners", "uid": "u"}
    spec: dict[str, Any] = {"image": "i", "runnerLabels": ["a"], "containers": {"mode": "kubernetes", "vcpu": "1500m"}}
    pool = read_pool({"metadata": metadata, "spec": spec})
    pod = build_pod(pool=pool, name="small-0000000a", attempt="a", dispatch_url="", audience="", hooks_image="o:1")
    (hooks,) = pod["spec"]["initContainers"]
    given = {
        each["name"]: each["value"] if "value" in each else FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in hooks["env"]
    }
    return given | more


def world(tmp_path: Path, folders: dict[str, str]) -> World:
    stage = Stage(tmp_path)
    known = stage.world()
    return read_place(environment()).world(
        client=known.client, exec_=known.exec, files=known.files, log=known.log, ledger=known.ledger, folders=folders
    )


def test_sidecar_reads_the_environment_that_its_pod_has() -> None:
    place = read_place(environment())

    assert (place.namespace, place.pod, place.uid) == ("runners", "small-0000000a", "u-1")
    assert place.pool == "small"
    assert (place.settings.vcpu_millicores, place.settings.memory_mib) == (1500, 4096)
    assert (place.heartbeat.period, place.heartbeat.deadline) == (5, 61)
    assert place.settings.disk_mib is None


def test_variables_of_the_sidecar_are_no_unknown_settings() -> None:
    assert strangers(environment(), ()) == []


def test_variables_of_githubs_hooks_are_read() -> None:
    place = read_place(
        environment(
            ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE="/etc/ostler-hooks/template.yaml",
            ACTIONS_RUNNER_PREPARE_JOB_TIMEOUT_SECONDS="90",
            ACTIONS_RUNNER_HEARTBEAT_PERIOD_MS="2000",
        )
    )

    assert place.settings.overlay == Path("/etc/ostler-hooks/template.yaml")
    assert place.settings.start_within == 90
    assert (place.heartbeat.period, place.heartbeat.deadline) == (2, 25)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("ACTIONS_RUNNER_POD_NAME", "", "ACTIONS_RUNNER_POD_NAME: it is not set"),
        ("OSTLER_HOOKS_POD_UID", "", "OSTLER_HOOKS_POD_UID: it is not set"),
        ("OSTLER_HOOKS_VCPU", "much", "OSTLER_HOOKS_VCPU: found 'much'; must be a number above 0"),
        ("ACTIONS_RUNNER_PREPARE_JOB_TIMEOUT_SECONDS", "-1", "must be a number above 0"),
        ("ACTIONS_RUNNER_HEARTBEAT_DEADLINE_MS", "5000", "ACTIONS_RUNNER_HEARTBEAT_DEADLINE_MS: must be more than"),
        ("ACTIONS_RUNNER_HEARTBEAT_DEADLINE_MS", "11000", "must be at least 12000, because a step reports every 5"),
        ("ACTIONS_RUNNER_HEARTBEAT_PERIOD_MS", "inf", "must be a number above 0"),
    ],
)
def test_wrong_variable_is_named(variable: str, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_place(environment(**{variable: value}))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("folders", "work", "workspace"),
    [
        ({}, "/home/runner/_work", None),
        (
            {"RUNNER_WORKSPACE": "/data/_work/shop", "GITHUB_WORKSPACE": "/data/_work/shop/shop"},
            "/data/_work",
            "shop/shop",
        ),
        ({"RUNNER_WORKSPACE": "", "GITHUB_WORKSPACE": "/etc"}, "/home/runner/_work", None),
        ({"RUNNER_WORKSPACE": "relative", "GITHUB_WORKSPACE": "/home/runner/_work"}, "/home/runner/_work", None),
    ],
)
def test_folders_of_the_job_come_from_the_runner(
    tmp_path: Path, folders: dict[str, str], work: str, workspace: str | None
) -> None:
    settings = world(tmp_path, folders).settings

    assert (settings.work, settings.workspace) == (work, workspace)
    assert settings.externals == f"{work.removesuffix('/_work')}/externals"
