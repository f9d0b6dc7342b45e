"""Pods that a worker may create under the chart's policy, on a real API server with the worker's identity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from k8s_adapters.calls.client import Json, KubeClient, object_path
from k8s_adapters.calls.refusals import refusal_of
from k8s_adapters.cluster.admission import refuses_other_pods
from k8s_adapters.names import POOL_LABEL, RUNNER_LABEL
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.runners.owners.stateful_set import build_stateful_set
from k8s_adapters.runners.runners import build_pod
from lab import helm
from lab.manifests import Kinds
from ostler.errors import UpstreamError
from rules.upstream.retry import ONCE
from tests.contract.chart.cast import Cast
from tests.guard import POLICY
from tests.waiting import eventually

NAME = "small-0000000a"
SECRET: dict[str, Json] = {
    "a volume": {"volumes": [{"name": "s", "secret": {"secretName": "s"}}]},
    "a projected volume": {"volumes": [{"name": "s", "projected": {"sources": [{"secret": {"name": "s"}}]}}]},
    "a CSI volume": {"volumes": [{"name": "s", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]},
    "the environment": {"containers": [{"name": "runner", "envFrom": [{"secretRef": {"name": "s"}}]}]},
    "a variable": {
        "containers": [
            {"name": "runner", "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
        ]
    },
    "an init container": {
        "initContainers": [{"name": "first", "image": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]
    },
    "a sidecar": {"containers": [{"name": "cache", "image": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]},
}
NO_SECRET: Json = {
    "imagePullSecrets": [{"name": "registry"}],
    "initContainers": [{"name": "first", "image": "i", "env": [{"name": "A", "value": "b"}]}],
    "containers": [
        {
            "name": "runner",
            "envFrom": [{"configMapRef": {"name": "c"}}],
            "env": [
                {"name": "A", "value": "b"},
                {"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
        }
    ],
    "volumes": [
        {"name": "c", "configMap": {"name": "c"}},
        {"name": "e", "emptyDir": {}},
        {"name": "d", "csi": {"driver": "d"}},
        {"name": "p", "projected": {"sources": [{"configMap": {"name": "c"}}]}},
        {"name": "pvc", "persistentVolumeClaim": {"claimName": "cache"}},
    ],
}


def runner(namespace: str, overlay: Json | None = None, **changes: Any) -> Json:
    """Return a runner Pod as Ostler builds it from a pool's overlay. `changes` replace fields of its spec."""
    spec = {"image": "i", "runnerLabels": ["linux"], "podTemplate": {"spec": overlay or {}}}
    pool = read_pool({"metadata": {"uid": "u", "name": "small", "namespace": namespace}, "spec": spec})
    assert pool.problem is None, pool.problem
    pod = build_pod(
        pool=pool, name=NAME, attempt="a", dispatch_url="https://web/", audience="a", dispatch_ca="ostler-polls-ca"
    )
    pod["spec"] |= changes
    return pod


def stateful(namespace: str, overlay: Json | None = None, **changes: Any) -> Json:
    """Return the StatefulSet of a runner. `changes` replace fields of the spec of its template."""
    spec: Json = {
        "image": "i",
        "runnerLabels": ["linux"],
        "podTemplate": {"spec": overlay or {}},
        "workload": "StatefulSet",
        "volumes": {"claims": [{"name": "cache", "mountPath": "/cache", "storage": "1Gi"}]},
    }
    pool = read_pool({"metadata": {"uid": "u", "name": "small", "namespace": namespace}, "spec": spec})
    assert pool.problem is None, pool.problem
    pod = build_pod(pool=pool, name=f"{NAME}-0", attempt="a", dispatch_url="https://web/", audience="a")
    body = build_stateful_set(pool=pool, pod=pod)
    body["spec"]["template"]["spec"] |= changes
    return body


def test_worker_may_create_a_pod_with_the_sidecar_of_container_jobs(cast: Cast, worker: KubeClient) -> None:
    spec = {"image": "i", "runnerLabels": ["linux"], "containers": {"mode": "kubernetes"}}
    pool = read_pool({"metadata": {"uid": "u", "name": "small", "namespace": cast.runners}, "spec": spec})
    pod = build_pod(
        pool=pool, name=NAME, attempt="a", dispatch_url="https://web/", audience="a", hooks_image="ostler:1"
    )
    assert refusal(worker, pod) is None


def refusal(client: KubeClient, pod: Json) -> str | None:
    """Return the reason why a creation is refused, by a dry run, or None if it would succeed."""
    namespace = pod["metadata"]["namespace"]
    path = object_path("pods", namespace=namespace)
    if pod["kind"] == "StatefulSet":
        path = object_path("statefulsets", namespace=namespace, group="apps")
    try:
        client.request("POST", path, body=pod, query={"dryRun": "All"}, policy=ONCE)
    except UpstreamError as error:
        if (found := refusal_of(error)) is None:
            raise
        return found.text
    return None


@pytest.fixture(scope="module")
def worker(cast: Cast) -> KubeClient:
    """A worker under the policy, with a ServiceAccount for its Pod and a ServiceAccount of another owner."""
    for name in (NAME, "deployer", "deployer-0000000a"):
        body: Json = {"metadata": {"name": name}}
        cast.admin.request("POST", object_path("serviceaccounts", namespace=cast.runners), body=body)
    found = cast.clients["worker"]
    eventually(lambda: bool(refusal(found, runner(cast.runners, serviceAccountName="deployer"))), within=60)
    return found


@contextmanager
def allowing_secrets(cast: Cast) -> Iterator[None]:
    """Apply the policy of a release with runners.allowSecrets, and restore the old policy at the end."""
    values = {"runners": {"namespace": cast.runners, "create": False, "allowSecrets": True}}
    rendered = helm.render(values=values, namespace=cast.release)
    names = {each["metadata"]["name"] for each in rendered if each["kind"] in POLICY}
    before = [each for each in cast.identities.manifests if each["kind"] in POLICY]
    assert names == {each["metadata"]["name"] for each in before}
    for each in rendered:
        if each["kind"] in POLICY:
            Kinds(cast.admin).apply(each)
    yield
    for each in before:
        Kinds(cast.admin).apply(each)


def test_a_worker_creates_a_runner_pod(cast: Cast, worker: KubeClient) -> None:
    assert refusal(worker, runner(cast.runners)) is None


def test_a_worker_creates_what_an_overlay_without_secrets_asks_for(cast: Cast, worker: KubeClient) -> None:
    assert refusal(worker, runner(cast.runners, NO_SECRET)) is None


def test_a_worker_creates_the_stateful_set_of_a_runner(cast: Cast, worker: KubeClient) -> None:
    assert refusal(worker, stateful(cast.runners)) is None
    assert refusal(worker, stateful(cast.runners, NO_SECRET)) is None


@pytest.mark.parametrize("way", SECRET)
def test_no_secret_gets_into_the_template_of_a_stateful_set(cast: Cast, worker: KubeClient, way: str) -> None:
    said = refusal(worker, stateful(cast.runners, SECRET[way]))
    assert said is not None
    assert "a Secret" in said


@pytest.mark.parametrize("account", ["deployer", "default", NAME])
def test_the_template_of_a_stateful_set_has_the_account_of_its_pod(
    cast: Cast, worker: KubeClient, account: str
) -> None:
    said = refusal(worker, stateful(cast.runners, serviceAccountName=account))
    assert said is not None
    assert f"Pod {NAME}-0 must have the ServiceAccount with the name of the Pod, not {account}" in said


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 2},
        {"replicas": 0},
        {"ordinals": {"start": 7}},
        {"template": "another pool"},
        {"template": "no pool"},
    ],
    ids=lambda change: "-".join(f"{key} {value}" for key, value in change.items()),
)
def test_a_stateful_set_of_a_worker_makes_one_pod_of_its_pool(cast: Cast, worker: KubeClient, change: Json) -> None:
    body = stateful(cast.runners)
    if "template" in change:
        pool = {} if change["template"] == "no pool" else {POOL_LABEL: "another"}
        labels = {**body["spec"]["template"]["metadata"]["labels"]}
        del labels[POOL_LABEL]
        body["spec"]["template"]["metadata"]["labels"] = {**labels, **pool}
        body["spec"]["selector"]["matchLabels"] = {RUNNER_LABEL: NAME}
    else:
        body["spec"] |= change
    said = refusal(worker, body)
    assert said is not None
    assert "must have one replica with the label ostler.dev/pool of its own" in said


def test_a_worker_cannot_name_a_stateful_set_after_another_account(cast: Cast, worker: KubeClient) -> None:
    body = stateful(cast.runners, serviceAccountName="deployer-0")
    body["metadata"]["name"] = "deployer"
    assert "named after the pool in its label" in (refusal(worker, body) or "")


@pytest.mark.parametrize("account", ["deployer", "default", ""])
def test_a_worker_cannot_use_another_service_account(cast: Cast, worker: KubeClient, account: str) -> None:
    said = refusal(worker, runner(cast.runners, serviceAccountName=account))
    assert said is not None
    assert f"Pod {NAME} must have the ServiceAccount with the name of the Pod, not {account or 'default'}" in said


@pytest.mark.parametrize("name", ["deployer", "deployer-0000000a"])
def test_a_worker_cannot_name_a_pod_after_another_service_account(cast: Cast, worker: KubeClient, name: str) -> None:
    pod = runner(cast.runners, serviceAccountName=name)
    pod["metadata"]["name"] = name
    said = refusal(worker, pod)
    assert said is not None
    assert "named after the pool in its label" in said
    del pod["metadata"]["labels"][POOL_LABEL]
    assert "named after the pool in its label" in (refusal(worker, pod) or "")


@pytest.mark.parametrize("way", SECRET)
def test_no_secret_gets_into_a_pod(cast: Cast, worker: KubeClient, way: str) -> None:
    said = refusal(worker, runner(cast.runners, SECRET[way]))
    assert said is not None
    assert "a Secret" in said
    assert "remove it from the podTemplate of pool small, or set runners.allowSecrets of the chart" in said


def test_no_volume_of_another_kind_gets_into_a_pod(cast: Cast, worker: KubeClient) -> None:
    """An example is the volume of a storage system: each kind has its own field for a Secret."""
    azure = {"name": "s", "azureFile": {"secretName": "s", "shareName": "s"}}
    pod = runner(cast.runners)
    pod["spec"]["volumes"].append(azure)
    said = refusal(worker, pod)
    assert said is not None
    assert "has a volume of a kind that no podTemplate may have" in said


def test_an_administrator_is_refused_nothing(cast: Cast, worker: KubeClient) -> None:
    assert refusal(worker, runner(cast.runners, SECRET["a volume"])) is not None
    assert refusal(cast.admin, runner(cast.runners, SECRET["a volume"], serviceAccountName="deployer")) is None


def test_secrets_are_allowed_where_the_chart_says_so_and_nothing_else_is(cast: Cast, worker: KubeClient) -> None:
    with allowing_secrets(cast):
        eventually(lambda: refusal(worker, runner(cast.runners, SECRET["a volume"])) is None, within=60)
        assert [refusal(worker, runner(cast.runners, each)) for each in SECRET.values()] == [None] * len(SECRET)
        assert refusal(worker, runner(cast.runners, serviceAccountName="deployer")) is not None
    eventually(lambda: refusal(worker, runner(cast.runners, SECRET["a volume"])) is not None, within=60)


def test_doctor_sees_the_policy_as_a_worker_and_as_an_administrator(cast: Cast, worker: KubeClient) -> None:
    for client in (worker, cast.admin):
        found = refuses_other_pods(client, cast.runners)
        assert (found.refused, found.cure) == (True, None)
        assert f"the API server refuses {cast.identities.user('worker')}" in found.why


def test_doctor_sees_that_a_worker_may_create_any_pod(cast: Cast, namespace: str) -> None:
    """The worker's role exists, but the policy does not."""
    for each in cast.identities.manifests:
        if each["kind"] in {"Role", "RoleBinding"} and each["metadata"]["name"].endswith("-worker"):
            Kinds(cast.admin).apply(each | {"metadata": {"name": each["metadata"]["name"], "namespace": namespace}})
    eventually(lambda: refuses_other_pods(cast.admin, namespace).refused is not None, within=60)
    found = refuses_other_pods(cast.admin, namespace)
    assert found.refused is False
    assert f"may create any Pod in {namespace}" in found.why
    assert "admissionPolicy.enabled" in (found.cure or "")


def test_doctor_does_not_know_what_it_may_not_ask(cast: Cast, namespace: str) -> None:
    assert refuses_other_pods(cast.clients["watch"], cast.runners).refused is None
    assert "no worker has a role" in refuses_other_pods(cast.admin, namespace).why


def test_the_expressions_pass_the_type_check(cast: Cast, worker: KubeClient) -> None:
    assert refusal(worker, runner(cast.runners)) is None
    (policy,) = [
        each
        for each in cast.identities.manifests
        if each["kind"] == POLICY[0] and each["metadata"]["name"].endswith("-creations")
    ]
    path = f"{Kinds(cast.admin).collection(policy)}/{policy['metadata']['name']}"
    eventually(lambda: "typeChecking" in (cast.admin.request("GET", path).get("status") or {}), within=60)
    assert cast.admin.request("GET", path)["status"]["typeChecking"].get("expressionWarnings") is None
