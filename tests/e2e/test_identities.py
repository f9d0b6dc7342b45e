"""Every process runs as its own ServiceAccount with exactly the rights of the chart, and jobs run.

The audit log of the API server shows which identity made which call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import make_client
from k8s_adapters.cluster.access import who_am_i
from lab.bootstrap import LabPool
from lab.control_plane import AUDIT_LOG, ControlPlane, ControlPlaneUnavailable
from lab.system import WITHOUT_CLUSTER, Options, System, read_log
from lab.traffic import follow
from lab.verdict import judge
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.cluster]

JOBS = 20
POOLS = (LabPool("small", ("self-hosted", "linux", "small"), 6),)

HOOKS = {"migrate", "uninstall"}
"""Components whose Jobs Helm runs. This run has no Helm, and `tests/contract/chart/test_release.py` runs them."""
# Granted, and not needed by so short a run: process, resource, verb.
SELDOM = {
    ("worker", "events", "create"),
    ("worker", "events", "list"),
    ("worker", "nodes", "get"),
    ("worker", "nodes", "list"),
    ("web", "pods", "get"),
    ("web", "runnerpools", "get"),
    ("worker", "runnerpools", "get"),
    ("worker", "runnerpools", "patch"),
    # Only for the removal of finalizers, at the end of a drain and of a Pod with volumes.
    ("worker", "runnerpools", "update"),
    ("worker", "pods", "update"),
    ("worker", "runnerpools/status", "patch"),
    ("worker", "serviceaccounts", "get"),
    ("worker", "serviceaccounts", "list"),
    ("worker", "pods", "get"),
    # Only for pools with workload StatefulSet, which this run has not. test_workloads.py uses these rights.
    ("worker", "statefulsets", "get"),
    ("worker", "statefulsets", "list"),
    ("worker", "statefulsets", "create"),
    ("worker", "statefulsets", "delete"),
    ("worker", "persistentvolumeclaims", "list"),
    ("worker", "persistentvolumeclaims", "delete"),
    ("watch", "runnerpools", "list"),
    ("watch", "runnerpools", "watch"),
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    system: System
    control_plane: ControlPlane

    def calls(self) -> list[dict[str, Any]]:
        """Return the API server's audit entries of calls to the runners' namespace and to resources without one."""
        lines = (self.control_plane.folder / AUDIT_LOG).read_text().splitlines()
        return [json.loads(line) for line in lines[:-1]]


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("identities")
    # A title that celery gives its process, where the package for it is installed, would overwrite what /proc shows.
    options = Options(pools=POOLS, real_pods=2, beats=1, environment={"SPT_NOENV": "1"})
    try:
        with (
            ControlPlane.start(folder / "control-plane", audit=True) as control_plane,
            System(folder / "system", options, say=print, control_plane=control_plane) as system,
        ):
            system.wait_for_warm_pods(POOLS[0].replicas, timeout=240)
            yield Scene(system=system, control_plane=control_plane)
    except ControlPlaneUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def environment(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    parts = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(part.split("=", 1) for part in parts if "=" in part)


def granted(system: System) -> set[tuple[str, str, str]]:
    """Return process, resource and verb of every rule of the chart's Roles, except those of hooks."""
    assert system.identities is not None
    found = set()
    for manifest in system.identities.manifests:
        if manifest["kind"] not in {"Role", "ClusterRole"}:
            continue
        process = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
        for rule in manifest["rules"] if process not in HOOKS else ():
            names = rule.get("resources") or rule["nonResourceURLs"]
            found |= {(process, name, verb) for name in names for verb in rule["verbs"]}
    return found


def test_jobs_run_where_every_process_is_its_own_service_account(scene: Scene) -> None:
    system = scene.system
    identities = system.identities
    assert identities is not None

    body = {"repository": "acme/shop", "labels": list(POOLS[0].labels), "count": JOBS, "duration_seconds": 0.5}
    ids = system.lab("POST", "/jobs", body)["ids"]
    assert follow(system.github_url, ids, say=print), "not every job ran exactly once"
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log), allow_leftover_runners=True)
    assert verdict.problems == ()

    # Who each says that it is, by what it was started with.
    for name, child in system.children.items():
        process = name.partition("-")[0]
        if process not in {"web", "worker", "beat", "watch"}:
            continue
        given = environment(child.pid)
        assert not any(scene.control_plane.token in value for value in given.values())
        if process in WITHOUT_CLUSTER:
            assert "OSTLER_KUBECONFIG" not in given
            continue
        assert scene.control_plane.token not in Path(given["OSTLER_KUBECONFIG"]).read_text()
        client = make_client(kubeconfig=given["OSTLER_KUBECONFIG"])
        assert who_am_i(client) == identities.user(process)
        client.close()

    # What each was seen to do: whatever it may, but for what is seldom needed; and nothing was refused.
    eventually(lambda: granted(system) - done(scene) <= SELDOM, what="each uses its rights")
    assert {process for process, resource, verb in done(scene) if (resource, verb) == ("pods", "create")} == {"worker"}
    refused = [each for each in scene.calls() if each["responseStatus"]["code"] in {401, 403} and _is_ours(scene, each)]
    assert refused == []

    # And that only those did it: of Ostler's client, the administrator's hand is in nothing that jobs need.
    by_admin = {
        _resource(each)
        for each in scene.calls()
        if each["user"]["username"] == "admin"
        and each.get("userAgent") == "ostler"
        and each.get("objectRef", {}).get("namespace") == system.namespace
    }
    assert by_admin <= {"runnerpools", "roles", "rolebindings", "namespaces", "poddisruptionbudgets"}


def done(scene: Scene) -> set[tuple[str, str, str]]:
    """Return process, resource and verb of each act."""
    identities = scene.system.identities
    assert identities is not None
    users = {identities.user(process): process for process in ("web", "worker", "watch")}
    calls = [each for each in scene.calls() if each["user"]["username"] in users]
    return {(users[each["user"]["username"]], _resource(each), each["verb"]) for each in calls}


def _is_ours(scene: Scene, call: dict[str, Any]) -> bool:
    return str(call["user"]["username"]).startswith(f"system:serviceaccount:{scene.system.namespace}-system:")


def _resource(call: dict[str, Any]) -> str:
    """Return the resource of a call as a Role names it, or the path of one that has none."""
    if "objectRef" not in call:
        return str(call["requestURI"].partition("?")[0])
    subresource = call["objectRef"].get("subresource")
    return f"{call['objectRef']['resource']}/{subresource}" if subresource else str(call["objectRef"]["resource"])
