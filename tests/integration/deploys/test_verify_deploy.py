"""The mechanics of `ostler verify-deploy` on the real API server. A kubelet of these tests runs the probe.

There is no network plugin here. On a real cluster the command tests whether policies keep connections alive.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, object_path
from k8s_adapters.cluster.probe_pods import PROBE_POOL
from k8s_adapters.names import OWNER_LABEL, POOL_LABEL
from lab.control_plane import ClusterAccess
from ostler.errors import Gone
from tests.integration.deploys.operator import Done, Operator
from tests.unit.ostler.test_holding import answer, reset, server

_LABELS = {"app.kubernetes.io/component": "web"}


@dataclass
class Kubelet:
    """A kubelet that runs the probe of one namespace as a process, and rolls web when the probe is connected."""

    admin: KubeClient
    namespace: str
    folder: Path
    rolls: bool = True
    starts: bool = True
    seen: list[dict[str, Any]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        while not self.stopped.wait(0.1):
            query = {"labelSelector": f"{POOL_LABEL}={PROBE_POOL}"}
            found = self.admin.request("GET", object_path("pods", namespace=self.namespace), query=query)["items"]
            if found and self.starts:
                self.seen.append(found[0])
                self.run(found[0])
                return

    def run(self, pod: dict[str, Any]) -> None:
        mark, report = self.folder / "mark", self.folder / "report"
        arguments = [*pod["spec"]["containers"][0]["args"], f"--mark={mark}", f"--report={report}", "--every=0.1"]
        with subprocess.Popen([sys.executable, "-m", "ostler", *arguments]) as probe:
            while probe.poll() is None and not mark.exists():
                time.sleep(0.05)
            self.tell(pod, ready=True, state={"running": {}})
            if self.rolls:
                query = {"labelSelector": "app.kubernetes.io/component=web"}
                path = object_path("pods", namespace=self.namespace)
                for each in self.admin.request("GET", path, query=query)["items"]:
                    self.admin.request("DELETE", f"{path}/{each['metadata']['name']}")
        ended = {"exitCode": probe.returncode, "message": report.read_text()}
        self.tell(pod, ready=False, state={"terminated": ended})

    def tell(self, pod: dict[str, Any], *, ready: bool, state: dict[str, Any]) -> None:
        status = {
            "phase": "Running",
            "containerStatuses": [
                {"name": "probe", "ready": ready, "state": state, "image": "i", "imageID": "i", "restartCount": 0}
            ],
        }
        path = f"{object_path('pods', namespace=self.namespace, name=pod['metadata']['name'])}/status"
        self.admin.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)


@pytest.fixture
def kubelet(admin: KubeClient, namespace: str, tmp_path: Path) -> Iterator[Kubelet]:
    """Web with one Pod in the namespace of the probe, and a kubelet for this namespace."""
    container = {"name": "web", "image": "ostler:7"}
    template = {"metadata": {"labels": _LABELS}, "spec": {"containers": [container]}}
    deployment = {
        "metadata": {"name": "web", "labels": _LABELS},
        "spec": {"selector": {"matchLabels": _LABELS}, "template": template},
    }
    admin.request("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", body=deployment)
    account = object_path("serviceaccounts", namespace=namespace, name="default")
    deadline = time.monotonic() + 60
    while not _is_there(admin, account) and time.monotonic() < deadline:
        time.sleep(0.1)
    pod = {"metadata": {"name": "web-1", "labels": _LABELS}, "spec": {"containers": [container]}}
    admin.request("POST", object_path("pods", namespace=namespace), body=pod)
    found = Kubelet(admin, namespace, tmp_path)
    thread = threading.Thread(target=found.work, daemon=True)
    thread.start()
    yield found
    found.stopped.set()
    thread.join(60)


def _is_there(admin: KubeClient, path: str) -> bool:
    try:
        admin.request("GET", path)
    except Gone:
        return False
    return True


def verify(operator: Operator, kubelet: Kubelet, access: ClusterAccess, port: int, *more: str) -> Done:
    return operator.run(
        "verify-deploy",
        "--to",
        f"http://127.0.0.1:{port}/",
        "--for",
        "3",
        "-n",
        kubelet.namespace,
        "--runners-namespace",
        kubelet.namespace,
        "--kubeconfig",
        str(access.kubeconfig),
        *more,
    )


def test_a_connection_that_holds_while_web_rolls(
    operator: Operator, kubelet: Kubelet, control_plane: ClusterAccess
) -> None:
    with server(answer) as target:
        done = verify(operator, kubelet, control_plane, target.port, "--roll")
    assert done.status == 0, done
    assert "held" in done.out
    assert ", 0 breaks" in done.out
    probe = kubelet.seen[0]
    assert probe["metadata"]["labels"][OWNER_LABEL] == "0"
    assert probe["spec"]["containers"][0]["image"] == "ostler:7"
    path = object_path("pods", namespace=kubelet.namespace, name=probe["metadata"]["name"])
    assert not _is_there(kubelet.admin, path)
    path = f"/apis/apps/v1/namespaces/{kubelet.namespace}/deployments/web"
    marks = kubelet.admin.request("GET", path)["spec"]["template"]["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/restartedAt" in marks


def test_a_connection_that_breaks_is_reported(
    operator: Operator, kubelet: Kubelet, control_plane: ClusterAccess
) -> None:
    with server(lambda link, count: reset(link) if count == 3 else answer(link, count)) as target:
        done = verify(operator, kubelet, control_plane, target.port, "--json")
    assert done.status == 1
    told = json.loads(done.out)
    assert (told["held"], told["broken"], told["rolled"]) == (False, 1, True)
    assert "check-deploy" in told["problems"][0]


def test_where_web_did_not_roll_nothing_is_proven(
    operator: Operator, kubelet: Kubelet, control_plane: ClusterAccess
) -> None:
    kubelet.rolls = False
    with server(answer) as target:
        done = verify(operator, kubelet, control_plane, target.port)
    assert done.status == 1
    assert "web did not roll" in done.out


def test_a_web_that_stamped_pods_reach_shows_that_policies_are_not_enforced(
    operator: Operator, kubelet: Kubelet, control_plane: ClusterAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(answer) as target, server(answer) as web:
        monkeypatch.setattr("k8s_adapters.cluster.rolling.address_of", lambda *_: f"127.0.0.1:{web.port}")
        done = verify(operator, kubelet, control_plane, target.port)
    assert done.status == 1
    assert "does not enforce the policies" in done.out


def test_wrong_uses_and_a_probe_that_never_starts_say_so(
    operator: Operator, kubelet: Kubelet, control_plane: ClusterAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert operator.run("verify-deploy", "--to", "github.com").status == 2
    done = verify(operator, kubelet, control_plane, 1, "-n", "default")
    assert (done.status, "no Ostler in namespace" in done.err) == (1, True)
    kubelet.starts = False
    monkeypatch.setattr("cli.verify_deploy._STARTS_WITHIN", 1.0)
    done = verify(operator, kubelet, control_plane, 1)
    assert (done.status, "did not connect within 1 s" in done.err) == (1, True)
    path = object_path("pods", namespace=kubelet.namespace)
    left = kubelet.admin.request("GET", path, query={"labelSelector": POOL_LABEL})["items"]
    assert left == []
