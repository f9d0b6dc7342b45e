"""The examples of `docs/operations/volumes.md`: the command without Ostler, and two pools for a public repository."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from k8s_adapters.calls.client import Json, object_path
from k8s_adapters.names import EXIT_FINALIZER
from k8s_adapters.pools.pools import create_pool
from lab import kubectl
from lab.control_plane import ClusterAccess
from models.db.engine import transaction
from models.pools.pools import routes
from rules.routing.forks import Origin
from rules.routing.labels import choose_pool
from tasks.pools.mirror_pools import pools
from tests.cluster import delete_namespace
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import busy_pod
from tests.integration.tasks.pools.test_stateful_sets import CACHE, sets, started
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

PAGE = (Path(__file__).parents[4] / "docs" / "operations" / "volumes.md").read_text()


def test_the_two_pools_of_the_page_separate_public_repositories_from_private_ones(stage: Stage) -> None:
    for pool in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)):
        create_pool(stage.kube, namespace=stage.namespace, name=pool["metadata"]["name"], spec=pool["spec"])
    pools.run()
    known = transaction(stage.rt.engine, routes)
    names = {pool.id: pool.name for pool in known}

    def chosen(*, public: bool, origin: Origin) -> str | None:
        wanted = ["self-hosted", "linux-cached"]
        found = choose_pool(known, labels=wanted, account_id=1, repository="acme/shop", public=public, origin=origin)
        return None if found.pool_id is None else names[found.pool_id]

    assert chosen(public=False, origin=Origin.HERE) == "linux-cached"
    assert {chosen(public=True, origin=origin) for origin in Origin} == {"linux-cached-public"}
    assert stage.rows("SELECT name FROM pools WHERE problem IS NOT NULL") == []


def remove_finalizers(stage: Stage, control_plane: ClusterAccess) -> None:
    """Run the command of the page as an administrator."""
    (command,) = re.findall(r"```\n(kubectl delete statefulsets.*?)```", PAGE, re.DOTALL)
    folder = kubectl.build().parent
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.replace("ostler-runners", stage.namespace)],
        env={**os.environ, "KUBECONFIG": str(control_plane.kubeconfig), "PATH": f"{folder}:{os.environ['PATH']}"},
        check=True,
        timeout=60,
    )


def test_one_command_removes_the_finalizers_without_ostler_and_no_running_job(
    stage: Stage, control_plane: ClusterAccess
) -> None:
    busy, over = started(stage, 2)
    busy_pod(stage, name=busy)
    stage.finish(over)
    remove_finalizers(stage, control_plane)

    # The controller has already requested the deletion of the Pod that is over: it goes now.
    eventually(lambda: sets(stage) == set() and set(stage.pods()) == {busy})
    (pod,) = stage.kube.request("GET", object_path("pods", namespace=stage.namespace))["items"]
    assert not pod["metadata"].get("finalizers")
    assert "deletionTimestamp" not in pod["metadata"]


def namespaces(stage: Stage) -> list[Json]:
    """Return the namespace of the stage, or nothing if it is gone."""
    items: list[Json] = stage.kube.request("GET", "/api/v1/namespaces")["items"]
    return [each for each in items if each["metadata"]["name"] == stage.namespace]


def test_one_command_ends_a_deleted_namespace_that_only_the_finalizer_of_a_pod_holds(
    stage: Stage, control_plane: ClusterAccess
) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    stage.finish(name)
    delete_namespace(stage.kube, stage.namespace)
    # The namespace controller writes conditions when it has deleted what it can. It deletes the Pods first.
    eventually(lambda: namespaces(stage)[0]["status"].get("conditions"), within=60)
    (pod,) = stage.kube.request("GET", object_path("pods", namespace=stage.namespace))["items"]
    assert (pod["metadata"]["name"], pod["metadata"]["finalizers"]) == (name, [EXIT_FINALIZER])
    assert "deletionTimestamp" in pod["metadata"]

    remove_finalizers(stage, control_plane)
    eventually(lambda: not namespaces(stage), within=60)
