"""Pools on a real API server."""

from __future__ import annotations

import pytest

from cli.output import author
from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from k8s_adapters.pools.crd import apply_crd
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.pools.pools import (
    create_pool,
    delete_pool,
    get_pool,
    list_pools,
    patch_pool_replicas,
    pool_path,
    scale_pool,
)
from lab.bootstrap import POOLS, put_pools_in_place
from ostler.errors import Conflict, Gone, Invalid
from tests.contract.k8s.transport import FaultyTransport

Faulty = tuple[KubeClient, FaultyTransport]

SPEC = {"image": "runner:1", "runnerLabels": ["linux", "x64"]}


def test_a_pool_with_the_least_spec_gets_the_defaults(admin: KubeClient, namespace: str) -> None:
    create_pool(admin, namespace=namespace, name="small", spec=SPEC)

    (pool,) = list_pools(admin, namespace=namespace)

    assert (pool.name, pool.namespace, pool.image) == ("small", namespace, "runner:1")
    assert pool.labels == ("linux", "x64")
    assert (pool.runner_group, pool.replicas, pool.routing_priority) == (1, 0, 0)
    assert (pool.max_surge, pool.replicas_writer) == (None, None)
    assert (pool.vcpu_millicores, pool.memory_mib) == (2000, 4096)
    assert (pool.ephemeral_storage_mib, pool.ephemeral_storage_limit_mib) == (10 * 1024, None)
    assert (pool.allowed_accounts, pool.allowed_repositories, pool.allow_forks) == ((), (), False)
    assert pool.problem is None
    assert not pool.terminating


def test_quantities_of_all_forms_are_read(admin: KubeClient, namespace: str) -> None:
    sizes = {"cpu": "1500m", "memory": "1G", "ephemeralStorage": "2G", "ephemeralStorageLimit": 2**32}
    spec = {**SPEC, "resources": sizes, "allowedAccounts": [2**40]}
    pool = create_pool(admin, namespace=namespace, name="odd", spec=spec)
    assert (pool.vcpu_millicores, pool.memory_mib) == (1500, 954)
    assert (pool.ephemeral_storage_mib, pool.ephemeral_storage_limit_mib) == (1908, 4096)
    assert pool.allowed_accounts == (2**40,)


@pytest.mark.parametrize("group", [7, "Large runners"])
def test_a_runner_group_is_a_number_or_a_name(admin: KubeClient, namespace: str, group: int | str) -> None:
    pool = create_pool(admin, namespace=namespace, name="p", spec={**SPEC, "runnerGroup": group, "allowForks": True})
    assert (pool.runner_group, pool.allow_forks, pool.problem) == (group, True, None)


def test_an_overlay_that_may_not_be_is_a_problem_of_its_pool_alone(admin: KubeClient, namespace: str) -> None:
    overlay = {"spec": {"hostNetwork": True}}
    create_pool(admin, namespace=namespace, name="bad", spec={**SPEC, "podTemplate": overlay})
    create_pool(admin, namespace=namespace, name="good", spec=SPEC)

    problems = {pool.name: pool.problem for pool in list_pools(admin, namespace=namespace)}

    assert problems == {"good": None, "bad": "podTemplate.spec.hostNetwork must not be set"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"resources": {"cpu": "10000000000000000"}}, "at most 2,147,483,648 millicores or MiB"),
        ({"resources": {"memory": "1e5000"}}, "at most 2,147,483,648 millicores or MiB"),
        ({"provisioning": {"startTimeout": "99999999h"}}, "longer than a year"),
        ({"autoscaling": {"scaleDownDelay": "99999999h"}}, "longer than a year"),
        ({"maxJobDuration": "8761h"}, "longer than a year"),
        ({"podTemplate": {"metadata": {"labels": None}}}, "must not remove anything"),
        ({"podTemplate": {"spec": None}}, "must not remove anything"),
    ],
)
def test_what_no_reader_could_use_is_a_problem_of_its_pool_alone(
    admin: KubeClient, namespace: str, spec: dict[str, object], says: str
) -> None:
    pool = create_pool(admin, namespace=namespace, name="p", spec={**SPEC, **spec})
    assert says in (pool.problem or "")
    assert pool.pod_template is None


def test_all_of_a_spec_is_read(admin: KubeClient, namespace: str) -> None:
    spec = {
        **SPEC,
        "paused": True,
        "drainTimeout": "1h30m",
        "maxJobDuration": "1h1s",
        "startTarget": "90s",
        "autoscaling": {
            "enabled": True,
            "minWarm": 2,
            "maxReplicas": 9,
            "scaleDownDelay": "90s",
            "targetBusyPercent": 75,
        },
        "rollout": {"maxUnavailablePercent": 25, "maxSurge": 0},
        "provisioning": {"startTimeout": "2m", "maxConcurrent": 3},
        "podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}}},
    }
    pool = create_pool(admin, namespace=namespace, name="full", spec=spec)
    assert (pool.paused, pool.drain_timeout, pool.autoscaled) == (True, 5400, True)
    assert (pool.max_job_seconds, pool.start_target, pool.max_surge) == (3601, 90, 0)
    assert (pool.min_warm, pool.max_replicas, pool.scale_down_delay, pool.target_busy_percent) == (2, 9, 90, 75)
    assert (pool.max_unavailable_percent, pool.start_timeout, pool.max_concurrent) == (25, 120, 3)
    assert pool.pod_template == {"spec": {"nodeSelector": {"disk": "ssd"}}}
    assert (pool.problem, pool.has_finalizer, pool.deleted_at) == (None, False, None)
    assert pool.template_hash != create_pool(admin, namespace=namespace, name="plain", spec=SPEC).template_hash


@pytest.mark.parametrize(
    "spec",
    [
        {"image": "runner:1"},
        {"runnerLabels": ["a"]},
        {**SPEC, "runnerLabels": []},
        {**SPEC, "replicas": -1},
        pytest.param({**SPEC, "runnerGroup": 0}, marks=pytest.mark.cluster),  # CEL rules are checked by a real server
        pytest.param({**SPEC, "runnerGroup": ""}, marks=pytest.mark.cluster),
        {**SPEC, "runnerGroup": [1]},
        {**SPEC, "allowForks": "yes"},
        {**SPEC, "security": {"podSecurity": "root"}},
        pytest.param({**SPEC, "security": {"allowPrivilegeEscalation": True}}, marks=pytest.mark.cluster),
        {**SPEC, "runnerLabels": [str(number) for number in range(101)]},
    ],
)
def test_a_spec_against_the_schema_is_refused(admin: KubeClient, namespace: str, spec: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        create_pool(admin, namespace=namespace, name="wrong", spec=spec)


@pytest.mark.cluster  # CEL
@pytest.mark.parametrize("given", [{}, {"security": {}}, {"security": {"podSecurity": "baseline"}}])
def test_level_of_a_pool_cannot_be_changed(admin: KubeClient, namespace: str, given: Json) -> None:
    create_pool(admin, namespace=namespace, name="p", spec={**SPEC, **given})
    path = pool_path(namespace, "p")
    body = {"spec": {"security": {"podSecurity": "privileged"}}}
    with pytest.raises(Invalid):
        admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    with pytest.raises(Invalid):  # a removed field has its default again
        admin.request("PATCH", path, body={"spec": {"security": {"podSecurity": "x"}}}, content_type=MERGE_PATCH)
    if given.get("security"):
        with pytest.raises(Invalid):
            admin.request("PATCH", path, body={"spec": {"security": None}}, content_type=MERGE_PATCH)
    allowed = {"spec": {"security": {"allowForks": True}, "allowForks": True}}
    assert read_pool(admin.request("PATCH", path, body=allowed, content_type=MERGE_PATCH)).elevated_forks


def test_replicas_can_be_changed_without_changing_the_template(admin: KubeClient, namespace: str) -> None:
    before = create_pool(admin, namespace=namespace, name="p", spec=SPEC)
    after = patch_pool_replicas(admin, namespace=namespace, name="p", replicas=7)
    assert after.replicas == 7
    assert after.template_hash == before.template_hash
    aimed = create_pool(admin, namespace=namespace, name="r", spec={**SPEC, "startTarget": "1m"})
    assert aimed.template_hash == before.template_hash
    other = create_pool(admin, namespace=namespace, name="q", spec={**SPEC, "image": "runner:2"})
    assert other.template_hash != before.template_hash


def test_a_deleted_pool_is_gone_and_deleting_it_again_succeeds(admin: KubeClient, namespace: str) -> None:
    create_pool(admin, namespace=namespace, name="p", spec=SPEC)
    delete_pool(admin, namespace=namespace, name="p")
    delete_pool(admin, namespace=namespace, name="p")
    assert get_pool(admin, namespace=namespace, name="p") is None
    with pytest.raises(Gone):
        patch_pool_replicas(admin, namespace=namespace, name="p", replicas=1)


def test_a_second_pool_of_the_same_name_is_refused(admin: KubeClient, namespace: str) -> None:
    create_pool(admin, namespace=namespace, name="p", spec=SPEC)
    with pytest.raises(Conflict):
        create_pool(admin, namespace=namespace, name="p", spec=SPEC)


def test_a_pool_whose_create_lost_its_reply_is_found_again(faulty: Faulty, namespace: str) -> None:
    client, faults = faulty
    faults.lose_reply("POST")
    pool = create_pool(client, namespace=namespace, name="p", spec=SPEC)
    assert [each.uid for each in list_pools(client, namespace=namespace)] == [pool.uid]


def test_the_definition_can_be_applied_again(admin: KubeClient) -> None:
    apply_crd(admin)
    apply_crd(admin)


def test_objects_of_the_demo_name_the_user_and_those_of_a_worker_name_ostler(admin: KubeClient, namespace: str) -> None:
    put_pools_in_place(admin, namespace=namespace, pools=POOLS[:1])
    found = get_pool(admin, namespace=namespace, name=POOLS[0].name)
    assert found is not None
    assert found.writers == (f"ostler-cli:{author().who}",)
    scaled = scale_pool(admin, found, replicas=found.replicas + 1)
    assert set(scaled.writers) == {*found.writers, "ostler"}
    assert scaled.replicas_writer is None
