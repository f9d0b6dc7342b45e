"""Pods of a plain namespace on one real node, and every status that the kubelet reported for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.runners.runner_scripts import ensure_scripts
from lab.bootstrap import RUNNER_IMAGE
from ostler.errors import Conflict, Gone
from tests.waiting import eventually

NAMESPACE = "plain"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def container(*command: str, name: str = "main", image: str = RUNNER_IMAGE, **fields: Any) -> Json:
    """Return a container whose image is never pulled if the node has it."""
    return {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": list(command), **fields}


def shell(script: str, **fields: Any) -> Json:
    """Return a container that runs a script of the shell."""
    return container("/bin/sh", "-c", script.replace("$$", "$$$$"), **fields)  # Kubernetes reads $$ as $


class PlainPods:
    """Creates Pods on the node `node` and reads them."""

    def __init__(self, kube: KubeClient, node: str) -> None:
        self._kube = kube
        self._node = node
        self._created: dict[str, str] = {}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        with suppress(Conflict):
            kube.request("POST", "/api/v1/namespaces", body=namespace)
        eventually(self._has_service_account, "the namespace has no ServiceAccount")

    def _has_service_account(self) -> bool:
        with suppress(Gone):
            self._kube.request("GET", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
            return True
        return False

    def create(self, name: str, *containers: Json, **spec: Any) -> None:
        """Create a Pod that is never restarted."""
        whole = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "nodeSelector": {"kubernetes.io/hostname": self._node},
            "containers": list(containers),
            **spec,
        }
        made = self._kube.request("POST", _PODS, body={"metadata": {"name": name}, "spec": whole})
        self._created[name] = made["metadata"]["resourceVersion"]

    def create_scripts(self) -> None:
        """Create the ConfigMap with the scripts of runner Pods."""
        ensure_scripts(self._kube, namespace=NAMESPACE)

    def delete(self, name: str) -> None:
        """Delete a Pod with its own grace period."""
        self._kube.request("DELETE", f"{_PODS}/{name}")

    def status(self, name: str) -> Json:
        """Return the status of a Pod."""
        found: Json = self._kube.request("GET", f"{_PODS}/{name}")["status"]
        return found

    def _is_gone(self, name: str) -> bool:
        try:
            self.status(name)
        except Gone:
            return True
        return False

    def wait_for_end(self, name: str) -> None:
        """Wait until a deleted Pod is gone from the API server."""
        eventually(lambda: self._is_gone(name), f"Pod {name} stays", within=90)

    def wait_for(self, name: str, what: Callable[[Json], Any], *, within: float = 90) -> Json:
        """Wait until `what` is true of the status of a Pod, and return the status."""

        def read() -> Json | None:
            status = self.status(name)
            return status if what(status) else None

        return eventually(read, f"Pod {name} does not reach its state", within=within)

    def wait_until_running(self, name: str) -> Json:
        """Wait until every container of a Pod runs, and return its status."""
        return self.wait_for(name, lambda status: states(status) and all("running" in each for each in states(status)))

    def wait_until_over(self, name: str, *, within: float = 90) -> Json:
        """Wait until the phase of a Pod is final and all its containers have ended, and return its status."""
        return self.wait_for(
            name,
            lambda status: (
                status["phase"] in {"Succeeded", "Failed"} and all("terminated" in each for each in states(status))
            ),
            within=within,
        )

    def history(self, name: str) -> Sequence[tuple[str, Json]]:
        """Return every change of a Pod since its creation: the type of the event and the Pod."""
        query: dict[str, str | int] = {
            "watch": "1",
            "resourceVersion": self._created[name],
            "fieldSelector": f"metadata.name={name}",
            "timeoutSeconds": 1,
        }
        with self._kube.open(_PODS, query=query, read_timeout=10) as answer:
            events = [json.loads(line) for line in answer.read().splitlines()]
        return [(event["type"], event["object"]) for event in events]


def states(status: Mapping[str, Any], kind: str = "containerStatuses") -> list[Json]:
    """Return the states of the containers of a Pod, sorted by the name of the container."""
    return [each["state"] for each in sorted(status.get(kind) or (), key=lambda each: str(each["name"]))]


def ends(status: Mapping[str, Any], kind: str = "containerStatuses") -> list[tuple[int, str]]:
    """Return exit code and reason of each container that has ended, sorted by the name of the container."""
    ended = [each["terminated"] for each in states(status, kind) if "terminated" in each]
    return [(each["exitCode"], each["reason"]) for each in ended]


def condition(status: Mapping[str, Any], kind: str) -> tuple[str, str | None]:
    """Return status and reason of a condition."""
    return next(
        ((each["status"], each.get("reason")) for each in status.get("conditions") or () if each["type"] == kind),
        ("absent", None),
    )


def distinct(values: Sequence[Any]) -> list[Any]:
    """Return the values without repetitions that follow each other."""
    return [each for number, each in enumerate(values) if number == 0 or each != values[number - 1]]
