"""The chart's admission policy on a real API server: it refuses only the forbidden deletions."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, object_path
from k8s_adapters.calls.retry import answer_of
from k8s_adapters.cluster.admission import COLLECTORS
from k8s_adapters.names import OWNER_LABEL, POOL_LABEL
from lab.manifests import Kinds
from ostler.errors import Forbidden, Invalid, UpstreamError
from rules.upstream.retry import ONCE
from tests.guard import collector_policy, guarded, of_the_chart

KUBE_SYSTEM = "system:serviceaccount:kube-system:"
COLLECTOR = COLLECTORS[0]
STATEFUL_SETS = KUBE_SYSTEM + "statefulset-controller"
"""The controller that deletes a Pod after its StatefulSet was scaled down, or when the Pod is over."""
OTHERS = ("namespace-controller", "pod-garbage-collector", "node-controller")


@pytest.fixture(scope="module")
def place(admin: KubeClient) -> Iterator[str]:
    """A namespace of runners with the policy."""
    name = f"guarded-{time.time_ns():x}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    # It has this right where its controllers have no credentials of their own.
    group, called = "rbac.authorization.k8s.io", {"name": "controllers", "namespace": name}
    rules = [{"apiGroups": [""], "resources": ["pods", "serviceaccounts"], "verbs": ["delete"]}]
    subjects = [{"apiGroup": group, "kind": "User", "name": each} for each in (COLLECTORS[1], STATEFUL_SETS)]
    role = {"apiGroup": group, "kind": "Role", "name": called["name"]}
    for each in ({"kind": "Role", "rules": rules}, {"kind": "RoleBinding", "roleRef": role, "subjects": subjects}):
        Kinds(admin).apply({"apiVersion": f"{group}/v1", "metadata": called, **each})
    with guarded(admin, name):
        yield name
    admin.request("DELETE", f"/api/v1/namespaces/{name}")


def make(admin: KubeClient, namespace: str, kind: str, *, labels: dict[str, str], phase: str | None = None) -> str:
    """Create a Pod or a ServiceAccount and return its path."""
    body: Json = {"metadata": {"generateName": "small-", "labels": labels}}
    if kind == "pods":
        body["spec"] = {"containers": [{"name": "runner", "image": "runner:1"}], "automountServiceAccountToken": False}
    made = admin.request("POST", object_path(kind, namespace=namespace), body=body)
    path = object_path(kind, namespace=namespace, name=made["metadata"]["name"])
    if phase is not None:
        admin.request("PATCH", f"{path}/status", body={"status": {"phase": phase}}, content_type=MERGE_PATCH)
    return path


def refusal(admin: KubeClient, path: str, *, who: str) -> str | None:
    """Return the reason why the policy refuses a deletion, by a dry run, or None if it is allowed."""
    try:
        admin.request("DELETE", path, query={"dryRun": "All"}, body={"dryRun": ["All"]}, impersonate=who)
    except (Forbidden, Invalid) as error:
        answer = answer_of(error)
        assert answer is not None
        return answer.message
    return None


@pytest.mark.parametrize("who", [*COLLECTORS, STATEFUL_SETS])
@pytest.mark.parametrize("phase", [None, "Pending", "Running", "Unknown"])
@pytest.mark.parametrize("stamped", [True, False], ids=["stamped", "unstamped"])
def test_the_collector_is_refused_a_runner_pod_that_is_not_over(
    admin: KubeClient, place: str, phase: str | None, who: str, *, stamped: bool
) -> None:
    labels = {POOL_LABEL: "small"} | ({OWNER_LABEL: "1001"} if stamped else {})
    said = refusal(admin, make(admin, place, "pods", labels=labels, phase=phase), who=who)
    assert said is not None
    assert "is not over: only Ostler may delete it" in said


def test_the_collector_is_refused_the_account_of_a_runner(admin: KubeClient, place: str) -> None:
    path = make(admin, place, "serviceaccounts", labels={POOL_LABEL: "small"})
    said = refusal(admin, path, who=COLLECTOR)
    assert said is not None
    assert "is deleted by Ostler, after its Pod" in said


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_collector_gets_a_runner_pod_that_is_over(admin: KubeClient, place: str, phase: str) -> None:
    assert refusal(admin, make(admin, place, "pods", labels={POOL_LABEL: "small"}, phase=phase), who=COLLECTOR) is None


@pytest.mark.parametrize("kind", ["pods", "serviceaccounts"])
def test_what_is_no_runners_is_nothing_to_the_policy(admin: KubeClient, place: str, kind: str) -> None:
    assert refusal(admin, make(admin, place, kind, labels={"app": "other"}), who=COLLECTOR) is None


@pytest.mark.parametrize("kind", ["pods", "serviceaccounts"])
def test_another_namespace_is_nothing_to_the_policy(admin: KubeClient, namespace: str, place: str, kind: str) -> None:
    assert place != namespace
    assert refusal(admin, make(admin, namespace, kind, labels={POOL_LABEL: "small"}), who=COLLECTOR) is None


@pytest.mark.parametrize("who", ["admin", *(KUBE_SYSTEM + other for other in OTHERS)])
def test_nobody_else_is_refused(admin: KubeClient, place: str, who: str) -> None:
    path = make(admin, place, "pods", labels={POOL_LABEL: "small"}, phase="Running")
    said = refusal(admin, path, who=who)
    # Who has no right to delete Pods is refused for that alone.
    assert said is None or "cannot delete resource" in said


def test_a_namespace_that_is_deleted_takes_its_runners(admin: KubeClient, namespace: str) -> None:
    """The result is the same if the namespace controller is refused, as in a controller manager without credentials."""
    with guarded(admin, namespace):
        path = make(admin, namespace, "pods", labels={POOL_LABEL: "small"}, phase="Running")
        held = {"metadata": {"finalizers": ["example.com/held"]}}
        admin.request("PATCH", path, body=held, content_type=MERGE_PATCH)
        assert refusal(admin, path, who=COLLECTOR) is not None
        admin.request("DELETE", f"/api/v1/namespaces/{namespace}")
        deadline = time.monotonic() + 60
        while (said := refusal(admin, path, who=COLLECTOR)) is not None:
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        held["metadata"]["finalizers"] = []
        admin.request("PATCH", path, body=held, content_type=MERGE_PATCH)


def test_the_expressions_pass_the_type_check(admin: KubeClient, namespace: str) -> None:
    kinds = Kinds(admin)
    with guarded(admin, namespace):
        policy = collector_policy(namespace)[0]
        deadline = time.monotonic() + 60
        path = f"{kinds.collection(policy)}/{policy['metadata']['name']}"
        while "typeChecking" not in (status := admin.request("GET", path).get("status") or {}):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert status["typeChecking"].get("expressionWarnings") is None


def evict(admin: KubeClient, path: str) -> int:
    """Request an eviction, as `kubectl drain` does, and return the status of the answer (201 if it is allowed)."""
    name = path.rpartition("/")[2]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    try:
        admin.request("POST", f"{path}/eviction", body=body, policy=ONCE)
    except UpstreamError as error:
        answer = answer_of(error)
        assert answer is not None
        return answer.status
    return 201


def test_an_eviction_of_a_busy_pod_is_told_to_wait_and_one_of_an_idle_pod_goes(
    admin: KubeClient, namespace: str
) -> None:
    """No runner Pod is ever Ready, so the budget counts none as healthy and never has one to spare."""
    kinds = Kinds(admin)
    (budget,) = of_the_chart(namespace, ["PodDisruptionBudget"])
    kinds.apply(budget)
    owned = {POOL_LABEL: "small", OWNER_LABEL: "1001"}
    busy = make(admin, namespace, "pods", labels=owned, phase="Running")
    over = make(admin, namespace, "pods", labels=owned, phase="Succeeded")
    idle = make(admin, namespace, "pods", labels={POOL_LABEL: "small"}, phase="Running")
    path = f"{kinds.collection(budget)}/{budget['metadata']['name']}"
    deadline = time.monotonic() + 60
    while not (admin.request("GET", path).get("status") or {}).get("observedGeneration"):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    assert [evict(admin, each) for each in (busy, over, idle)] == [429, 201, 201]
    assert [evict(admin, busy), admin.request("GET", busy)["metadata"].get("deletionTimestamp")] == [429, None]
