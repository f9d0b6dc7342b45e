"""Container jobs without a node: the sidecar, the containers and their steps are processes of this machine.

The API server, its admission and the rights of each process are real, and an exec goes through the API server to the
lab's kubelet. These runs do not show images, the network of a Pod, users or resource limits: `tests/node` does.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lab.bootstrap import put_pools_in_place
from lab.control_plane import ControlPlane, ControlPlaneUnavailable
from lab.faults import FaultProxy
from lab.system import Options, System
from tests import container_jobs
from tests.container_jobs import POOL, SHARED_POOL, ContainerFleet

pytestmark = [pytest.mark.timeout(600), pytest.mark.cluster]

IMAGE = "registry.example/job:1"
ENTRY = "registry.example/entry:1"
"""Image whose own program is `entry.sh` of the workspace."""
UP = "/tmp/up"  # noqa: S108 - a path in a container
SERVICE: Mapping[str, Any] = {
    "image": "registry.example/database:1",
    # The health command fails once, as while a database starts.
    "options": f"--cpus 0.1 --health-cmd 'test -f {UP} || {{ touch {UP}; exit 1; }}' --health-interval 1s",
}
ACTION = 'tr a-z A-Z < "$1" > "$2"; echo "shouted=$2" >> "$GITHUB_OUTPUT"'
JOB: Mapping[str, Any] = {
    "container": {"image": IMAGE, "env": {"GREETING": "hello"}},
    "services": {"database": SERVICE, "cache": {**SERVICE, "image": "registry.example/cache:1"}},
    "steps": [
        {"run": 'test "$GREETING" = hello; test -f checked-out.txt; echo made > made.txt'},
        {"run": "echo COLOR=blue >> $GITHUB_ENV"},
        {"run": f"cat > entry.sh <<'END'\n{ACTION}\nEND\n"},
        {"image": IMAGE, "entrypoint": "sh", "args": ["-e", "entry.sh", "made.txt", "shouted.txt"]},
        {"run": 'test "$COLOR" = blue; test "$(cat shouted.txt)" = MADE'},
    ],
}

SEED = 9
"""Seed of the faults. An exec makes at most four attempts, and then its job fails.

With seed 1, the requests 174 to 179 of the last test all met a fault.
"""


class LabFleet(ContainerFleet):
    """A system whose sidecars are processes of this machine."""

    def kill_sidecar(self, pod: str) -> None:
        [folder] = (self.system.folder / "pods").glob(f"{pod}-????????")
        os.kill(int((folder / "hooks" / "pid").read_text()), signal.SIGKILL)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerFleet]:
    folder = tmp_path_factory.mktemp("j")
    with contextlib.ExitStack() as stack:
        try:
            plane = stack.enter_context(ControlPlane.start(folder / "control-plane"))
        except ControlPlaneUnavailable as missing:
            pytest.fail(str(missing), pytrace=False)
        proxy = stack.enter_context(FaultProxy(plane.access.url, ca_file=plane.access.ca_file, seed=SEED))
        options = Options(
            pools=(),
            beats=1,
            chart_values={
                "runners": {"containers": {"enabled": True}},
                "networkPolicies": {"apiServer": {"addresses": ["127.0.0.1/32"]}},
            },
            settings={"OSTLER_HOOKS_IMAGE": "ostler:1"},
            hooks_url=proxy.url,
            real_pods=100,
        )
        system = stack.enter_context(System(folder / "s", options, say=print, control_plane=plane))
        fleet = LabFleet(system, proxy, whole_job=JOB, within=240)
        stack.enter_context(contextlib.closing(fleet.kube))
        put_pools_in_place(fleet.kube, namespace=system.namespace, pools=[POOL, SHARED_POOL])
        system.wait_for_warm_pods(POOL.replicas + SHARED_POOL.replicas, timeout=120)
        yield fleet


def test_job_with_services_and_an_action_succeeds_and_leaves_nothing(fleet: ContainerFleet) -> None:
    container_jobs.whole_job_succeeds_and_leaves_nothing(fleet)


def test_action_with_the_entry_point_of_its_image_succeeds(fleet: ContainerFleet) -> None:
    container_jobs.action_with_the_entry_point_of_its_image_returns_files_and_outputs(fleet, image=ENTRY)


def test_background_steps_run_at_once_and_one_is_cancelled(fleet: ContainerFleet) -> None:
    container_jobs.background_steps_run_at_once_and_one_is_cancelled(fleet)


def test_job_in_a_shared_workspace_sees_the_files_of_its_runner(fleet: ContainerFleet) -> None:
    container_jobs.files_of_a_job_are_files_of_the_runner(fleet)


def test_failed_step_ends_the_job_and_leaves_nothing(fleet: ContainerFleet) -> None:
    container_jobs.failed_step_ends_the_job_and_leaves_nothing(fleet)


def test_job_goes_on_while_the_api_server_is_away(fleet: ContainerFleet) -> None:
    container_jobs.job_goes_on_while_the_api_server_is_away(fleet, seconds=3)


def test_killed_sidecar_fails_the_job_with_a_line_and_leaves_nothing(fleet: ContainerFleet) -> None:
    container_jobs.killed_sidecar_fails_the_job_with_a_line_and_leaves_nothing(fleet)


def test_deleted_runner_pod_takes_its_hook_pods_with_it(fleet: ContainerFleet) -> None:
    container_jobs.deleted_runner_pod_takes_its_hook_pods_with_it(fleet)


def test_jobs_succeed_while_the_api_server_fails_often(fleet: ContainerFleet) -> None:
    container_jobs.jobs_succeed_while_the_api_server_fails_often(fleet, count=4)
