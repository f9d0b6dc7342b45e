"""The previous release and this one side by side: an upgrade, and a rollback by one release, while jobs run.

The order is that of a deploy: first the schema and the definition of RunnerPool, which only grow within a release, then
worker, web, watch and beat, one after the other, while both versions run. The rollback keeps schema and definition. The
result is judged by the lab's own logs: every job runs exactly once, and no busy Pod is touched. A second test rolls
back to a release that does not know StatefulSets, and upgrades again.
"""

from __future__ import annotations

import io
import secrets
import signal
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.runners.pods import list_pods
from lab.bootstrap import POOLS, SETS_POOL
from lab.control_plane import ClusterAccess
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.traffic import follow, send
from lab.verdict import judge
from models.pools.pool_mirror import TEMPLATE_HOLDS
from rules.claims.pod_view import PodView
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PREVIOUS = "579e4553e3360585ae6d0075af12b448a4e57543"
"""Commit of the previous release."""

ROOT = Path(__file__).parents[2]
SETTINGS = timings(sweep_every=5, unresolved_after=6, spent_after=3)
Start = Callable[[Options], System]
LONG = 120.0
"""Duration in seconds of the jobs that run during the whole upgrade."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the previous release."""
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
def start(control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a system with these options, and wait for its warm Pods."""
    with ExitStack() as stack:

        def started(options: Options) -> System:
            namespace = f"upgrade-{secrets.token_hex(4)}"
            admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
            stack.callback(admin.request, "DELETE", f"/api/v1/namespaces/{namespace}")
            folder = tmp_path_factory.mktemp("system")
            system = System(folder, options, say=print, namespace=namespace, control_plane=control_plane)
            stack.enter_context(system)
            system.wait_for_warm_pods(sum(pool.replicas for pool in options.pools), timeout=240)
            return system

        yield started


def jobs_flow(system: System, count: int = 30) -> None:
    """Send jobs, and wait until each of them ran once.

    Each release has its own Pod template, and a pool keeps the template of a change for `TEMPLATE_HOLDS`. After two
    changes within that time, no process creates Pods until this time is over.
    """
    ids = send(system.github_url, jobs=count, seed=secrets.randbelow(1000))
    stalled = TEMPLATE_HOLDS.total_seconds() + 60
    assert follow(system.github_url, ids, say=print, stalled=stalled), "not every job ran exactly once"


def move(system: System, tree: Path | None, *names: str) -> None:
    """Stop processes and start them again from another tree, as a rollout does."""
    for name in names:
        child = system.children[name]
        assert child.stop() in {0, -signal.SIGTERM}, child.tail()
        child.cwd = tree
        child.start()
        if name.startswith("web"):
            number = int(name.removeprefix("web-"))
            child.wait_until(lambda number=number: system.is_ready(number), timeout=60)  # type: ignore[misc]


def test_jobs_run_once_while_versions_change_and_change_back(start: Start, previous: Path) -> None:
    system = start(Options(real_pods=2, webs=2, workers=2, settings=SETTINGS, tree=previous))
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


def test_a_rollback_to_a_release_without_stateful_sets_and_back(start: Start, previous: Path) -> None:
    system = start(Options(pools=(SETS_POOL,), real_pods=2, workers=2, settings=SETTINGS))
    kube = system.kube()

    def pods() -> list[PodView]:
        return list_pods(kube, namespace=system.namespace)

    def held() -> set[str]:
        """Return the finished Pods of the first version that only their finalizer keeps."""
        return {pod.uid for pod in pods() if pod.awaits_release} & first

    first = {pod.uid for pod in pods()}
    job = {"repository": "acme/shop", "labels": list(SETS_POOL.labels), "count": len(first), "duration_seconds": 60}
    ids = system.lab("POST", "/jobs", job)["ids"]
    eventually(lambda: Counter(system.lab("GET", "/stats")["jobs"])["in_progress"] == len(ids), within=60)

    names = [name for name in system.children if name.split("-")[0] in {"worker", "web", "watch", "beat"}]
    move(system, previous, *names)  # the earlier release does not know the finalizer
    assert not [pod for pod in pods() if pod.uid in first and pod.terminating]
    assert follow(system.github_url, ids, say=print, stalled=120), "a job that the rollback killed"
    eventually(lambda: held() == first, within=60, what="Pods that only their finalizer keeps")
    assert {pod.uid for pod in pods()} == first, "the earlier release created a runner"

    move(system, None, *names)
    eventually(lambda: not held(), within=60, what="no Pod that stays Terminating")
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
    assert verdict.problems == ()
