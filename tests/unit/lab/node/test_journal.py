from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import liveness
from lab.node import journal
from lab.node.journal import NodeJournal, exit_codes
from lab.node.phases import LastPhases
from lab.system import Options, System, read_log
from lab.verdict import judge
from ostler.errors import Retryable

NAMESPACE = "runners"
UID = "0d9bcb0e-70b3-4e4a-8c1c-c0a0a0d1f9c1"


class Api:
    """An API server with a list of Pods."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.answers = True

    def request(self, _method: str, _path: str) -> dict[str, Any]:
        if not self.answers:
            raise Retryable("no answer")
        return {"items": self.pods}


class Phases:
    """The watch of Pods, which knows the last phase of some deleted Pods."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def of_deleted(self, uid: str) -> str | None:
        return self.known.get(uid)


class World:
    """A node's folder of logs, its API server and its journal. The journal is read on command."""

    def __init__(self, folder: Path) -> None:
        self.logs = folder / "pod-logs"
        self.path = folder / "journal.jsonl"
        self.api = Api()
        self.containerd_log = folder / "containerd.log"
        self.containerd_log.touch()
        self.journal = NodeJournal(
            self.path,
            pod_logs=[self.logs],
            containerd_logs=[self.containerd_log],
            namespace=NAMESPACE,
            kubeconfig=folder / "unused",
        )
        self.phases = Phases()
        self.journal._phases = self.phases  # type: ignore[assignment]
        self.journal._journal.__enter__()

    def write(self, container: str, text: str, *, end: str = "\n", file: str = "0.log") -> None:
        folder = self.logs / f"{NAMESPACE}_small-1_{UID}" / container
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / file).open("a") as log:
            log.write(f"2026-11-24T10:00:00.000000000Z stdout F {text}{end}")

    def run_pod(self, *, phase: str = "Running", codes: dict[str, int] | None = None) -> None:
        containers: list[dict[str, Any]] = [
            {
                "name": name,
                "containerID": f"containerd://id-of-{name}",
                "state": {"terminated": {"exitCode": codes[name]}} if codes else {"running": {}},
            }
            for name in codes or ("poller", "runner")
        ]
        self.api.pods = [{"metadata": {"uid": UID}, "status": {"phase": phase, "containerStatuses": containers}}]

    def restart_containerd(self, *before: str) -> None:
        """Write the log of a containerd that was killed and restarted during the life of the runner."""
        connected = 'msg="connecting to shim id-of-runner"'
        start = 'msg="starting containerd"'
        self.containerd_log.write_text("\n".join([start, connected, *before, start, connected]))

    def delete_pod(self, *, last_phase: str | None = "Running") -> None:
        if last_phase is not None:
            self.phases.known[UID] = last_phase
        folder = self.logs / f"{NAMESPACE}_small-1_{UID}"
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        self.api.pods = []

    def close(self) -> None:
        self.journal._journal.__exit__()
        for pod in self.journal._pods.values():
            pod.close()

    def read(self) -> list[tuple[str, Any]]:
        self.journal._read_once(self.api)
        return [(event["event"], event.get("job", event.get("runner_name"))) for event in read_log(self.path)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


def test_whole_life_of_a_pod_is_written_once(world: World) -> None:
    world.run_pod()
    world.write("poller", "poller: work: claim 7 runner ostler-7-abc")
    world.write("runner", "runner: starting")
    world.write("runner", '{"event": "runner_started", "runner_name": "ostler-7-abc"}')
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.read()
    world.write("runner", '{"event": "job_finished", "job": 11, "conclusion": "success"}')
    world.run_pod(phase="Succeeded", codes={"poller": 0, "runner": 0})
    world.read()
    world.delete_pod()

    assert world.read() == [
        ("jit_received", "ostler-7-abc"),
        ("runner_started", "ostler-7-abc"),
        ("job_started", 11),
        ("job_finished", 11),
        ("pod_ended", None),
        ("pod_deleted", None),
    ]


def test_lines_of_a_deleted_pod_are_still_read_if_its_log_was_open(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.read()
    world.write("runner", '{"event": "job_finished", "job": 11, "conclusion": "success"}')
    world.delete_pod()

    assert world.read() == [("job_started", 11), ("job_finished", 11), ("pod_deleted", None)]


def test_half_a_line_waits_for_its_other_half(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}', end="")

    assert world.read() == []

    with (world.logs / f"{NAMESPACE}_small-1_{UID}" / "runner" / "0.log").open("a") as log:
        log.write("\n")
    assert world.read() == [("job_started", 11)]


def test_pod_that_is_deleted_during_its_job_fails_the_verdict(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.read()
    world.delete_pod()
    world.read()

    log = read_log(world.path)
    assert (log[-1]["event"], log[-1]["phase"]) == ("pod_deleted", "Running")
    problems = judge([{"event": "job_queued", "job": 11}], log).problems
    assert any("was deleted while it executed job 11" in problem for problem in problems)


def test_pod_whose_containers_end_during_its_job_fails_the_verdict(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.read()
    world.run_pod(phase="Failed", codes={"runner": 137})
    world.read()

    problems = judge([{"event": "job_queued", "job": 11}], read_log(world.path)).problems
    assert any("was killed while it executed job 11" in problem for problem in problems)


def test_runner_that_ended_while_containerd_was_not_running_is_not_called_killed(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.read()
    world.restart_containerd()
    world.run_pod(phase="Failed", codes={"runner": 255})

    assert world.read() == [("job_started", 11), ("end_not_seen", 11), ("pod_ended", None)]


def test_unseen_end_of_a_pod_that_is_gone_before_the_next_list_is_written(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.read()
    world.restart_containerd()
    world.delete_pod(last_phase="Failed")

    assert world.read() == [("job_started", 11), ("end_not_seen", 11), ("pod_deleted", 11)]


def test_runner_that_was_to_be_stopped_is_killed_although_its_end_is_unknown(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.read()
    world.restart_containerd(r'msg="StopContainer for \"id-of-runner\" with timeout 30 (s)"')
    world.run_pod(phase="Failed", codes={"runner": 255})
    world.read()

    log = read_log(world.path)
    assert [event["event"] for event in log] == ["job_started", "killed", "pod_ended"]
    problems = judge([{"event": "job_queued", "job": 11}], log).problems
    assert any("was killed while it executed job 11" in problem for problem in problems)


def test_log_of_a_container_whose_first_creation_failed_is_read(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}', file="1.log")

    assert world.read() == [("job_started", 11)]


def test_api_server_that_does_not_answer_loses_no_event(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.api.answers = False

    assert world.read() == [("job_started", 11)]
    world.api.answers = True
    assert world.read() == [("job_started", 11)]


def test_exit_codes_of_containers_that_still_run_are_left_out() -> None:
    statuses = [
        {"name": "poller", "state": {"terminated": {"exitCode": 10}}},
        {"name": "runner", "state": {"running": {}}},
    ]

    assert exit_codes(statuses) == {"poller": 10}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_journal_that_ends_with_an_error_ends_the_run(tmp_path: Path) -> None:
    system = System(tmp_path / "run", Options(), say=lambda _line: None)
    system._journal = NodeJournal(
        tmp_path / "journal.jsonl",
        pod_logs=[tmp_path],
        containerd_logs=[],
        namespace=NAMESPACE,
        kubeconfig=tmp_path / "missing",
    )
    assert liveness.lost(system) is None

    system._journal.start()
    system._journal.stop()

    assert liveness.lost(system) == "the cluster"


def test_pod_that_ended_and_disappeared_between_two_lists_was_not_running(world: World) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.write("runner", '{"event": "job_finished", "job": 11}')
    world.read()

    world.delete_pod(last_phase="Succeeded")

    assert world.read()[-1] == ("pod_deleted", None)
    assert read_log(world.path)[-1]["phase"] == "Succeeded"


def test_deletion_that_the_watch_does_not_know_is_written_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run_pod()
    world.write("runner", '{"event": "job_started", "job": 11}')
    world.read()
    world.delete_pod(last_phase=None)
    assert world.read() == [("job_started", 11)]

    monkeypatch.setattr(journal, "WATCHED_WITHIN", 0.0)

    assert world.read() == [("job_started", 11), ("pod_deleted", 11)]
    assert read_log(world.path)[-1]["phase"] == "Running"


def test_watch_keeps_the_phase_before_the_deletion(tmp_path: Path) -> None:
    phases = LastPhases(namespace=NAMESPACE, kubeconfig=tmp_path / "unused")
    phases.record("ADDED", {"metadata": {"uid": UID}, "status": {"phase": "Running"}})
    assert phases.of_deleted(UID) is None
    going = {"uid": UID, "deletionTimestamp": "2026-11-24T10:00:00Z"}
    phases.record("MODIFIED", {"metadata": going, "status": {"phase": "Failed"}})
    phases.record("DELETED", {"metadata": going, "status": {"phase": "Failed"}})

    assert phases.of_deleted(UID) == "Running"


def test_logs_that_the_kubelet_deletes_during_a_reading_end_no_journal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("poller", "a line")
    world.run_pod()
    scandir = os.scandir

    def late(path: Any) -> Any:
        if Path(path).name == "poller":
            monkeypatch.setattr(os, "scandir", scandir)
            world.delete_pod(last_phase="Succeeded")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)

    assert world.read() == [("pod_deleted", None)]
