"""The release before this one and this one side by side: an upgrade, and a rollback by one release, under jobs.

In the order of a deploy: the schema and the definition of RunnerPool first (they only ever grow within a release), then
worker, web, watch and beat, one after the other, while both versions serve. The rollback leaves schema and definition.
Judged by the lab's own logs: every job exactly once, no busy Pod touched.
"""

from __future__ import annotations

import io
import secrets
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s_adapters.client import KubeClient
from lab.bootstrap import POOLS
from lab.control_plane import ClusterAccess
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.traffic import follow, send
from lab.verdict import judge
from models.pools.pool_mirror import TEMPLATE_HOLDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PREVIOUS = "579e4553e3360585ae6d0075af12b448a4e57543"
"""The commit of the release before this one."""

ROOT = Path(__file__).parents[2]
SETTINGS = timings(sweep_every=5, unresolved_after=6, spent_after=3)
LONG = 120.0
"""Seconds of the jobs that run over the whole upgrade."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the release before this one."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", PREVIOUS], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    if archive.returncode != 0:
        pytest.fail(f"{PREVIOUS} is not in this clone; fetch the whole history: {archive.stderr.decode()}")
    tree = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(tree, filter="data")
    return tree


@pytest.fixture
def system(
    previous: Path, control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """Everything of the release before, two of each process that serves."""
    namespace = f"upgrade-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    options = Options(real_pods=2, webs=2, workers=2, settings=SETTINGS, tree=previous)
    with System(
        tmp_path_factory.mktemp("system"), options, say=print, namespace=namespace, control_plane=control_plane
    ) as system:
        system.wait_for_warm_pods(sum(pool.replicas for pool in POOLS), timeout=240)
        yield system
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


def jobs_flow(system: System, count: int = 30) -> None:
    """Send jobs, and wait until each of them ran once.

    Each release has a Pod template of its own, and a pool keeps the template of a change for `TEMPLATE_HOLDS`. After
    two changes within that time, no process creates Pods until it has passed.
    """
    ids = send(system.github_url, jobs=count, seed=secrets.randbelow(1000))
    stalled = TEMPLATE_HOLDS.total_seconds() + 60
    assert follow(system.github_url, ids, say=print, stalled=stalled), "not every job ran exactly once"


def move(system: System, tree: Path | None, *names: str) -> None:
    """Have processes end and start again from another tree, as a rollout does."""
    for name in names:
        child = system.children[name]
        assert child.stop() in {0, -signal.SIGTERM}, child.tail()
        child.cwd = tree
        child.start()
        if name.startswith("web"):
            number = int(name.removeprefix("web-"))
            child.wait_until(lambda number=number: system.is_ready(number), timeout=60)  # type: ignore[misc]


def test_jobs_run_once_while_versions_change_and_change_back(system: System, previous: Path) -> None:
    long = {"repository": "acme/shop", "labels": list(POOLS[0].labels), "count": 3, "duration_seconds": LONG}
    long_ids = system.lab("POST", "/jobs", long)["ids"]
    jobs_flow(system)

    for command in ("migrate", "crd"):  # while every process is still of the release before
        done = system.command(command, process="migrate")
        assert done.returncode == 0, done.stdout
    jobs_flow(system)

    move(system, None, "worker-0", "web-0", "watch-0", "beat-0")
    jobs_flow(system)  # side by side

    move(system, None, "worker-1", "web-1", "beat-1")
    jobs_flow(system)

    move(system, previous, "worker-0", "web-0", "watch-0", "beat-0", "worker-1", "web-1", "beat-1")
    jobs_flow(system)  # back, on the schema and the definition of the later one

    assert follow(system.github_url, long_ids, say=print, stalled=LONG + 60), "a job that ran over it all"
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
    assert verdict.problems == ()
