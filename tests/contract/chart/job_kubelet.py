"""A kubelet for the chart's hooks: it runs the containers of a Job as processes with the Pod's identity."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient
from lab.control_plane import ClusterAccess, write_kubeconfig

EVERY = 0.1


@dataclass
class JobKubelet:
    """A context manager that runs the Jobs of one namespace."""

    kube: KubeClient
    access: ClusterAccess
    namespace: str
    folder: Path
    ran: list[str] = field(default_factory=list)
    """The containers that ran, in order, each with its result."""
    problem: BaseException | None = None

    def __enter__(self) -> Self:
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="job-kubelet", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(60)
        if self.problem is not None:
            raise self.problem

    def _work(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        done: set[str] = set()
        try:
            while not self._ends.wait(EVERY):
                for pod in self.kube.request("GET", path, query={"labelSelector": "job-name"})["items"]:
                    over = pod["status"]["phase"] != "Pending" or "deletionTimestamp" in pod["metadata"]
                    if pod["metadata"]["uid"] not in done and not over:  # of an earlier Job, not collected yet
                        done.add(pod["metadata"]["uid"])
                        self._run(pod)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.problem = error

    def _run(self, pod: dict[str, Any]) -> None:
        """Run the containers in order, as the kubelet runs init containers, and report the result."""
        spec = pod["spec"]
        statuses: dict[str, list[Any]] = {"initContainerStatuses": [], "containerStatuses": []}
        phase = "Succeeded"
        for kind, containers in (("init", spec.get("initContainers") or []), ("", spec["containers"])):
            for container in containers if phase == "Succeeded" else ():
                code = self._run_one(spec, container)
                self.ran.append(f"{container['name']}: {code}")
                phase = "Succeeded" if code == 0 else "Failed"
                terminated = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
                status = {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": terminated},
                }
                statuses["initContainerStatuses" if kind else "containerStatuses"].append(status)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        self.kube.request("PATCH", path, body={"status": {"phase": phase, **statuses}}, content_type=MERGE_PATCH)

    def _run_one(self, spec: dict[str, Any], container: dict[str, Any]) -> int:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OSTLER_")}
        for variable in container.get("env", ()):
            environment[variable["name"]] = variable.get("value") or self._secret(variable["valueFrom"]["secretKeyRef"])
        mounted = any(mount["name"] == "token" for mount in container["volumeMounts"])
        if mounted or spec["automountServiceAccountToken"]:
            environment["OSTLER_KUBECONFIG"] = str(self._token_of(spec["serviceAccountName"]))
        done = subprocess.run(
            [sys.executable, "-m", "ostler", *container["args"]],
            env=environment,
            capture_output=True,
            check=False,
            timeout=120,
        )
        (self.folder / f"{container['name']}.log").write_bytes(done.stdout + done.stderr)
        return done.returncode

    def _secret(self, ref: dict[str, str]) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/secrets/{ref['name']}"
        return base64.b64decode(self.kube.request("GET", path)["data"][ref["key"]]).decode()

    def _token_of(self, account: str) -> Path:
        """Return a folder that replaces the token files, which exist only inside a Pod."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        token = self.kube.request("POST", path, body={"spec": {}})["status"]["token"]
        kubeconfig = self.folder / "kubeconfig"
        write_kubeconfig(kubeconfig, url=self.access.url, ca_file=self.access.ca_file, token=token)
        return kubeconfig
