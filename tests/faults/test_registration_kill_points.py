"""Kill points of persistent runners: a process is killed at each step of a registration and of a release.

One system runs for all points. For each point, a pool grows from nothing, one of its runners executes a job, and the
pool shrinks to nothing. A process stops itself at the point, is killed there with SIGKILL and started again. Each
recovery is by the sweeps alone. The logs of the lab and the laws are the judges.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from k8s_adapters.calls.client import object_path
from k8s_adapters.runners.owners.stateful_set import APPS, KIND
from k8s_adapters.runners.pods import list_pods
from lab.bootstrap import ACCOUNTS, LabPool
from lab.control_plane import ClusterAccess
from lab.invariants import broken
from lab.system import read_log
from rules.claims.machines import TRANSITIONS, Machine, Purpose
from tests.faults.scenarios import SIDES
from tests.faults.stage import Stage, running

pytestmark = [pytest.mark.timeout(1200), pytest.mark.cluster]

ACME = ACCOUNTS[0]
POOL = LabPool(
    "licensed",
    ("self-hosted", "linux", "licensed"),
    0,
    spec={"workload": "StatefulSet", "lifecycle": "persistent", "registration": {"organization": ACME.login}},
)
RUNNERS = 2
JOB = 4.0
"""Seconds that a job runs while its pool shrinks."""

COMING = ("claim", "lease_stamp", "stamp_on", "lease_mint", "mint", "deliver")
SPENT = "end_pod_spent"
LEAVING = ("begin_release", "lease_release", "end_released")
ELSEWHERE = {"end_pod_gone", "stamp_gave_up", "stamp_removing", "stamp_off", "cancel_unstamp", "lease_unstamp"}
"""Steps that do not depend on the purpose of a claim: `test_kill_points` kills there. No claim of this pool ends with
`end_pod_gone`, because the finalizer of a StatefulSet's Pod keeps the Pod until it is over."""

POINTS = [f"{name}.{side}" for name in (*COMING, SPENT, *LEAVING) for side in SIDES]
QUICK = {
    "mint.before_commit",  # GitHub has given a token that nobody knows
    "deliver.after_commit",  # the Pod has not received what counts as delivered
    "end_released.before_commit",  # GitHub has deleted the runner, and its claim is live
}
"""Points whose kills are always tested; `make test-slow` adds the others."""


def marks_of(point: str) -> Sequence[pytest.MarkDecorator]:
    return () if point in QUICK else (pytest.mark.slow,)


@pytest.fixture(scope="module")
def stage(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("registrations")
    with running(folder, control_plane, f"registrations-{secrets.token_hex(4)}", pool=POOL) as stage:
        yield stage


def online(stage: Stage) -> int:
    """Return the number of online runners at GitHub."""
    return sum(runner["status"] == "online" for runner in stage.system.lab("GET", "/runners")["runners"])


def left(stage: Stage) -> list[str]:
    """Return the remains of runners at GitHub, in the cluster, and in the rows."""
    path = object_path(KIND, namespace=stage.system.namespace, group=APPS)
    sets = [f"StatefulSet {each['metadata']['name']}" for each in stage.kube.request("GET", path)["items"]]
    pods = [f"Pod {pod.name}" for pod in list_pods(stage.kube, namespace=stage.system.namespace)]
    return [*sets, *pods, *stage.left()]


def lose_a_runner(stage: Stage) -> None:
    """Delete the Pod of an idle runner, and wait until another runner is online in its place."""
    pod, *_ = list_pods(stage.kube, namespace=stage.system.namespace)
    assert stage.delete_pod(pod.name, pod.uid)

    def is_replaced() -> bool:
        pods = {each.uid for each in list_pods(stage.kube, namespace=stage.system.namespace)}
        runners = len(stage.system.lab("GET", "/runners")["runners"])
        return pod.uid not in pods and len(pods) == runners == online(stage) == RUNNERS

    stage.until(is_replaced, what="another runner")


def registrations(stage: Stage) -> Counter[str]:
    """Return the number of delivered registrations of each Pod, by UID."""
    claims = stage.history().claims
    return Counter(each.pod_uid for each in claims if each.purpose == Purpose.REGISTER and each.delivered_at)


def test_every_step_of_a_registration_has_a_kill_point() -> None:
    of_claims = [each for each in TRANSITIONS.values() if each.machine is not Machine.JOB]
    steps = {each.name for each in of_claims if Purpose.REGISTER in each.purposes}
    assert {*COMING, SPENT, *LEAVING, *ELSEWHERE} == steps


@pytest.mark.parametrize("point", [pytest.param(point, marks=marks_of(point)) for point in POINTS])
def test_runners_come_and_leave_despite_a_kill(stage: Stage, point: str) -> None:
    before = registrations(stage)
    stage.kills.clear()
    stage.disarm()
    # A release that was begun ends the claim of a Pod that is over, unless the release is lost.
    points = ["lease_release.after_commit", point] if point.startswith(SPENT) else [point]
    stage.arm(points)
    stage.scale(RUNNERS)
    stage.until(lambda: online(stage) == RUNNERS, what="online runners")
    if point.startswith(SPENT):
        lose_a_runner(stage)
    (job,) = stage.send(1, seconds=JOB, account=ACME)
    stage.until(lambda: job in stage.started([job]), what="a busy runner")
    stage.scale(0)
    stage.until(lambda: not left(stage), what="the end of all runners")

    assert [kill.point for kill in stage.kills] == points
    assert stage.wrong_ends() == {}
    assert stage.verdict().problems == ()
    assert broken(stage.history()) == []
    delivered = registrations(stage) - before
    assert set(delivered.values()) == {1}, "a Pod gets one registration"
    github = read_log(stage.system.github_log)
    names = Counter(event["runner"] for event in github if event["event"] == "runner_registered")
    assert set(names.values()) == {1}
    assert len(names) == len(registrations(stage)), "each Pod registered its runner"
