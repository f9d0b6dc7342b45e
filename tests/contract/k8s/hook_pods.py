"""Hook Pods on the lab's kubelet, for the tests of exec and of the kubelet."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s_adapters.calls.client import Json, KubeClient, make_client, object_path
from lab.control_plane import ClusterAccess
from ostler.errors import Gone
from tests.waiting import eventually

FOLDERS = {"work": "/__w", "externals": "/__e", "github": "/github"}


@dataclass(frozen=True, kw_only=True)
class HookPods:
    """A namespace with a kubelet, whose Pods a test creates and reads."""

    access: ClusterAccess
    client: KubeClient
    namespace: str
    node: str
    kubelet: subprocess.Popen[str]
    folder: Path
    """Folder of the kubelet's Pods."""

    def create(self, *containers: Json, init: tuple[Json, ...] = (), grace: int = 1) -> str:
        """Create a hook Pod and return its name."""
        name = f"pool-{secrets.token_hex(4)}-workflow"
        mounts = [{"name": volume, "mountPath": path} for volume, path in FOLDERS.items()]
        spec: Json = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": grace,
            "containers": [{"volumeMounts": mounts, **each} for each in containers],
            "initContainers": [{"volumeMounts": mounts, **each} for each in init],
            "volumes": [{"name": volume, "emptyDir": {}} for volume in FOLDERS],
        }
        metadata = {"name": name, "labels": {"ostler.dev/hook-of": name.removesuffix("-workflow")}}
        body = {"metadata": metadata, "spec": spec}
        self.client.request("POST", object_path("pods", namespace=self.namespace), body=body)
        return name

    def pod(self, name: str) -> Json:
        """Return a Pod."""
        return self.client.request("GET", object_path("pods", namespace=self.namespace, name=name))

    def wait_for(self, name: str, what: Callable[[Json], Any]) -> Json:
        """Wait until `what` is true of the status of a Pod, and return the status."""

        def read() -> Json | None:
            status: Json = self.pod(name)["status"]
            return status if what(status) else None

        return eventually(read, f"Pod {name} does not reach its state", within=60)

    def delete(self, name: str) -> None:
        """Delete a Pod, and wait until it is gone."""
        path = object_path("pods", namespace=self.namespace, name=name)
        self.client.request("DELETE", path)
        eventually(lambda: self._is_gone(name), f"Pod {name} stays", within=60)

    def _is_gone(self, name: str) -> bool:
        try:
            self.pod(name)
        except Gone:
            return True
        return False


def container(name: str = "job", **fields: Any) -> Json:
    """Return a container that uses the entry point of its image."""
    return {"name": name, "image": "job:1", **fields}


def is_ready(status: Json) -> bool:
    """Return whether all containers of a Pod are ready."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())


def states(status: Json, kind: str = "containerStatuses") -> dict[str, Json]:
    """Return the states of the containers of a Pod."""
    return {each["name"]: each["state"] for each in status.get(kind) or ()}


@contextmanager
def hook_pods(access: ClusterAccess, folder: Path) -> Iterator[HookPods]:
    """Run a kubelet in a new namespace."""
    client = make_client(kubeconfig=str(access.kubeconfig))
    namespace = f"hooks-{secrets.token_hex(6)}"
    client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    account = object_path("serviceaccounts", namespace=namespace, name="default")
    eventually(lambda: _exists(client, account), "the namespace has no ServiceAccount")
    node = f"node-{namespace}"
    command = [sys.executable, "-m", "lab.kubelet", "--kubeconfig", str(access.kubeconfig)]
    command += ["--namespace", namespace, "--node", node, "--github-url", "http://127.0.0.1:1"]
    command += ["--log", str(folder / "journal"), "--work", str(folder / "pods")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kubelet:
        try:
            assert kubelet.stdout is not None
            assert json.loads(kubelet.stdout.readline())["ready"] is True
            yield HookPods(
                access=access,
                client=client,
                namespace=namespace,
                node=node,
                kubelet=kubelet,
                folder=folder / "pods",
            )
        finally:
            kubelet.send_signal(signal.SIGCONT)
            kubelet.terminate()
            kubelet.wait(20)
            client.request("DELETE", f"/api/v1/namespaces/{namespace}")
            with suppress(Gone):
                client.request("DELETE", f"/api/v1/nodes/{node}")
            client.close()


def _exists(client: KubeClient, path: str) -> bool:
    with suppress(Gone):
        client.request("GET", path)
        return True
    return False
