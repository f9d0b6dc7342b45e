"""Journal of a real node: read the containers' logs and the Pods' ends, and write the events for the verdict.

The events are those of the lab's kubelet (`lab.kubelet.events`), so one verdict judges both kinds of node. Everything
comes from outside Ostler: containerd writes the logs, and the API server lists the Pods.

If the runner ends while containerd is not running, the last lines of the runner are lost. The event `end_not_seen`
records this loss, but only if containerd's own log proves the loss (`lab.node.containerd_log`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from k8s_adapters.calls.client import make_client
from lab.kubelet.journal import Journal
from lab.kubelet.processes import WORK
from lab.node.containerd_log import ended_unseen
from lab.node.phases import LastPhases
from ostler.errors import UpstreamError

WATCHED_WITHIN = 30.0
"""Seconds to wait until the watch has delivered the end of a Pod. After that, the last listed phase is used."""

EVERY = 0.2
"""Seconds between two readings. The kubelet deletes the logs of a deleted Pod; an open file stays readable."""

_EVENTS_OF_RUNNER = frozenset(
    {"runner_started", "job_started", "script_ended", "hook_ended", "hook_failed", "job_finished"}
)


@dataclass(slots=True)
class _Pod:
    name: str
    uid: str
    files: dict[tuple[str, str], IO[bytes]] = field(default_factory=dict)
    """Open log files by the name of the container and the name of the file."""
    rest: dict[tuple[str, str], bytes] = field(default_factory=dict)
    job: int | None = None
    runner: str | None = None
    """Id of the container `runner` in containerd."""
    phase: str = "Pending"
    """Phase before the Pod was deleted."""
    ended: bool = False
    missing_since: float | None = None

    def close(self) -> None:
        """Close the log files."""
        for file in self.files.values():
            file.close()


class NodeJournal:
    """A thread that follows the runner Pods of one namespace until `stop`.

    `pod_logs` are the folders of the containers' logs, and `containerd_logs` the logs of containerd, one for each node.
    """

    def __init__(
        self, path: Path, *, pod_logs: Sequence[Path], containerd_logs: Sequence[Path], namespace: str, kubeconfig: Path
    ) -> None:
        self._journal = Journal(path)
        self._pod_logs = pod_logs
        self._containerd_logs = containerd_logs
        self._namespace = namespace
        self._kubeconfig = kubeconfig
        self._pods: dict[str, _Pod] = {}
        self._phases = LastPhases(namespace=namespace, kubeconfig=kubeconfig)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-journal", daemon=True)
        self.failure: BaseException | None = None
        """The error that ended the thread before it was stopped. Without the journal a run has no verdict."""

    def start(self) -> None:
        """Start the thread."""
        self._phases.start()
        self._thread.start()

    def stop(self) -> None:
        """Read what is left, write it, and end the thread."""
        self._stopping.set()
        self._thread.join(30)
        self._phases.stop()

    def _run(self) -> None:
        try:
            with closing(make_client(kubeconfig=str(self._kubeconfig))) as kube, self._journal:
                while not self._stopping.wait(EVERY):
                    self._read_once(kube)
                self._read_once(kube)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            for pod in self._pods.values():
                pod.close()

    def _read_once(self, kube: Any) -> None:
        """List the Pods, then read the logs. A Pod that is not in the list writes no further lines."""
        for folder in self._folders():
            _, name, uid = folder.name.split("_")
            pod = self._pods.setdefault(uid, _Pod(name, uid))
            for container in ("poller", "runner"):
                with suppress(FileNotFoundError):  # the kubelet is deleting the logs of a deleted Pod
                    self._open_new_logs(pod, folder, container)
        try:
            listed = kube.request("GET", f"/api/v1/namespaces/{self._namespace}/pods")["items"]
        except UpstreamError:  # the next reading lists again
            listed = None
        for pod in self._pods.values():
            self._read_logs(pod)
        if listed is not None:
            self._read_ends(listed)

    def _open_new_logs(self, pod: _Pod, folder: Path, container: str) -> None:
        # The kubelet tries again with 1.log if containerd ends while it creates a container.
        for found in sorted((folder / container).glob("*.log")):
            if (container, found.name) not in pod.files:
                pod.files[container, found.name] = found.open("rb")

    def _folders(self) -> list[Path]:
        return [folder for logs in self._pod_logs for folder in logs.glob(f"{self._namespace}_*")]

    def _read_ends(self, listed: Sequence[Mapping[str, Any]]) -> None:
        present = {each["metadata"]["uid"]: each for each in listed}
        for uid, pod in list(self._pods.items()):
            if uid in present:
                if "deletionTimestamp" not in present[uid]["metadata"]:
                    pod.phase = present[uid].get("status", {}).get("phase", pod.phase)
                self._read_end(pod, present[uid].get("status", {}))
            elif not any((logs / f"{self._namespace}_{pod.name}_{uid}").exists() for logs in self._pod_logs):
                self._read_deletion(pod)

    def _read_deletion(self, pod: _Pod) -> None:
        """Write the deletion of a Pod when the watch knows its last phase, or when the watch is too late."""
        phase = self._phases.of_deleted(pod.uid)
        if phase is None and not self._stopping.is_set():
            pod.missing_since = pod.missing_since or time.monotonic()
            if time.monotonic() - pod.missing_since < WATCHED_WITHIN:
                return
        if pod.job is not None and not pod.ended and self._ended_unseen(pod):
            self._write(pod, "end_not_seen", job=pod.job)
        self._write(pod, "pod_deleted", phase=phase or pod.phase, job=pod.job)
        pod.close()
        del self._pods[pod.uid]

    def _read_logs(self, pod: _Pod) -> None:
        for name, file in pod.files.items():
            content = pod.rest.get(name, b"") + file.read()
            *lines, pod.rest[name] = content.split(b"\n")
            for line in lines:
                # The CRI's format: time, stream, F (full) or P (partial), text.
                _, _, text = line.decode(errors="replace").partition(" F ")
                self._handle_line(pod, name[0], text)

    def _handle_line(self, pod: _Pod, container: str, text: str) -> None:
        if container == "poller":
            if found := WORK.fullmatch(text):
                self._write(pod, "jit_received", claim=found[1], runner_name=found[2], simulated=False)
            return
        if not text.startswith("{"):
            return
        event: Mapping[str, Any] = json.loads(text)
        if event["event"] not in _EVENTS_OF_RUNNER:
            return
        if event["event"] == "job_started":
            pod.job = event["job"]
        elif event["event"] == "job_finished":
            pod.job = None
        self._write(pod, event["event"], **{key: value for key, value in event.items() if key != "event"})

    def _read_end(self, pod: _Pod, status: Mapping[str, Any]) -> None:
        containers = status.get("containerStatuses", ())
        pod.runner = container_id(containers, "runner") or pod.runner
        if pod.ended or status.get("phase") not in {"Succeeded", "Failed"}:
            return
        pod.ended = True
        codes = exit_codes(containers)
        if pod.job is not None:
            self._write(pod, "end_not_seen" if self._ended_unseen(pod) else "killed", job=pod.job, codes=codes)
        self._write(pod, "pod_ended", phase=status["phase"], codes=codes)

    def _ended_unseen(self, pod: _Pod) -> bool:
        """Return whether the log of a containerd proves that the runner ended while this containerd was not running."""
        if pod.runner is None:
            return False
        for path in self._containerd_logs:
            with path.open(errors="replace") as log:
                if ended_unseen(log, pod.runner):
                    return True
        return False

    def _write(self, pod: _Pod, event: str, **facts: Any) -> None:
        self._journal.write(event, pod=pod.name, uid=pod.uid, **facts)


def exit_codes(statuses: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the exit code of each container that has ended, by its name."""
    return {
        each["name"]: each["state"]["terminated"]["exitCode"]
        for each in statuses
        if "terminated" in each.get("state", {})
    }


def container_id(statuses: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """Return the id of a container in its runtime, or None if the container has not been created."""
    ids = [each["containerID"] for each in statuses if each["name"] == name and each.get("containerID")]
    return ids[0].rpartition("/")[2] if ids else None
