"""Rules that only the real API server checks: CEL rules, the scale subresource, Pod Security."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, make_client, object_path
from k8s_adapters.calls.retry import answer_of
from k8s_adapters.pools.pools import create_pool, list_pools
from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.runners import create_runner
from lab.control_plane import ClusterAccess
from ostler.errors import Invalid
from tests.waiting import eventually

SPEC = {"image": "runner:1", "runnerLabels": ["linux", "x64"]}
CONTAINERS = {"mode": "kubernetes", "vcpu": "1500m", "memoryMib": 2048}
SETS = {"workload": "StatefulSet"}
LIFE = {"lifecycle": "persistent", "registration": {"organization": "acme"}}
CLAIM = {"name": "cache", "mountPath": "/cache", "storage": "1Gi"}
VOLUMES = {"claims": [CLAIM]}
OVERLAY = {
    "metadata": {"labels": {"team": "web"}},
    "spec": {
        "hostUsers": False,
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "ci", "operator": "Exists"}],
        "containers": [
            {"name": "runner", "env": [{"name": "HTTP_PROXY", "value": "http://proxy"}]},
            {"name": "cache", "image": "cache:1"},
        ],
        "initContainers": [{"name": "warm-up", "image": "cache:1"}],
        "volumes": [{"name": "work", "emptyDir": {}}],
    },
}


@pytest.fixture
def api(real_control_plane: ClusterAccess) -> Iterator[KubeClient]:
    client = make_client(kubeconfig=str(real_control_plane.kubeconfig))
    yield client
    client.close()


def all_containers(pod: Json) -> list[Json]:
    """Return the containers and the init containers of a Pod."""
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]


@pytest.fixture
def own(api: KubeClient) -> Iterator[str]:
    """A namespace with the Pod Security level restricted."""
    name = f"test-{secrets.token_hex(6)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name, "labels": labels}})
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"lifecycle": "persistent", "registration": {"organization": "acme"}, "allowedRepositories": ["acme/shop"]},
            "allowedRepositories does not work with lifecycle persistent",
        ),
        ({"resources": {"cpu": "plenty"}}, "quantity"),
        ({"resources": {"memory": "4 GB"}}, "quantity"),
        ({"resources": {"cpu": "0"}}, "quantity"),
        ({"resources": {"ephemeralStorage": "much"}}, "quantity"),
        ({"resources": {"ephemeralStorageLimit": "0"}}, "quantity"),
        ({"resources": {"ephemeralStorageLimit": "9Gi"}}, "at least resources.ephemeralStorage"),
        ({"resources": {"ephemeralStorage": 2048, "ephemeralStorageLimit": 1024}}, "at least"),
        ({"resources": {"memory": "-1Gi"}}, "quantity"),
        ({"autoscaling": {"enabled": True, "minWarm": 5, "maxReplicas": 4}}, "minWarm is more than"),
        ({"provisioning": {"startTimeout": "soon"}}, "startTimeout"),
        ({"drainTimeout": ""}, "drainTimeout"),
        ({"maxJobDuration": "59s"}, "at least one minute"),
        ({"maxJobDuration": "long"}, "maxJobDuration"),
        ({"runnerLabels": ["a", "a"]}, "Duplicate"),
        ({"containers": {}}, "containers.mode"),
        ({"containers": {"mode": "docker"}}, 'supported values: "kubernetes"'),
        ({"containers": {"mode": "kubernetes", "vcpu": "plenty"}}, "must be a quantity of more than 0"),
        ({"containers": {"mode": "kubernetes", "vcpu": 0}}, "must be a quantity of more than 0"),
        ({"containers": {"mode": "kubernetes", "memoryMib": 63}}, "must be a number of MiB from 64"),
        ({"containers": {"mode": "kubernetes", "memoryMib": "1Gi"}}, "memoryMib"),
        ({"workload": "Deployment"}, 'supported values: "Pod", "StatefulSet"'),
        ({"volumes": VOLUMES}, "volumes need workload StatefulSet: create another pool"),
        ({"workload": "Pod", "volumes": VOLUMES}, "volumes need workload StatefulSet"),
        ({**SETS, "containers": CONTAINERS}, "containers do not work with workload StatefulSet"),
        ({**SETS, "volumes": VOLUMES, "allowForks": True}, "allowForks needs volumes.reclaim Delete"),
        ({**SETS, "volumes": {"claims": []}}, "volumes.claims"),
        ({**SETS, "volumes": {"claims": [{**CLAIM, "storage": "0"}]}}, "must be a quantity of more than 0"),
        ({**SETS, "volumes": {"claims": [{**CLAIM, "mountPath": "cache"}]}}, "mountPath"),
        ({**SETS, "volumes": {"claims": [CLAIM, CLAIM]}}, "Duplicate"),
        ({"lifecycle": "forever"}, 'supported values: "ephemeral", "persistent"'),
        ({"lifecycle": "persistent"}, "lifecycle persistent needs registration"),
        ({"registration": {"organization": "acme"}}, "lifecycle ephemeral must not have it"),
        ({**LIFE, "registration": {}}, "registration needs exactly one of organization and repository"),
        (
            {**LIFE, "registration": {"organization": "acme", "repository": "acme/app"}},
            "registration needs exactly one of organization and repository",
        ),
        ({**LIFE, "registration": {"organization": "acme/app"}}, "spec.registration.organization in body should match"),
        ({**LIFE, "registration": {"repository": "acme"}}, "spec.registration.repository in body should match"),
        ({"maxRunnerAge": "2h"}, "maxRunnerAge needs lifecycle persistent: remove maxRunnerAge"),
        ({**LIFE, "maxRunnerAge": "59m59s"}, "must be at least one hour"),
        ({**LIFE, "maxRunnerAge": "a month"}, "spec.maxRunnerAge in body should match"),
        ({**LIFE, "containers": CONTAINERS}, "lifecycle persistent: remove containers"),
        ({**LIFE, "maxJobDuration": "1h"}, "remove maxJobDuration, and set timeout-minutes in the workflow"),
        ({**LIFE, "runnerGroup": 2}, "write the name into runnerGroup"),
        ({**LIFE, "runnerLabels": ["linux", "a,b"]}, "runnerLabels must have no commas"),
        ({**LIFE, "runnerLabels": ["a\nb"]}, "runnerLabels must have no commas and no line breaks"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_api_server(
    api: KubeClient, own: str, spec: dict[str, object], says: str
) -> None:
    with pytest.raises(Invalid) as refused:
        create_pool(api, namespace=own, name="bad", spec={**SPEC, **spec})
    answer = answer_of(refused.value)
    assert answer is not None
    assert says in answer.message


@pytest.mark.parametrize("name", ["a" * 55, "with.dots"])
def test_a_name_that_its_pods_cannot_have_is_refused(api: KubeClient, own: str, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        create_pool(api, namespace=own, name=name, spec=SPEC)
    answer = answer_of(refused.value)
    assert answer is not None
    assert "the name of a pool" in answer.message


def test_name_that_hook_pods_cannot_have_is_refused_with_container_jobs_alone(api: KubeClient, own: str) -> None:
    spec = {**SPEC, "containers": CONTAINERS}
    assert create_pool(api, namespace=own, name="a" * 46, spec=SPEC).problem is None
    assert create_pool(api, namespace=own, name="b" * 45, spec=spec).problem is None

    with pytest.raises(Invalid) as refused:
        create_pool(api, namespace=own, name="b" * 46, spec=spec)

    answer = answer_of(refused.value)
    assert answer is not None
    assert "with containers.mode kubernetes has at most 45 characters" in answer.message


@pytest.mark.parametrize(
    ("before", "change", "says"),
    [
        (SPEC, {"workload": "StatefulSet"}, "the workload of a pool cannot be changed: create another pool"),
        ({**SPEC, **SETS}, {"workload": "Pod"}, "the workload of a pool cannot be changed"),
        ({**SPEC, **SETS}, {"volumes": VOLUMES}, "volumes cannot be added to a pool or removed"),
        ({**SPEC, **SETS, "volumes": VOLUMES}, {"volumes": None}, "volumes cannot be added to a pool or removed"),
        (
            {**SPEC, **SETS, "volumes": {**VOLUMES, "reclaim": "Delete"}},
            {"volumes": {"reclaim": "Retain"}},
            "volumes.reclaim cannot be changed",
        ),
        (SPEC, LIFE, "the lifecycle of a pool cannot be changed: create another pool"),
        (
            {**SPEC, **LIFE, "maxRunnerAge": "1h", "runnerGroup": "builders"},
            {"lifecycle": "ephemeral", "registration": None, "maxRunnerAge": None},
            "the lifecycle of a pool cannot be changed",
        ),
        (
            {**SPEC, **LIFE},
            {"registration": {"organization": "other"}},
            "registration cannot be changed: create another pool",
        ),
    ],
    ids=[
        "to StatefulSet",
        "to Pod",
        "volumes added",
        "volumes removed",
        "reclaim",
        "to persistent",
        "to ephemeral",
        "registration",
    ],
)
def test_what_runners_of_a_living_pool_are_cannot_be_changed(
    api: KubeClient, own: str, before: Json, change: Json, says: str
) -> None:
    create_pool(api, namespace=own, name="p", spec=before)
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{own}/runnerpools/p"
    with pytest.raises(Invalid) as refused:
        api.request("PATCH", path, body={"spec": change}, content_type=MERGE_PATCH)
    answer = answer_of(refused.value)
    assert answer is not None
    assert says in answer.message


def test_name_that_no_stateful_set_can_have_is_refused(api: KubeClient, own: str) -> None:
    assert create_pool(api, namespace=own, name="a" * 43, spec={**SPEC, **SETS}).problem is None
    with pytest.raises(Invalid) as refused:
        create_pool(api, namespace=own, name="a" * 44, spec={**SPEC, **SETS})
    answer = answer_of(refused.value)
    assert answer is not None
    assert "with workload StatefulSet has at most 43 characters" in answer.message


@pytest.mark.parametrize("overlay", [None, OVERLAY])
def test_a_pod_of_a_stateful_set_is_admitted_under_the_restricted_level(
    api: KubeClient, own: str, overlay: Json | None
) -> None:
    spec = {**SPEC, **SETS, "volumes": VOLUMES, **({} if overlay is None else {"podTemplate": overlay})}
    pool = create_pool(api, namespace=own, name="a" * 43, spec=spec)
    assert pool.problem is None
    name = f"{pool.name}-0000000a-0"
    create_runner(api, pool=pool, name=name, attempt="a", dispatch_url="http://web/", audience="ostler-dispatch")
    pod = eventually(lambda: get_pod(api, namespace=own, name=name))
    assert pod is not None
    assert pod.attempt == "a"


def test_a_pool_is_scaled_by_its_subresource(api: KubeClient, own: str) -> None:
    create_pool(api, namespace=own, name="p", spec=SPEC)
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{own}/runnerpools/p/scale"
    api.request("PATCH", path, body={"spec": {"replicas": 3}}, content_type=MERGE_PATCH)
    (pool,) = list_pools(api, namespace=own)
    assert (pool.replicas, pool.generation) == (3, 2)


@pytest.mark.parametrize("containers", [{}, {"containers": CONTAINERS}], ids=["no containers", "containers"])
@pytest.mark.parametrize("assigned", [False, True], ids=["own user", "assigned user"])
@pytest.mark.parametrize("overlay", [None, OVERLAY])
def test_a_pod_of_ours_is_admitted_under_the_restricted_level(
    api: KubeClient, own: str, overlay: dict[str, object] | None, containers: dict[str, object], *, assigned: bool
) -> None:
    spec = {**SPEC, **({} if overlay is None else {"podTemplate": overlay}), "assignedUser": assigned, **containers}
    pool = create_pool(api, namespace=own, name="p", spec=spec)
    assert pool.problem is None
    made = create_runner(
        api,
        pool=pool,
        name="p-00000001",
        attempt="a",
        dispatch_url="http://web/",
        audience="ostler-dispatch",
        hooks_image="ostler:1",
    )
    assert made.uid
    pod = api.request("GET", object_path("pods", namespace=own, name="p-00000001"))
    assert ("runAsUser" in pod["spec"]["securityContext"]) is not assigned
    assert pod["spec"].get("hostUsers") is (None if overlay is None else False)
    # Admission adds no token to any container, and the API server accepts the sidecar as it was built.
    mounted = {each["name"]: {mount["name"] for mount in each.get("volumeMounts", ())} for each in all_containers(pod)}
    with_token = {name for name, names in mounted.items() if "ostler-hooks-token" in names}
    assert with_token == ({"hooks"} if containers else set())
    assert not any(name.startswith("kube-api-access") for names in mounted.values() for name in names)
