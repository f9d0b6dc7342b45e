"""Real node: jobs run in real containers, two nodes run side by side, and a killed run leaves nothing on the machine.

The sandbox needs root. The first run builds everything that is not cached, which takes about ten minutes.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node import cgroups
from lab.node.cluster import prepare
from lab.system import read_log
from tests.e2e.test_demo_ends import demo, left_behind, read_until
from tests.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(os.geteuid() != 0, reason="a real node needs root"),
]


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    prepare()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ostler-node-") as name:
        yield Path(name)


def machine() -> dict[str, set[str]]:
    """Return what a node might leave: network interfaces, mounts, and control groups of finished runs."""
    made = [each for root in cgroups.hierarchies() for each in root.glob(f"{cgroups.PREFIX}*")]
    groups = {str(each) for each in made if not cgroups.is_used(each)}
    mounts = set(Path("/proc/self/mounts").read_text().splitlines())
    return {"interfaces": set(os.listdir("/sys/class/net")), "mounts": mounts, "groups": groups}  # noqa: PTH208


def test_each_job_runs_in_a_real_container_exactly_once(folder: Path) -> None:
    before = machine()

    with demo(folder, "node", "--jobs", "10", "--logs", str(folder / "logs")) as process:
        output, _ = process.communicate(timeout=900)

    assert process.returncode == 0, output
    assert "every job completed exactly once" in output
    events = read_log(folder / "logs" / "kubelet.jsonl")
    assert {each["simulated"] for each in events if each["event"] == "jit_received"} == {False}
    started = [each["job"] for each in events if each["event"] == "job_started"]
    assert len(started) == len(set(started)) == 10
    assert left_behind(folder) == []
    assert machine() == before


def test_two_nodes_run_side_by_side_and_leave_nothing_when_they_are_killed(folder: Path) -> None:
    before = machine()
    for name in ("a", "b"):
        (folder / name).mkdir()

    with demo(folder / "a", "node") as first, demo(folder / "b", "node") as second:
        for process in (first, second):
            read_until(process, "Pods are warm")
        assert machine()["interfaces"] == before["interfaces"]
        for process in (first, second):
            process.send_signal(signal.SIGKILL)
        for process in (first, second):
            process.wait()
    eventually(lambda: left_behind(folder) == [])
    cgroups.remove_killed()
    assert machine() == before
