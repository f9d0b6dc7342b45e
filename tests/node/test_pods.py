"""Pods that fail on a real node: the pool says why, and healthy pools and jobs go on."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from lab import kubectl
from lab.bootstrap import LabPool
from lab.node.images import PAUSE
from rules.pools.starts import UNUSABLE
from tests.fleet import Fleet
from tests.node.conftest import SMALL
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]


@pytest.fixture
def other(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[LabPool]:
    """Yield a further pool with one Pod and the fields of `spec` that the test gives. Delete it at the end."""
    name = f"other-{secrets.token_hex(3)}"
    pool = replace(SMALL, name=name, labels=("self-hosted", name), replicas=1, spec=request.param)
    fleet.add_pool(pool)
    yield pool
    fleet.delete_pool(name)


@pytest.mark.parametrize("other", [{"image": "127.0.0.1:1/none:1"}], indirect=True)
def test_image_that_cannot_be_pulled_is_named(fleet: Fleet, other: LabPool) -> None:
    fleet.wait_until_degraded(other.name, "ErrImagePull", "ImagePullBackOff")


def home_of_runner(path: str) -> Mapping[str, Any]:
    """Return a spec whose runner is at another path of the image."""
    env = [{"name": "OSTLER_RUNNER_HOME", "value": path}]
    return {"podTemplate": {"spec": {"containers": [{"name": "runner", "env": env}]}}}


@pytest.mark.parametrize(
    ("other", "code"),
    [({"image": PAUSE}, 128), (home_of_runner("/srv"), 22), (home_of_runner("/root"), 23)],
    indirect=["other"],
    ids=["shell", "runner", "user"],
)
def test_image_that_cannot_be_used_is_named(fleet: Fleet, other: LabPool, code: int) -> None:
    found = fleet.wait_until_degraded(other.name, "UnusableImage")

    assert found["message"] == f"The image cannot be used: {UNUSABLE[code]}"


WITHOUT_VOLUME = {
    "provisioning": {"startTimeout": "10s"},
    "podTemplate": {
        "spec": {
            "volumes": [{"name": "absent", "configMap": {"name": "absent"}}],
            "containers": [{"name": "runner", "volumeMounts": [{"name": "absent", "mountPath": "/mnt"}]}],
        }
    },
}


@pytest.mark.parametrize("other", [WITHOUT_VOLUME], indirect=True)
def test_node_that_creates_no_sandbox_is_named_and_other_pools_go_on(fleet: Fleet, other: LabPool) -> None:
    found = fleet.wait_until_degraded(other.name, "PodsDoNotStart")

    assert "the node created no sandbox for the Pod within 10 s" in found["message"]
    fleet.wait_until_whole()


ATTACKS = """\
cd /var/run/ostler-scripts || exit 9
for name in poll.sh run.sh job-started.sh; do
    test -r $name || exit 8
    ! (echo x >$name) 2>/dev/null || exit 7
    ! rm -f $name 2>/dev/null || exit 6
done
! touch other 2>/dev/null || exit 5
! chmod 0777 . 2>/dev/null || exit 4
! ls /var/run/ostler-token /var/run/secrets/kubernetes.io 2>/dev/null || exit 3
"""


def test_job_in_an_image_without_scripts_cannot_change_the_mounted_ones(fleet: Fleet) -> None:
    fleet.wait_until_whole()
    [job] = fleet.send(script=ATTACKS)

    over = fleet.wait_for(job, "completed")
    ended = eventually(lambda: [each["status"] for each in fleet.events("script_ended") if each["job"] == job])
    assert (over["conclusion"], over["executions"], ended) == ("success", 1, [0])


def test_job_that_uses_up_its_memory_fails_and_the_pod_ends(fleet: Fleet) -> None:
    fleet.wait_until_whole()
    [job] = fleet.send(script="python3 -c 'bytearray(10**9)'")

    over = fleet.wait_for(job, "completed")
    assert (over["conclusion"], over["executions"]) == ("failure", 1)
    ended = eventually(lambda: [each["status"] for each in fleet.events("script_ended") if each["job"] == job])
    assert ended == [137]
    fleet.wait_until_whole()


SIDECAR = {"name": "proxy", "image": PAUSE, "restartPolicy": "Always"}


@pytest.mark.parametrize("other", [{"podTemplate": {"spec": {"initContainers": [SIDECAR]}}}], indirect=True)
def test_pod_with_a_sidecar_runs_its_job_and_ends(fleet: Fleet, other: LabPool) -> None:
    fleet.wait_until_whole(other.name)
    [job] = fleet.send(labels=other.labels, duration_seconds=1)

    assert fleet.wait_for(job, "completed")["conclusion"] == "success"
    pod = fleet.pod_of(job)
    eventually(lambda: pod not in fleet.pods(other.name), "the Pod with the sidecar stays")
    fleet.wait_until_whole(other.name)


def test_drain_of_a_node_waits_for_its_busy_pod(fleet: Fleet) -> None:
    fleet.wait_until_whole()
    [job] = fleet.send(duration_seconds=25)
    pod = fleet.pod_of(job)
    node = fleet.system.real_nodes[fleet.node_of(pod)].name
    command = [str(kubectl.build()), "--kubeconfig", str(fleet.system.kubeconfig)]

    drain = [*command, "drain", node, "--force", "--delete-emptydir-data", "--timeout=120s"]
    done = subprocess.run(drain, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "Cannot evict pod" in done.stderr
    over = fleet.job(job)
    assert (over["status"], over["conclusion"], over["executions"]) == ("completed", "success", 1)
    fleet.wait_until_whole()  # on the other node
    subprocess.run([*command, "uncordon", node], capture_output=True, check=True)


def test_node_with_a_full_disk_evicts_idle_pods_and_the_pool_moves(fleet: Fleet) -> None:
    fleet.wait_until_whole()
    node = fleet.system.real_nodes[1]

    node.restart_kubelet(evicts_below="99%")
    try:
        eventually(lambda: not any(each["spec"]["nodeName"] == node.name for each in fleet.pods().values()), within=180)
        fleet.wait_until_whole()
        [job] = fleet.send(duration_seconds=1)
        assert fleet.wait_for(job, "completed")["conclusion"] == "success"
    finally:
        node.restart_kubelet()
    fleet.wait_until_whole()
