"""A Helm release on this machine: a process for each Deployment, and the Job of the hook.

Each process has the arguments from the API server, the environment (read from the Secret that its Deployment names),
and the identity of its Pod's ServiceAccount. It gets nothing else, except values that a network would provide
(`instead`). A Deployment whose Secret lacks a key never becomes available, and a Deployment with 0 replicas does not
run.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import urllib3
from urllib3.exceptions import HTTPError

from k8s_adapters.calls.client import MERGE_PATCH, make_client, object_path
from lab.control_plane_access import ClusterAccess, write_kubeconfig
from lab.processes import Child
from lab.system import WebPorts
from ostler.errors import UpstreamError

EVERY = 0.2
PLAYED = ("web", "worker", "beat", "watch")
"""The Deployments that run. Flower counts as running: it has its own end-to-end test, and no job needs it."""

_COMPONENT = "app.kubernetes.io/component"
_ACCOUNT_FILES = "/var/run/secrets/kubernetes.io/serviceaccount"


class NotStarted(Exception):
    """A container cannot be started with its spec. The kubelet would wait until the spec changes."""


@dataclass
class Release:
    """A context manager that runs the release of one namespace in a thread."""

    access: ClusterAccess
    namespace: str
    folder: Path
    instead: Mapping[str, str]
    """Variables that have other values on one machine than in a cluster. They take precedence."""
    web_ports: WebPorts
    problem: BaseException | None = None
    hooks: list[str] = field(default_factory=list)
    """The containers of Jobs that ran, in order, each with its exit status."""
    _running: dict[str, tuple[str, Child]] = field(default_factory=dict)
    _told: dict[str, Any] = field(default_factory=dict)
    _jobs: set[str] = field(default_factory=set)
    _ends: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        self._kube = make_client(kubeconfig=str(self.access.kubeconfig))
        self._thread = threading.Thread(target=self._work, name="release")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._kube.close()

    def environment_file(self, deployment: str) -> Path:
        """Return the file with the environment of a Deployment's running process, for `kubectl exec`."""
        return self.folder / f"{deployment}.json"

    def _work(self) -> None:
        # All children are this thread's: one dies with the thread that started it.
        try:
            while not self._ends.wait(EVERY):
                try:
                    self._play_jobs()
                    self._play_deployments()
                except UpstreamError:
                    continue  # an object went between two checks
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.problem = error
        finally:
            self._stop(list(self._running))

    def _play_deployments(self) -> None:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        found = {each["metadata"]["name"]: each for each in self._kube.request("GET", path)["items"]}
        wanted = {
            name: json.dumps(each["spec"]["template"], sort_keys=True)
            for name, each in found.items()
            if each["spec"]["replicas"] > 0 and each["metadata"]["labels"][_COMPONENT] in PLAYED
        }
        self._stop([name for name, (template, _) in self._running.items() if wanted.get(name) != template])
        for name, template in wanted.items():
            if name not in self._running:
                self._start(found[name], template)
            elif not self._running[name][1].running():
                self._running[name][1].start()  # as the kubelet does
        for name, each in found.items():
            self._tell(f"{path}/{name}/status", each)

    def _start(self, deployment: dict[str, Any], template: str) -> None:
        name, spec = deployment["metadata"]["name"], deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        try:
            environment = self._environment(spec, container)
        except NotStarted:
            return
        self.environment_file(name).touch(mode=0o600)
        self.environment_file(name).write_text(json.dumps(environment))
        child = Child(name, _command(container), log=self.folder / f"{name}.log", env=environment)
        self._running[name] = template, child
        child.start()

    def _stop(self, names: Sequence[str]) -> None:
        children = [self._running.pop(name)[1] for name in names]
        for name in names:
            self.environment_file(name).unlink()
        if children:
            with ThreadPoolExecutor(len(children)) as side_by_side:
                list(side_by_side.map(lambda child: child.stop(timeout=45), children))

    def _tell(self, path: str, deployment: dict[str, Any]) -> None:
        """Write the status of a Deployment, if it has changed."""
        name, replicas = deployment["metadata"]["name"], deployment["spec"]["replicas"]
        component = deployment["metadata"]["labels"][_COMPONENT]
        ready = replicas if component not in PLAYED or self._serves(name, component) else 0
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": replicas,
            "updatedReplicas": replicas,
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        if self._told.get(name) != status:
            self._kube.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)
            self._told[name] = status

    def _serves(self, name: str, component: str) -> bool:
        if name not in self._running or not self._running[name][1].running():
            return False
        if component != "web":
            return True
        url = f"http://127.0.0.1:{self.web_ports.private}/readyz"
        try:
            return urllib3.request("GET", url, timeout=2, retries=False).status == 200
        except HTTPError:
            return False

    def _play_jobs(self) -> None:
        path = object_path("pods", namespace=self.namespace)
        for pod in self._kube.request("GET", path, query={"labelSelector": "job-name"})["items"]:
            if pod["metadata"]["uid"] not in self._jobs:
                self._jobs.add(pod["metadata"]["uid"])
                succeeded = self._run(pod["spec"])
                status = {"phase": "Succeeded" if succeeded else "Failed"}
                where = f"{path}/{pod['metadata']['name']}/status"
                self._kube.request("PATCH", where, body={"status": status}, content_type=MERGE_PATCH)

    def _run(self, spec: dict[str, Any]) -> bool:
        """Run the containers of a Pod in order, like init containers, and return whether all succeeded."""
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            try:
                environment = self._environment(spec, container)
            except NotStarted:
                return False
            log = self.folder / f"{container['name']}.log"
            with log.open("ab") as output:
                code = subprocess.run(
                    _command(container), env=environment, stdout=output, stderr=output, check=False, timeout=120
                ).returncode
            self.hooks.append(f"{container['name']}: {code}")
            if code != 0:
                return False
        return True

    def _environment(self, spec: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
        """Return the environment of a container. Raises `NotStarted` if a Secret lacks a key."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST", "KUBE"))
        }
        described = {
            each["name"]: each["value"] if "value" in each else self._secret(each["valueFrom"]["secretKeyRef"])
            for each in container.get("env", ())
        }
        own = {
            "OSTLER_ALIVE_FILE": str(self.folder / f"{container['name']}-alive"),
            "OSTLER_METRICS_PORT": "0",
            "OSTLER_WEB_POLLS_TLS_PORT": "0",
            **self.web_ports.environment(),
        }
        environment |= {**described, **self.instead, **own, "PYTHONWARNINGS": "ignore"}
        for each in container.get("volumeMounts", ()):
            environment |= self._mounted(spec, each, environment)
        mounted = any(each["mountPath"] == _ACCOUNT_FILES for each in container.get("volumeMounts", ()))
        if mounted or spec["automountServiceAccountToken"]:
            environment["OSTLER_KUBECONFIG"] = str(self._kubeconfig(spec["serviceAccountName"]))
        return environment

    def _mounted(
        self, spec: dict[str, Any], mount: Mapping[str, Any], environment: Mapping[str, str]
    ) -> dict[str, str]:
        """Write the files of a mounted Secret, and return the variables that name such files, with their paths here."""
        sources = {each["name"]: each.get("secret") for each in spec["volumes"]}
        if not sources.get(mount["name"]):
            return {}
        name = sources[mount["name"]]["secretName"]
        folder = self.folder / f"secret-{name}"
        folder.mkdir(exist_ok=True)
        found = self._kube.request("GET", object_path("secrets", namespace=self.namespace, name=name))
        for key, value in found["data"].items():
            path = folder / key
            path.touch(mode=0o600)
            path.write_bytes(base64.b64decode(value))
        inside = f"{mount['mountPath']}/"
        return {
            variable: str(folder / value.removeprefix(inside))
            for variable, value in environment.items()
            if value.startswith(inside)
        }

    def _secret(self, ref: Mapping[str, str]) -> str:
        secret = self._kube.request("GET", object_path("secrets", namespace=self.namespace, name=ref["name"]))
        if ref["key"] not in secret["data"]:
            raise NotStarted(f"Secret {ref['name']} has no key {ref['key']}")
        return base64.b64decode(secret["data"][ref["key"]]).decode()

    def _kubeconfig(self, account: str) -> Path:
        """Return a kubeconfig instead of the identity files, which exist only inside a Pod."""
        path = f"{object_path('serviceaccounts', namespace=self.namespace, name=account)}/token"
        token = self._kube.request("POST", path, body={"spec": {"expirationSeconds": 24 * 3600}})["status"]["token"]
        kubeconfig = self.folder / f"kubeconfig-{account}"
        write_kubeconfig(kubeconfig, url=self.access.url, ca_file=self.access.ca_file, token=token)
        return kubeconfig


def _command(container: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "ostler", *container["args"]]
