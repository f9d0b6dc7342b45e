"""A node that loses its control plane keeps its busy Pods (laws L3 and L12)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from k8s_adapters.calls.client import Json, make_client
from k8s_adapters.pools.pools import create_pool
from lab.control_plane import ClusterAccess, NodeGrace
from models.claims import pod_ends
from models.db.engine import transaction
from rules.claims.pod_ends import describe
from rules.pools.fleets import Taint, Toleration
from tasks.pools.watch_reports import pod_gone, pods_changed
from tasks.worker import runtime as current
from tasks.worker.app import app
from tests.cluster import delete_namespace, impatient
from tests.database import Database
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub, StubRuntime
from tests.integration.tasks.pools.fleet import kept, polls, stamp
from tests.nodes import LiveNode
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

UNREACHABLE, NOT_READY = "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"
OURS = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in (UNREACHABLE, NOT_READY)]
GRACE = NodeGrace(silence=8, toleration=1, checked_every=1)
LONGER = 3
"""Seconds that the control Pod is tolerated. A runner Pod with the cluster's default would be deleted earlier."""
WILD = [
    {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    {"key": NOT_READY, "operator": "Exists"},
    {"key": "ci", "operator": "Exists", "effect": "NoSchedule"},
    {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1},
]
"""Tolerations of an overlay that would evict the Pod, or put it on a dead node, if they were used unchanged."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """A control plane that declares silent nodes lost within seconds."""
    with impatient(tmp_path_factory.mktemp("impatient"), GRACE) as access:
        yield access


@pytest.fixture
def stage(database: Database, cluster: ClusterAccess) -> Iterator[Stage]:
    """A stage on this control plane."""
    kube = make_client(kubeconfig=str(cluster.kubeconfig))
    namespace = f"test-{secrets.token_hex(6)}"
    kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    rt = StubRuntime(database, kube, namespace)
    current.install(rt)  # type: ignore[arg-type]
    made = Stage(rt, namespace, kube)
    eventually(lambda: bool(kube.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts")["items"]))
    yield made
    current.install(None)
    delete_namespace(kube, namespace)
    kube.close()


@pytest.fixture
def nodes(stage: Stage) -> Iterator[tuple[LiveNode, LiveNode]]:
    """Two nodes with heartbeats. Without any, the node controller would suspect itself and evict nothing."""
    name = f"node-{secrets.token_hex(4)}"
    with (
        LiveNode(stage.kube, f"{name}-a", every=1) as one,
        LiveNode(stage.kube, f"{name}-b", every=1) as other,
    ):
        yield one, other


def tolerations(stage: Stage, pod: str) -> list[Json]:
    """Return a Pod's tolerations from the API server."""
    found: Json = stage.kube.request("GET", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
    return list(found["spec"]["tolerations"])


def tolerates(stage: Stage, pod: str, key: str, effect: str) -> bool:
    """Return whether a Pod tolerates a taint, by Kubernetes' own rules."""
    return any(
        Toleration(
            key=each.get("key"),
            operator=each.get("operator") or "Equal",
            value=each.get("value") or "",
            effect=each.get("effect"),
        ).covers(Taint(key, "", effect))
        for each in tolerations(stage, pod)
    )


def left(stage: Stage) -> set[str]:
    """Return the names of the Pods that are not being deleted."""
    found = stage.kube.request("GET", f"/api/v1/namespaces/{stage.namespace}/pods")["items"]
    return {each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]}


def control_pod(stage: Stage) -> str:
    """Create a Pod that is tolerated on a lost node for a few seconds, like any other Pod of the cluster."""
    spec = {
        "containers": [{"name": "c", "image": "i"}],
        "tolerations": [{**each, "tolerationSeconds": LONGER} for each in OURS],
    }
    body = {"metadata": {"name": "control"}, "spec": spec}
    stage.kube.request("POST", f"/api/v1/namespaces/{stage.namespace}/pods", body=body)
    return "control"


def disruption_budget(stage: Stage) -> None:
    """Create the chart's disruption budget of busy Pods. Taint eviction ignores it."""
    selector = {"matchExpressions": [{"key": "ostler.dev/runner-pool-owner", "operator": "Exists"}]}
    body = {"metadata": {"name": "runners-busy"}, "spec": {"maxUnavailable": 0, "selector": selector}}
    stage.kube.request("POST", f"/apis/policy/v1/namespaces/{stage.namespace}/poddisruptionbudgets", body=body)


def test_runner_pods_tolerate_an_unreachable_node_without_end(stage: Stage) -> None:
    stage.pool(replicas=1)
    kept(stage)
    (name,) = stage.pods()
    assert tolerations(stage, name) == OURS  # admission has added none of its own


def test_an_overlay_keeps_its_tolerations_of_other_taints_alone(stage: Stage) -> None:
    body = {"image": "runner:1", "runnerLabels": ["x"], "replicas": 1, "podTemplate": {"spec": {"tolerations": WILD}}}
    create_pool(stage.kube, namespace=stage.namespace, name="small", spec=body)
    kept(stage)
    (name,) = stage.pods()
    assert tolerations(stage, name) == [*OURS, *WILD[2:]]


def test_busy_and_warm_pods_outlive_a_node_that_is_cut_off(stage: Stage, nodes: tuple[LiveNode, LiveNode]) -> None:
    lost, healthy = nodes
    body = {"image": "runner:1", "runnerLabels": ["x"], "replicas": 1, "podTemplate": {"spec": {"tolerations": WILD}}}
    create_pool(stage.kube, namespace=stage.namespace, name="overlaid", spec=body)
    stage.pool(replicas=2)
    kept(stage)
    polls(stage)
    runners = set(stage.pods())
    busy = min(name for name in runners if name.startswith("small"))
    stage.job(7)
    stage.claim(busy, job_id=7, state="executing")
    stamp(stage, stage.pods()[busy])
    disruption_budget(stage)
    control = control_pod(stage)
    for name in (*runners, control):
        lost.bind(stage.namespace, name)

    lost.cut_off()
    eventually(lambda: control not in left(stage))

    assert left(stage) == runners
    eventually(lambda: lost.taints() == [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")])
    eventually(lambda: (lost.ready(), healthy.ready(), healthy.taints()) == ("Unknown", "True", []))
    assert not any(tolerates(stage, name, UNREACHABLE, "NoSchedule") for name in runners)

    lost.beat()
    eventually(lambda: lost.taints() == [])
    assert left(stage) == runners


def test_no_pod_is_placed_on_a_node_that_is_lost(stage: Stage) -> None:
    """The scheduler reads the taints with the effect NoSchedule. Taints with NoExecute only are tolerated."""
    stage.pool(replicas=1)
    kept(stage)
    (name,) = stage.pods()
    placed = {
        (key, effect): tolerates(stage, name, key, effect)
        for key in (UNREACHABLE, NOT_READY)
        for effect in ("NoSchedule", "PreferNoSchedule", "NoExecute")
    }
    assert {taint for taint, tolerated in placed.items() if tolerated} == {
        (UNREACHABLE, "NoExecute"),
        (NOT_READY, "NoExecute"),
    }


def test_an_operators_own_taint_still_evicts_runner_pods(stage: Stage, nodes: tuple[LiveNode, LiveNode]) -> None:
    tainted, other = nodes
    stage.pool(replicas=2)
    kept(stage)
    there, elsewhere = sorted(stage.pods())
    tainted.bind(stage.namespace, there)
    other.bind(stage.namespace, elsewhere)
    tainted.taint("example.com/maintenance", "NoExecute")
    eventually(lambda: there not in left(stage))
    assert left(stage) == {elsewhere}


def test_busy_pod_that_a_taint_evicts_is_told_with_who_did_it(
    stage: Stage, github: StubGitHub, nodes: tuple[LiveNode, LiveNode]
) -> None:
    tainted, _ = nodes
    github.job = ("queued", None, None)
    stage.pool(replicas=1)
    kept(stage)
    (name,) = stage.pods()
    uid = stage.pods()[name].uid
    stage.job(7, state="running")
    stage.claim(name, job_id=7, state="executing", runner=RUNNER)
    tainted.bind(stage.namespace, name)
    tainted.taint("example.com/maintenance", "NoExecute")
    eventually(lambda: name not in left(stage))
    stage.kube.request(  # be the kubelet
        "DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{name}", query={"gracePeriodSeconds": 0}
    )

    pods_changed.run(namespace=stage.namespace, gone=[uid])
    for message in stage.outbox.take("ostler.pod_gone"):
        pod_gone.run(**message)
    for message in stage.outbox.take("ostler.pod_events"):
        app.tasks["ostler.pod_events"].run(**message)

    told = describe(transaction(stage.rt.engine, lambda db: pod_ends.read(db, uid)))
    assert told == (
        f"the Pod is gone; event TaintManagerEviction by taint-eviction-controller: Marking for deletion Pod "
        f"{stage.namespace}/{name}"
    )
