"""Containers whose containerd is killed: what CRI reports of their ends, and what containerd's log proves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.kubelet.worker import LOST, UNKNOWN
from lab.node.containerd_log import ended_unseen
from lab.node.journal import container_id
from tests.fleet import Fleet
from tests.node.plain_pods import PlainPods, ends, shell
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

NODE = 1
"""Index of the node whose containerd is killed."""

LATE = 8.0
"""Seconds until a shim answers: more than the 5 seconds that containerd waits by default."""


@pytest.fixture(scope="module")
def pods(fleet: Fleet) -> Iterator[PlainPods]:
    yield PlainPods(fleet.kube, fleet.system.real_nodes[NODE].name)
    fleet.wait_until_whole()


class EndsOnDemand:
    """A Pod whose container ends when the test says so, also while containerd is not running."""

    def __init__(self, fleet: Fleet, pods: PlainPods, folder: Path, *, name: str) -> None:
        self.node = fleet.system.real_nodes[NODE]
        self._folder = folder
        folder.chmod(0o777)
        script = f": {folder}; trap 'touch /facts/asked' TERM; while [ ! -e /facts/end ]; do sleep 0.1; done"
        pods.create(
            name,
            shell(script, volumeMounts=[{"name": "facts", "mountPath": "/facts"}]),
            volumes=[{"name": "facts", "hostPath": {"path": str(folder)}}],
        )
        self.container = container_id(pods.wait_until_running(name)["containerStatuses"], "main")

    def was_asked(self) -> bool:
        """Return whether the container has received SIGTERM."""
        return (self._folder / "asked").exists()

    def end(self) -> None:
        """End the process of the container, and wait until it has ended."""
        (self._folder / "end").touch()
        eventually(lambda: self._process() is None, "the process of the container goes on")

    def ended_unseen(self, *, without: str | None = None) -> bool:
        """Return what the log of containerd proves, or would prove without the lines that have this text."""
        assert self.container is not None
        lines = self.node.containerd.log.read_text().splitlines()
        return ended_unseen([line for line in lines if without is None or without not in line], self.container)

    def shim(self) -> int:
        """Return the process id of the shim, which is the parent of the process of the container."""
        process = self._process()
        assert process is not None
        lines = (process / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))

    def _process(self) -> Path | None:
        """Return the folder in /proc of the process of the container, if that runs."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process ended in between
                if f": {self._folder};".encode() in (process / "cmdline").read_bytes():
                    return process
        return None


def test_container_that_ended_while_containerd_was_not_running_has_an_unknown_end(
    fleet: Fleet, pods: PlainPods, tmp_path: Path
) -> None:
    pod = EndsOnDemand(fleet, pods, tmp_path, name="unseen")

    pod.node.kill_containerd()
    pod.end()
    pod.node.start_containerd()

    status = pods.wait_until_over("unseen")
    assert (status["phase"], ends(status)) == ("Failed", [(LOST, UNKNOWN)])
    assert pod.ended_unseen()


def test_container_that_was_to_be_stopped_before_containerd_ended_is_no_unseen_end(
    fleet: Fleet, pods: PlainPods, tmp_path: Path
) -> None:
    pod = EndsOnDemand(fleet, pods, tmp_path, name="asked")
    pods.delete("asked")
    eventually(pod.was_asked, "the container gets no SIGTERM")

    pod.node.kill_containerd()
    pod.end()
    pod.node.start_containerd()

    pods.wait_for_end("asked")
    assert not pod.ended_unseen()
    assert pod.ended_unseen(without="StopContainer for")


def test_running_container_outlives_a_restart_during_which_its_shim_answers_late(
    fleet: Fleet, pods: PlainPods, tmp_path: Path
) -> None:
    pod = EndsOnDemand(fleet, pods, tmp_path, name="late")
    shim = pod.shim()

    pod.node.kill_containerd()
    os.kill(shim, signal.SIGSTOP)
    thaw = threading.Timer(LATE, os.kill, (shim, signal.SIGCONT))
    thaw.start()
    pod.node.start_containerd()
    thaw.join()

    pods.wait_until_running("late")
    pod.end()
    status = pods.wait_until_over("late")
    assert ends(status) == [(0, "Completed")]
