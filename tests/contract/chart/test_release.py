"""A release with the real Helm on a separate control plane: install, upgrade, rollback and uninstall.

The migration runs as in a cluster: in the Job of a hook. The Job controller creates its Pod, and the containers run
with the identity of the Pod.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, make_client, object_path
from k8s_adapters.pools.crd import crd_manifest
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners.owners.stateful_set import APPS, KIND
from k8s_adapters.runners.pods import list_pods
from lab import helm, kubectl
from lab.control_plane import ControlPlane, ControlPlaneUnavailable
from lab.postgres import Postgres
from models.db import migrate
from models.db.engine import make_engine
from ostler.errors import Gone
from ostler.secrets import Secret
from tests.contract.chart.job_kubelet import JobKubelet
from tests.contract.k8s.test_stamps import bind_to_a_node
from tests.contract.k8s.transport import maker
from tests.contract.owners.test_stateful_sets import assert_no_successor, created, finish, start
from tests.integration.cli.test_operator import run_command
from tests.nodes import LiveNode
from tests.waiting import eventually

RELEASE = "ostler"
RUNNERS = "ostler-runners"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/runnerpools.ostler.dev"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A new cluster in which an operator has created the namespace and the Secret."""

    kube: KubeClient
    control_plane: ControlPlane
    database: Secret
    folder: Path
    helm: int
    """Major version of Helm in use."""

    def kubelet(self) -> JobKubelet:
        return JobKubelet(self.kube, self.control_plane.access, RELEASE, self.folder)

    def upgrade(self, *, force: bool = False, **values: Any) -> None:
        helm.upgrade_install(
            values={"uninstall": {"settle": 0}, **values},
            kubeconfig=self.control_plane.kubeconfig,
            namespace=RELEASE,
            hooks=True,
            crds=True,
            force_conflicts=force,
        )

    def change(self, *arguments: str) -> None:
        """Run kubectl as an operator in the namespace of the pools."""
        where = [f"--kubeconfig={self.control_plane.kubeconfig}", f"--namespace={RUNNERS}"]
        subprocess.run([str(kubectl.build()), *where, *arguments], check=True, capture_output=True, timeout=60)

    def pause(self) -> None:
        """Pause the pool by the command."""
        settings = {"OSTLER_KUBECONFIG": str(self.control_plane.kubeconfig), "OSTLER_NAMESPACE": RUNNERS}
        settings |= {"OSTLER_DATABASE_URL": self.database.reveal()}
        done = run_command(settings, "pool", "pause", "small")
        assert done.returncode == 0, done.stderr

    def sizes(self) -> tuple[int, bool]:
        """Return the number of Pods and the pause of the pool in the cluster."""
        pool = self.kube.request("GET", f"/apis/ostler.dev/v1alpha1/namespaces/{RUNNERS}/runnerpools/small")["spec"]
        return pool["replicas"], pool["paused"]

    def say(self, url: str) -> None:
        """Write the address of the database into the Secret."""
        path = f"/api/v1/namespaces/{RELEASE}/secrets/ostler"
        body = {"stringData": {"OSTLER_DATABASE_URL": url}}
        self.kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    def has(self, path: str) -> bool:
        try:
            self.kube.request("GET", path)
        except Gone:
            return False
        return True

    def image(self, name: str) -> str:
        """Return the image of a Deployment's container."""
        path = f"/apis/apps/v1/namespaces/{RELEASE}/deployments/{name}"
        spec = self.kube.request("GET", path)["spec"]["template"]["spec"]
        return str(spec["containers"][0]["image"])

    def schema(self) -> str | None:
        """Return the revision of the database."""
        engine = make_engine(self.database, pool_size=1, application="test")
        try:
            return migrate.current(engine)
        finally:
            engine.dispose()


@pytest.fixture
def cluster(each_helm: int, postgres: Postgres, tmp_path: Path) -> Iterator[Cluster]:
    postgres.create_database(f"release_{tmp_path.name}")
    database = Secret(postgres.url(f"release_{tmp_path.name}"))
    try:
        with ControlPlane.start(tmp_path / "control-plane") as control_plane:
            kube = make_client(kubeconfig=str(control_plane.kubeconfig))
            kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": RELEASE}})
            secret = {"metadata": {"name": "ostler"}, "stringData": {"OSTLER_DATABASE_URL": database.reveal()}}
            kube.request("POST", f"/api/v1/namespaces/{RELEASE}/secrets", body=secret)
            yield Cluster(kube=kube, control_plane=control_plane, database=database, folder=tmp_path, helm=each_helm)
            kube.close()
    except ControlPlaneUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def test_a_release_comes_grows_is_refused_goes_back_and_goes(cluster: Cluster) -> None:
    # Installed: the database and the definition first, by an identity that is gone when they are there.
    with cluster.kubelet() as kubelet:
        cluster.upgrade(image={"tag": "1"})
    assert kubelet.ran == ["database: 0", "definition: 0"]
    newest = cluster.schema()
    assert migrate.fits(newest, migrate.revisions())
    for leftover in (
        f"/apis/batch/v1/namespaces/{RELEASE}/jobs/ostler-migrate",
        f"{ROLES}/ostler-ostler-migrate",
        f"/api/v1/namespaces/{RELEASE}/serviceaccounts/ostler-migrate",
    ):
        assert not cluster.has(leftover)
    assert cluster.image("ostler-web") == "ostler:1"

    # Upgraded: Helm leaves crds/ alone, and the hook brings an older definition up to date.
    _make_older(cluster.kube)
    with cluster.kubelet() as kubelet:
        cluster.upgrade(image={"tag": "2"}, flower={"enabled": False})
    assert kubelet.ran == ["database: 0", "definition: 0"]
    assert _columns(cluster.kube) == _columns()
    assert cluster.image("ostler-web") == "ostler:2"
    assert not cluster.has(f"/apis/apps/v1/namespaces/{RELEASE}/deployments/ostler-flower")

    # An upgrade whose migration fails changes no process, and is told at once: a wrong setting stays wrong.
    cluster.say("mysql://nowhere")
    with cluster.kubelet() as kubelet, pytest.raises(helm.HelmRefused, match="pre-upgrade hooks failed"):
        cluster.upgrade(image={"tag": "3"})
    assert kubelet.ran == ["database: 2"]
    assert "OSTLER_DATABASE_URL" in (cluster.folder / "database.log").read_text()
    assert cluster.image("ostler-web") == "ostler:2"
    cluster.say(cluster.database.reveal())

    # Rolled back: the processes are, and what has grown stays.
    with cluster.kubelet() as kubelet:
        helm.rollback(kubeconfig=cluster.control_plane.kubeconfig, namespace=RELEASE, revision=1, hooks=True)
    assert kubelet.ran == []
    assert cluster.image("ostler-web") == "ostler:1"
    assert cluster.has(f"/apis/apps/v1/namespaces/{RELEASE}/deployments/ostler-flower")
    assert cluster.schema() == newest
    assert _columns(cluster.kube) == _columns()

    # Taken away: with it goes no runner Pod.
    pool = {"metadata": {"name": "small"}, "spec": {"image": "runner:1", "runnerLabels": ["small"]}}
    pools = "/apis/ostler.dev/v1alpha1/namespaces/ostler-runners/runnerpools"
    body = {"apiVersion": "ostler.dev/v1alpha1", "kind": "RunnerPool", **pool}
    cluster.kube.request("POST", pools, body=body)
    with cluster.kubelet() as kubelet:
        helm.uninstall(kubeconfig=cluster.control_plane.kubeconfig, namespace=RELEASE, hooks=True)
    assert kubelet.ran == ["detach: 0"]
    runners = "/apis/rbac.authorization.k8s.io/v1/namespaces/ostler-runners/roles"
    assert not cluster.has(f"{runners}/ostler-uninstall")
    assert not cluster.has(f"/api/v1/namespaces/{RELEASE}/serviceaccounts/ostler-uninstall")
    assert not cluster.has(f"/apis/apps/v1/namespaces/{RELEASE}/deployments/ostler-web")
    for kept in (DEFINITION, f"{pools}/small"):
        assert "deletionTimestamp" not in cluster.kube.request("GET", kept)["metadata"]
    namespace = cluster.kube.request("GET", "/api/v1/namespaces/ostler-runners")
    assert namespace["status"]["phase"] == "Active"

    # And it comes again, over what it left.
    cluster.upgrade(image={"tag": "4"}, migrate={"enabled": False})
    assert cluster.image("ostler-web") == "ostler:4"


def test_uninstalling_detaches_finished_runners_and_running_ones_go_on(cluster: Cluster) -> None:
    cluster.upgrade(migrate={"enabled": False})
    kube, (finished, running) = cluster.kube, (f"pool-0000000{letter}-0" for letter in "ab")
    spec = {"image": "runner:1", "runnerLabels": ["linux"], "workload": "StatefulSet"}
    pool = create_pool(kube, namespace=RUNNERS, name="pool", spec=spec)
    with LiveNode(kube, RUNNERS):
        for name in (finished, running):
            maker(kube, pool, default=name)()
            created(kube, RUNNERS, name)
            bind_to_a_node(kube, RUNNERS, name)
        start(kube, RUNNERS, running)
        before = created(kube, RUNNERS, running)
        finish(kube, RUNNERS, name=finished)
        # The controller of StatefulSets deletes a finished Pod, and only the finalizer keeps it.
        eventually(lambda: created(kube, RUNNERS, finished).terminating)

        with cluster.kubelet() as kubelet:
            helm.uninstall(kubeconfig=cluster.control_plane.kubeconfig, namespace=RELEASE, hooks=True)
        assert kubelet.ran == ["detach: 0"]

        assert kube.request("GET", object_path(KIND, namespace=RUNNERS, group=APPS))["items"] == []
        (after,) = list_pods(kube, namespace=RUNNERS)
        assert (after.name, after.uid, after.terminating) == (running, before.uid, False)
        assert (after.runner_ready, after.exit_held, after.of_a_set) == (True, False, False)
        assert_no_successor(kube, RUNNERS, finished)
        assert created(kube, RUNNERS, running) == after


SCALED: dict[str, Any] = {
    "migrate": {"enabled": False},
    "pools": {"small": {"image": "runner:1", "runnerLabels": ["small"], "replicas": 2, "paused": False}},
}
"""Values with a pool whose size and pause are in the values."""


def test_an_upgrade_meets_the_changes_of_people(cluster: Cluster) -> None:
    # Helm 3 writes what differs between two versions of the values. Helm 4 owns the fields of a release that it
    # installed, and refuses to change what another client has written since.
    cluster.upgrade(image={"tag": "1"}, **SCALED)
    cluster.change("scale", "rpool/small", "--replicas=4")
    cluster.pause()
    assert cluster.sizes() == (4, True)

    if cluster.helm == 4:
        with pytest.raises(helm.HelmRefused, match=r'conflicts with "kubectl" with subresource "scale"') as told:
            cluster.upgrade(image={"tag": "2"}, **SCALED)
        assert ".spec.replicas" in str(told.value)
        assert re.search(r'conflicts with "ostler-cli:.*:\n- .spec.paused', str(told.value))
        # The upgrade stops midway: the processes are new, and the pool has the changes of people.
        assert (cluster.image("ostler-web"), cluster.sizes()) == ("ostler:2", (4, True))
        wanted = (2, False)
    else:
        wanted = (4, True)
    cluster.upgrade(image={"tag": "2"}, force=cluster.helm == 4, **SCALED)
    assert (cluster.image("ostler-web"), cluster.sizes()) == ("ostler:2", wanted)

    # Fields that the values do not name belong to people.
    fewer = {name: value for name, value in SCALED["pools"]["small"].items() if name not in {"replicas", "paused"}}
    free = {**SCALED, "pools": {"small": fewer}}
    cluster.upgrade(image={"tag": "3"}, force=cluster.helm == 4, **free)
    cluster.change("scale", "rpool/small", "--replicas=5")
    cluster.pause()
    cluster.upgrade(image={"tag": "4"}, **free)
    assert (cluster.image("ostler-web"), cluster.sizes()) == ("ostler:4", (5, True))
    helm.rollback(kubeconfig=cluster.control_plane.kubeconfig, namespace=RELEASE)
    assert (cluster.image("ostler-web"), cluster.sizes()) == ("ostler:3", (5, True))


@pytest.mark.parametrize("each_helm", [4], indirect=True)
def test_helm_4_upgrades_a_release_of_helm_3_without_conflicts(cluster: Cluster) -> None:
    with helm.using(3):
        cluster.upgrade(image={"tag": "1"}, **SCALED)
    cluster.change("scale", "rpool/small", "--replicas=4")
    cluster.upgrade(image={"tag": "2"}, **SCALED)
    assert (cluster.image("ostler-web"), cluster.sizes()) == ("ostler:2", (4, False))
    helm.rollback(kubeconfig=cluster.control_plane.kubeconfig, namespace=RELEASE)
    assert (cluster.image("ostler-web"), cluster.sizes()) == ("ostler:1", (4, False))


def _make_older(kube: KubeClient) -> None:
    versions = crd_manifest()["spec"]["versions"]
    versions[0]["additionalPrinterColumns"] = versions[0]["additionalPrinterColumns"][:1]
    kube.request("PATCH", DEFINITION, body={"spec": {"versions": versions}}, content_type=MERGE_PATCH)


def _columns(kube: KubeClient | None = None) -> list[str]:
    """Return the printer columns of the definition in the cluster, or of this version's definition."""
    definition = crd_manifest() if kube is None else kube.request("GET", DEFINITION)
    return [each["name"] for each in definition["spec"]["versions"][0]["additionalPrinterColumns"]]
