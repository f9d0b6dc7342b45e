"""kubectl on both servers: the first commands of an operator in a shell beside a demo."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from k8s_adapters.pools.pools import create_pool, pool_path
from lab import kubectl
from lab.control_plane import ClusterAccess
from tests.cluster import administrator, delete_namespace

pytestmark = pytest.mark.cluster  # kubectl is built with Go


@pytest.fixture(scope="module", params=["real_control_plane", "embedded_cluster"])
def access(request: pytest.FixtureRequest) -> ClusterAccess:
    """Access to each server in turn."""
    found: ClusterAccess = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def client(access: ClusterAccess) -> Iterator[KubeClient]:
    with administrator(access) as found:
        yield found


@pytest.fixture(scope="module")
def full(client: KubeClient) -> Iterator[str]:
    """The name of a namespace with a pool and a running Pod."""
    name = f"test-{secrets.token_hex(6)}"
    client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    create_pool(client, namespace=name, name="pool", spec={"image": "runner:1", "runnerLabels": ["linux"]})
    ready = {"type": "Ready", "reason": "AsExpected", "message": "-", "lastTransitionTime": "2026-11-28T20:00:00Z"}
    status: Json = {"status": {"warm": 2, "busy": 1, "conditions": [{**ready, "status": "True"}]}}
    client.request("PATCH", f"{pool_path(name, 'pool')}/status", body=status, content_type=MERGE_PATCH)
    containers = [{"name": each, "image": "image"} for each in "ab"]
    pods = f"/api/v1/namespaces/{name}/pods"
    client.request("POST", pods, body={"metadata": {"name": "one"}, "spec": {"containers": containers}})
    state = {"running": {"startedAt": "2026-11-28T20:00:00Z"}}
    seen = [
        {"name": each, "image": "image", "imageID": "", "ready": each == "a", "restartCount": 0, "state": state}
        for each in "ab"
    ]
    status = {"status": {"phase": "Running", "containerStatuses": seen}}
    client.request("PATCH", f"{pods}/one/status", body=status, content_type=MERGE_PATCH)
    yield name
    delete_namespace(client, name)


def get(access: ClusterAccess, folder: Path, *words: str) -> list[list[str]]:
    """Return the words of each line that `kubectl get` prints."""
    environment = {**os.environ, "KUBECONFIG": str(access.kubeconfig), "KUBECACHEDIR": str(folder)}
    command = [str(kubectl.build()), "get", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines() if line]


def test_kubectl_get_prints_pods_and_pools(access: ClusterAccess, full: str, tmp_path: Path) -> None:
    head, pod, head_of_pools, pool = get(access, tmp_path, "pods,rpool", "--namespace", full)
    assert head == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert pod[:-1] == ["pod/one", "1/2", "Running", "0"]
    assert head_of_pools == ["NAME", "REPLICAS", "WARM", "BUSY", "READY", "LABELS", "AGE"]
    assert pool[:-1] == ["runnerpool.ostler.dev/pool", "0", "2", "1", "True", '["linux"]']
    assert all(re.fullmatch(r"\d+[smh]", line[-1]) for line in (pod, pool))


def test_kubectl_get_prints_one_object(access: ClusterAccess, full: str, tmp_path: Path) -> None:
    assert get(access, tmp_path, "po", "one", "--namespace", full, "-o", "name") == [["pod/one"]]
    assert get(access, tmp_path, "po", "one", "--namespace", full)[1][:2] == ["one", "1/2"]
    wide = get(access, tmp_path, "rpool", "--namespace", full, "--output", "wide")
    assert wide[0] == ["NAME", "REPLICAS", "WARM", "BUSY", "READY", "LABELS", "DEGRADED", "IMAGE", "AGE"]


def test_discovery_names_the_resources_and_their_short_names(client: KubeClient) -> None:
    groups = client.request("GET", "/apis")["groups"]
    (ours,) = [each for each in groups if each["name"] == "ostler.dev"]
    assert ours["preferredVersion"] == {"groupVersion": "ostler.dev/v1alpha1", "version": "v1alpha1"}
    assert client.request("GET", "/apis/ostler.dev")["versions"] == ours["versions"]
    assert client.request("GET", "/api")["versions"] == ["v1"]
    found = {}
    for path in ("/api/v1", "/apis/ostler.dev/v1alpha1"):
        answer = client.request("GET", path)
        assert answer["groupVersion"] == path.removeprefix("/api/").removeprefix("/apis/")
        for each in answer["resources"]:
            found[each["name"]] = (each["kind"], each["namespaced"], each.get("shortNames"))
    assert found["pods"] == ("Pod", True, ["po"])
    assert found["nodes"] == ("Node", False, ["no"])
    assert found["runnerpools"] == ("RunnerPool", True, ["rpool"])
    assert "runnerpools/status" in found
