"""Facts of a real kubelet with containerd: the statuses of Pods that fail, are killed, are evicted or are deleted.

Ostler's rules read these statuses, and the lab's kubelet (`lab.kubelet`) imitates them. No test here uses Ostler.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from k8s_adapters.runners.pods import read_pod
from k8s_adapters.runners.runner_scripts import scripts_name
from lab.kubelet.ailments import NO_SHELL, NO_SUCH_SCRIPT, START_ERROR
from lab.kubelet.worker import LOST, TERMINATED, UNKNOWN
from lab.node.images import PAUSE
from tests.fleet import Fleet
from tests.node.plain_pods import PlainPods, condition, container, distinct, ends, shell, states

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

NODE = 1
"""Index of the node. Two tests break it, and Ostler's Pods go to the other node."""

FOREVER = "while :; do sleep 0.2; done"
MEMORY: dict[str, Any] = {"resources": {"limits": {"memory": "64Mi"}}}
TOO_MUCH = "python3 -c 'bytearray(300 << 20)'"
NOWHERE = "127.0.0.1:1/none"
"""A registry that refuses every connection."""

MARGIN_MIB = 2000
"""MiB of the disk that may be used before the node has DiskPressure."""


@pytest.fixture(scope="module")
def pods(fleet: Fleet) -> Iterator[PlainPods]:
    yield PlainPods(fleet.kube, fleet.system.real_nodes[NODE].name)
    fleet.wait_until_whole()


def test_image_without_a_shell_fails_to_start_and_its_pod_never_runs(pods: PlainPods) -> None:
    pods.create("no-shell", container("/bin/sh", "/scripts/poll.sh", image=PAUSE))

    status = pods.wait_until_over("no-shell")

    assert ends(status) == [(NO_SHELL, START_ERROR)] == [(128, "StartError")]
    assert status["phase"] == "Failed"
    assert "reason" not in status
    assert "no such file or directory" in states(status)[0]["terminated"]["message"]
    assert states(status)[0]["terminated"]["startedAt"] == "1970-01-01T00:00:00Z"
    assert distinct([pod["status"]["phase"] for _, pod in pods.history("no-shell")]) == ["Pending", "Failed"]


def test_image_with_a_shell_but_without_the_scripts_ends_with_the_code_of_its_shell(pods: PlainPods) -> None:
    """Debian and Ubuntu have dash as `/bin/sh`, which ends with 2. Bash ends with 127."""
    pods.create("no-scripts", container("/bin/sh", "/opt/none/poll.sh"))
    pods.create("no-scripts-bash", container("/bin/bash", "/opt/none/poll.sh"))

    assert ends(pods.wait_until_over("no-scripts")) == [(NO_SUCH_SCRIPT, "Error")] == [(2, "Error")]
    assert ends(pods.wait_until_over("no-scripts-bash")) == [(127, "Error")]


@pytest.mark.parametrize(("signal", "code"), [("SIGKILL", 137), ("SIGTERM", 143)])
def test_signal_is_part_of_the_exit_code_and_of_no_other_field(
    fleet: Fleet, pods: PlainPods, signal: str, code: int
) -> None:
    name = f"killed-by-{signal.lower()}"
    # The first process of a PID namespace ignores signals without a handler, so this process is not the first.
    pods.create(name, container("sleep", "1000"), shareProcessNamespace=True)
    [found] = pods.wait_until_running(name)["containerStatuses"]

    _, _, task = found["containerID"].partition("containerd://")
    assert fleet.system.real_nodes[NODE].ctr("tasks", "kill", "-s", signal, task).returncode == 0

    status = pods.wait_until_over(name)
    assert ends(status) == [(code, "Error")]
    assert "signal" not in states(status)[0]["terminated"]


def test_main_process_without_memory_is_oom_killed(pods: PlainPods) -> None:
    pods.create("oom", container("python3", "-c", "bytearray(300 << 20)", **MEMORY))

    status = pods.wait_until_over("oom")

    assert ends(status) == [(137, "OOMKilled")]
    assert (status["phase"], status.get("reason")) == ("Failed", None)


def test_container_is_called_oom_killed_even_if_its_main_process_exits_0(pods: PlainPods) -> None:
    """With cgroup v2 the kernel kills the whole container, unless the kubelet is told otherwise."""
    pods.create("oom-child", shell(f"{TOO_MUCH}; exit 0", **MEMORY))

    status = pods.wait_until_over("oom-child")

    assert (status["phase"], ends(status)) in [
        ("Succeeded", [(0, "OOMKilled")]),
        ("Failed", [(137, "OOMKilled")]),
    ]


def test_image_that_cannot_be_pulled_alternates_between_two_reasons(pods: PlainPods) -> None:
    pods.create("no-image", container("true", image=f"{NOWHERE}:1"))
    pods.wait_for("no-image", lambda status: waits(status) == ["ImagePullBackOff"])

    seen = distinct([reason for _, pod in pods.history("no-image") for reason in waits(pod["status"])])

    assert seen == ["ContainerCreating", "ErrImagePull", "ImagePullBackOff"]
    assert pods.status("no-image")["phase"] == "Pending"
    pods.wait_for("no-image", lambda status: waits(status) == ["ErrImagePull"])  # the next attempt
    pods.delete("no-image")


@pytest.mark.parametrize(
    ("name", "image", "reason"),
    [("never-pulled", f"{NOWHERE}:2", "ErrImageNeverPull"), ("bad-name", "Upper/Case:1", "InvalidImageName")],
)
def test_image_that_is_never_pulled_has_one_reason(pods: PlainPods, name: str, image: str, reason: str) -> None:
    pods.create(name, container("true", image=image) | {"imagePullPolicy": "Never"})

    pods.wait_for(name, lambda status: waits(status) == [reason])

    assert pods.status(name)["phase"] == "Pending"
    pods.delete(name)


def waits(status: Mapping[str, Any]) -> list[str]:
    """Return the reasons of the containers that wait."""
    return [each["waiting"]["reason"] for each in states(status) if "waiting" in each]


@pytest.mark.parametrize(
    ("name", "script", "end"),
    [("deaf", "sleep 1000", (137, "Error")), ("obeys", f"trap 'exit 5' TERM; {FOREVER}", (5, "Error"))],
)
def test_sidecar_ends_after_the_containers_and_does_not_change_the_phase(
    pods: PlainPods, name: str, script: str, end: tuple[int, str]
) -> None:
    name = f"sidecar-{name}"
    sidecar = shell(script, name="sidecar", restartPolicy="Always")
    pods.create(name, shell("sleep 1"), initContainers=[sidecar], terminationGracePeriodSeconds=2)

    status = pods.wait_until_over(name)

    assert (status["phase"], ends(status)) == ("Succeeded", [(0, "Completed")])
    assert ends(status, "initContainerStatuses") == [end]
    seen = [
        (state["phase"], bool(ends(state)), bool(ends(state, "initContainerStatuses")))
        for state in (pod["status"] for _, pod in pods.history(name))
    ]
    assert distinct(seen)[-3:] == [("Running", True, False), ("Running", True, True), ("Succeeded", True, True)]


def test_deleted_pod_reports_all_ends_at_once_then_loses_its_grace_and_is_gone(pods: PlainPods) -> None:
    pods.create(
        "deleted",
        shell(f"trap 'exit 143' TERM; {FOREVER}", name="a-obeys"),
        shell(f"trap 'exit 0' TERM; {FOREVER}", name="b-exits-0"),
        container("sleep", "1000", name="c-deaf"),
        terminationGracePeriodSeconds=3,
    )
    pods.wait_until_running("deleted")

    pods.delete("deleted")
    pods.wait_for_end("deleted")

    events = [each for each in pods.history("deleted") if "deletionTimestamp" in each[1]["metadata"]]
    seen = [
        (kind, pod["status"]["phase"], pod["metadata"]["deletionGracePeriodSeconds"], ends(pod["status"]))
        for kind, pod in events
    ]
    all_ends = [(143, "Error"), (0, "Completed"), (137, "Error")]
    assert distinct(seen) == [
        ("MODIFIED", "Running", 3, []),
        ("MODIFIED", "Failed", 3, all_ends),
        ("MODIFIED", "Failed", 0, all_ends),
        ("DELETED", "Failed", 0, all_ends),
    ]
    first, last = (read_pod(pod).deletion_at for _, pod in (events[0], events[-1]))
    assert first is not None
    assert last is not None
    assert first < last, "the last changes have the time of the end in place of the time of the request"


def test_deleted_pod_of_containers_that_exit_0_has_succeeded(pods: PlainPods) -> None:
    pods.create("deleted-well", shell(f"trap 'exit 0' TERM; {FOREVER}"))
    pods.wait_until_running("deleted-well")

    pods.delete("deleted-well")
    pods.wait_for_end("deleted-well")

    kind, last = pods.history("deleted-well")[-1]
    assert (kind, last["status"]["phase"], ends(last["status"])) == ("DELETED", "Succeeded", [(0, "Completed")])


def test_deleted_warm_pod_ends_with_143(pods: PlainPods) -> None:
    """The runner ends with 0 if it sees before its own signal that the poller got no work."""
    pods.create_scripts()
    mounts = [{"name": "jit", "mountPath": "/jit"}, {"name": "scripts", "mountPath": "/scripts", "readOnly": True}]
    mount: dict[str, Any] = {"volumeMounts": mounts}
    variables = {
        "OSTLER_JIT_DIR": "/jit",
        "OSTLER_DISPATCH_URL": "http://127.0.0.1:1/",
        "OSTLER_TOKEN_FILE": "/etc/hostname",
    }
    env = [{"name": name, "value": value} for name, value in variables.items()]
    pods.create(
        "warm",
        container("/bin/sh", "/scripts/poll.sh", name="poller", env=env, **mount),
        container("/bin/sh", "/scripts/run.sh", name="runner", env=env, **mount),
        volumes=[
            {"name": "jit", "emptyDir": {"medium": "Memory"}},
            {"name": "scripts", "configMap": {"name": scripts_name()}},
        ],
        securityContext={"fsGroup": 1001},
    )
    pods.wait_until_running("warm")

    pods.delete("warm")
    pods.wait_for_end("warm")

    _, last = pods.history("warm")[-1]
    poller, runner = ends(last["status"])
    assert poller == (TERMINATED, "Error") == (143, "Error")
    assert runner in {(TERMINATED, "Error"), (0, "Completed")}


def test_pod_evicted_by_disk_pressure_has_failed_with_a_reason(fleet: Fleet, pods: PlainPods) -> None:
    node = fleet.system.real_nodes[NODE]
    node.restart_kubelet(evicts_below=f"{shutil.disk_usage(node.folder).free // 2**20 - MARGIN_MIB}Mi")
    try:
        script = f"sleep 3; fallocate -l {2 * MARGIN_MIB}M /tmp/full; {FOREVER}"
        pods.create("evicted", shell(script), container("sleep", "1000", name="other"))
        status = pods.wait_until_over("evicted", within=180)
    finally:
        node.restart_kubelet()

    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert status["message"].startswith("The node was low on resource: ephemeral-storage. Threshold quantity: ")
    assert condition(status, "DisruptionTarget") == ("True", "TerminationByKubelet")
    # The kubelet might delete a dead container for its disk space before it has read the exit code.
    assert {code for code, _ in ends(status)} == {137}
    assert {reason for _, reason in ends(status)} <= {"Error", "ContainerStatusUnknown"}


def test_container_that_ended_with_its_node_has_an_unknown_end(fleet: Fleet, pods: PlainPods) -> None:
    node = fleet.system.real_nodes[NODE]
    pods.create("lost", container("sleep", "1000"))
    pods.wait_until_running("lost")

    node.kill()
    node.kill_containers()
    node.revive()

    status = pods.wait_until_over("lost")
    assert (status["phase"], status.get("reason")) == ("Failed", None)
    assert ends(status) == [(LOST, UNKNOWN)] == [(255, "Unknown")]
