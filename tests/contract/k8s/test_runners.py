"""Creation and deletion of runners on a real API server, also with lost replies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kubernetes.utils.quantity import parse_quantity

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.calls.metadata import OF_POOLS, metadata_pages
from k8s_adapters.hooks.hook_rights import RBAC, build_role
from k8s_adapters.runners.pod_hash import pod_hash
from k8s_adapters.runners.pods import get_pod, list_pods
from k8s_adapters.runners.resources import Created, create_pod, create_service_account
from k8s_adapters.runners.runners import Deletion, build_pod, build_service_account, create_runner, delete_runner
from k8s_adapters.runners.stamps import stamp
from ostler.errors import Conflict, Forbidden, Gone, Invalid, RateLimited, Retryable
from rules.pools.pool_spec import HookPods, PoolSpec
from tests.contract.k8s.test_stamps import bind_to_a_node
from tests.contract.k8s.transport import FaultyTransport, MakeRunner
from tests.waiting import eventually

Faulty = tuple[KubeClient, FaultyTransport]
NAME = "pool-0000000a"


def pod_of(pool: PoolSpec, *, attempt: str = "a1") -> dict[str, object]:
    return build_pod(pool=pool, name=NAME, attempt=attempt, dispatch_url="http://web/", audience="ostler-dispatch")


def account_exists(client: KubeClient, namespace: str, name: str = NAME) -> bool:
    try:
        client.request("GET", object_path("serviceaccounts", namespace=namespace, name=name))
    except Gone:
        return False
    return True


def test_a_runner_is_a_pod_and_a_service_account_owned_by_the_pool(
    admin: KubeClient, namespace: str, pool: PoolSpec, make_runner: MakeRunner
) -> None:
    created = make_runner()

    seen = get_pod(admin, namespace=namespace, name=NAME)

    assert seen is not None
    assert seen.uid == created.uid
    assert (seen.pool, seen.stamp, seen.owner, seen.attempt) == ("pool", "0.0", None, "a1")
    assert seen.digest == pod_hash(pool, dispatch_url="http://web/", audience="ostler-dispatch")
    assert (seen.phase, seen.terminating, seen.is_terminal) == ("Pending", False, False)
    for kind in ("pods", "serviceaccounts"):
        metadata = admin.request("GET", object_path(kind, namespace=namespace, name=NAME))["metadata"]
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == [pool.uid]


def test_only_the_poller_has_the_token_and_nothing_may_gain_privileges(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    make_runner()

    spec = admin.request("GET", object_path("pods", namespace=namespace, name=NAME))["spec"]

    mounts = {each["name"]: [mount["name"] for mount in each["volumeMounts"]] for each in spec["containers"]}
    assert mounts == {"poller": ["jit", "ostler-scripts", "token"], "runner": ["jit", "ostler-scripts"]}
    writable = {
        each["name"]: [mount["name"] for mount in each["volumeMounts"] if not mount.get("readOnly")]
        for each in spec["containers"]
    }
    assert writable == {"poller": ["jit"], "runner": ["jit"]}
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert all(each["securityContext"]["capabilities"] == {"drop": ["ALL"]} for each in spec["containers"])
    poller, runner = (each["resources"] for each in spec["containers"])
    assert poller["requests"] == poller["limits"]
    disk = runner["requests"].pop("ephemeral-storage")
    assert parse_quantity(disk) == 10 * 1024**3  # type: ignore[no-untyped-call]  # written as 10Gi or 10240Mi
    assert runner["requests"] == runner["limits"]


@pytest.mark.parametrize("lost_calls", [1, 2])
def test_a_create_whose_reply_was_lost_makes_one_pod(
    admin: KubeClient, namespace: str, faulty: Faulty, make_runner: MakeRunner, lost_calls: int
) -> None:
    client, faults = faulty
    for _ in range(lost_calls):
        faults.lose_reply("POST")

    created = make_runner(client=client)

    (pod,) = list_pods(admin, namespace=namespace)
    assert pod.uid == created.uid


def test_a_create_that_lost_every_reply_is_found_by_reading_back(
    admin: KubeClient, namespace: str, faulty: Faulty, pool: PoolSpec
) -> None:
    create_service_account(admin, body=build_service_account(pool=pool, name=NAME, attempt="a1"))
    client, faults = faulty
    faults.lose_reply("POST")
    for _ in range(3):
        faults.answer("POST", 503)

    created = create_pod(client, body=pod_of(pool))

    assert created.ours_before
    (pod,) = list_pods(admin, namespace=namespace)
    assert pod.uid == created.uid


def test_a_create_that_was_never_applied_stays_an_error(faulty: Faulty, pool: PoolSpec) -> None:
    client, faults = faulty
    for _ in range(4):
        faults.answer("POST", 503)
    with pytest.raises(Retryable):
        create_service_account(client, body=build_service_account(pool=pool, name=NAME, attempt="a1"))


def test_making_the_same_attempt_again_returns_the_same_pod(make_runner: MakeRunner) -> None:
    first, second = make_runner(), make_runner()
    assert first.uid == second.uid
    assert second.ours_before


def test_a_namesake_of_another_attempt_is_a_conflict(make_runner: MakeRunner) -> None:
    make_runner(attempt="a1")
    with pytest.raises(Conflict):
        make_runner(attempt="a2")


def test_a_foreign_namesake_is_a_conflict_and_left_alone(admin: KubeClient, namespace: str, pool: PoolSpec) -> None:
    create_service_account(admin, body=build_service_account(pool=pool, name=NAME, attempt="a1"))
    theirs = {"metadata": {"name": NAME}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    uid = admin.request("POST", object_path("pods", namespace=namespace), body=theirs)["metadata"]["uid"]

    with pytest.raises(Conflict):
        create_pod(admin, body=pod_of(pool))

    seen = get_pod(admin, namespace=namespace, name=NAME)
    assert seen is not None
    assert seen.uid == uid


def test_a_terminating_namesake_is_waited_out(
    admin: KubeClient, namespace: str, faulty: Faulty, pool: PoolSpec, make_runner: MakeRunner
) -> None:
    old = make_runner()
    bind_to_a_node(admin, namespace, NAME)
    path = object_path("pods", namespace=namespace, name=NAME)
    admin.request("DELETE", path)
    client, faults = faulty
    faults.before("GET", lambda: None)  # the first check meets it
    faults.before("GET", lambda: admin.request("DELETE", path, body={"gracePeriodSeconds": 0}))

    created = create_pod(client, body=pod_of(pool))

    assert created.uid != old.uid
    assert not created.ours_before


def test_a_namesake_that_stays_terminating_is_given_up(
    admin: KubeClient, namespace: str, pool: PoolSpec, make_runner: MakeRunner
) -> None:
    make_runner()
    bind_to_a_node(admin, namespace, NAME)
    admin.request("DELETE", object_path("pods", namespace=namespace, name=NAME))
    with pytest.raises(Conflict, match="terminating"):
        create_pod(admin, body=pod_of(pool), terminating_within=0.2)


def test_a_namesake_that_vanishes_between_the_calls_is_no_obstacle(
    admin: KubeClient, namespace: str, faulty: Faulty, pool: PoolSpec, make_runner: MakeRunner
) -> None:
    old = make_runner()
    client, faults = faulty
    path = object_path("pods", namespace=namespace, name=NAME)
    faults.before("GET", lambda: admin.request("DELETE", path, body={"gracePeriodSeconds": 0}))
    assert create_pod(client, body=pod_of(pool)).uid != old.uid


def test_a_pod_waits_for_its_service_account_to_be_known(
    admin: KubeClient, namespace: str, faulty: Faulty, pool: PoolSpec
) -> None:
    client, faults = faulty
    account = build_service_account(pool=pool, name=NAME, attempt="a1")
    faults.before("POST", lambda: None)  # the first try is refused
    faults.before("POST", lambda: create_service_account(admin, body=account))

    create_pod(client, body=pod_of(pool))

    assert get_pod(admin, namespace=namespace, name=NAME) is not None


def test_a_pod_without_a_service_account_is_forbidden_in_the_end(faulty: Faulty, pool: PoolSpec) -> None:
    client, faults = faulty
    with pytest.raises(Forbidden):
        create_pod(client, body=pod_of(pool))
    assert faults.calls.count("POST") == 6


def test_a_pod_the_server_refuses_is_invalid(admin: KubeClient, pool: PoolSpec) -> None:
    create_service_account(admin, body=build_service_account(pool=pool, name=NAME, attempt="a1"))
    body = {**pod_of(pool), "spec": {"containers": [], "serviceAccountName": NAME}}
    with pytest.raises(Invalid):
        create_pod(admin, body=body)


def test_a_rate_limited_create_says_how_long_to_wait(faulty: Faulty, pool: PoolSpec) -> None:
    client, faults = faulty
    for _ in range(4):
        faults.answer("POST", 429, Retry_After="7")
    with pytest.raises(RateLimited) as caught:
        create_service_account(client, body=build_service_account(pool=pool, name=NAME, attempt="a1"))
    assert caught.value.after == 7.0


def test_a_runner_is_deleted_with_its_service_account_in_two_calls(
    admin: KubeClient, namespace: str, faulty: Faulty, make_runner: MakeRunner
) -> None:
    created = make_runner()
    client, faults = faulty

    verdict = delete_runner(client, namespace=namespace, name=NAME, uid=created.uid)

    assert verdict is Deletion.REMOVED
    assert faults.calls == ["DELETE", "DELETE"]
    assert get_pod(admin, namespace=namespace, name=NAME) is None
    assert not account_exists(admin, namespace)


def test_deleting_a_runner_again_is_a_success(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    uid = make_runner().uid
    delete_runner(admin, namespace=namespace, name=NAME, uid=uid)
    assert delete_runner(admin, namespace=namespace, name=NAME, uid=uid) is Deletion.GONE


def test_a_service_account_that_a_deletion_left_behind_goes_with_the_next(
    admin: KubeClient, namespace: str, faulty: Faulty, make_runner: MakeRunner
) -> None:
    uid = make_runner().uid
    admin.request("DELETE", object_path("pods", namespace=namespace, name=NAME))
    assert delete_runner(faulty[0], namespace=namespace, name=NAME, uid=uid) is Deletion.GONE
    assert not account_exists(admin, namespace)


def test_deleting_with_an_old_uid_leaves_the_successor_and_its_service_account(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    old = make_runner(attempt="a1").uid
    delete_runner(admin, namespace=namespace, name=NAME, uid=old)
    new = make_runner(attempt="a2").uid

    assert delete_runner(admin, namespace=namespace, name=NAME, uid=old) is Deletion.SUCCESSOR

    seen = get_pod(admin, namespace=namespace, name=NAME)
    assert seen is not None
    assert seen.uid == new
    assert account_exists(admin, namespace)


def test_the_service_account_of_a_successor_in_the_making_is_left_alone(
    admin: KubeClient, namespace: str, pool: PoolSpec, make_runner: MakeRunner
) -> None:
    old = make_runner(attempt="a1").uid
    delete_runner(admin, namespace=namespace, name=NAME, uid=old)
    create_service_account(admin, body=build_service_account(pool=pool, name=NAME, attempt="a2"))

    verdict = delete_runner(admin, namespace=namespace, name=NAME, uid=old, attempt="a1")

    assert verdict is Deletion.GONE
    assert account_exists(admin, namespace)


def test_a_deletion_whose_reply_was_lost_is_finished(
    admin: KubeClient, namespace: str, faulty: Faulty, make_runner: MakeRunner
) -> None:
    uid = make_runner().uid
    client, faults = faulty
    faults.lose_reply("DELETE")
    assert delete_runner(client, namespace=namespace, name=NAME, uid=uid) is Deletion.GONE
    assert not account_exists(admin, namespace)


def test_a_deletion_that_fails_is_no_success(
    admin: KubeClient, namespace: str, faulty: Faulty, make_runner: MakeRunner
) -> None:
    uid = make_runner().uid
    client, faults = faulty
    faults.answer("DELETE", 403)
    with pytest.raises(Forbidden):
        delete_runner(client, namespace=namespace, name=NAME, uid=uid)
    assert get_pod(admin, namespace=namespace, name=NAME) is not None


def test_a_list_holds_every_page_or_raises(
    namespace: str,
    faulty: Faulty,
    make_runner: MakeRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("k8s_adapters.runners.pods._PAGE", 2)
    names = {f"pool-{number:08x}" for number in range(5)}
    for name in names:
        make_runner(name)
    client, faults = faulty

    assert {pod.name for pod in list_pods(client, namespace=namespace, pool="pool")} == names
    assert list_pods(client, namespace=namespace, pool="other") == []
    faults.before("GET", lambda: None)
    faults.answer("GET", 410)
    with pytest.raises(Retryable):
        list_pods(client, namespace=namespace)


def test_metadata_list_returns_pages_with_stamps_and_raises_when_a_page_is_lost(
    namespace: str, faulty: Faulty, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8s_adapters.calls.metadata.PAGE", 2)
    names = {f"pool-{number:08x}": make_runner(f"pool-{number:08x}").uid for number in range(3)}
    client, faults = faulty
    stamped = min(names)
    stamp(client, namespace=namespace, name=stamped, uid=names[stamped], expected="0.0", value="7.1", owner=1001)

    pages = list(metadata_pages(client, "pods", namespace=namespace, selector=OF_POOLS))
    assert [len(page) for page in pages] == [2, 1]
    found = {pod.name: pod for page in pages for pod in page}
    assert {name: pod.uid for name, pod in found.items()} == names
    assert {(pod.owner, pod.stamp) for name, pod in found.items() if name != stamped} == {(None, "0.0")}
    assert (found[stamped].owner, found[stamped].stamp, found[stamped].terminating) == (1001, "7.1", False)

    begun = metadata_pages(client, "pods", namespace=namespace, selector=OF_POOLS)
    assert len(next(begun)) == 2
    faults.answer("GET", 410)
    with pytest.raises(Retryable):
        next(begun)


def test_a_pod_shows_how_its_containers_ended(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    make_runner()
    bind_to_a_node(admin, namespace, NAME)
    container = {"image": "i", "imageID": "i", "restartCount": 0}
    status = {
        "phase": "Running",
        "containerStatuses": [
            {**container, "name": "poller", "ready": False, "state": {"terminated": {"exitCode": 0}}},
            {**container, "name": "runner", "ready": True, "state": {"running": {}}},
        ],
    }
    path = f"{object_path('pods', namespace=namespace, name=NAME)}/status"
    admin.request("PATCH", path, body={"status": status}, content_type="application/merge-patch+json")
    running = get_pod(admin, namespace=namespace, name=NAME)
    assert running is not None
    assert (running.poller_exit_code, running.runner_ready, running.runner_exit_code) == (0, True, None)
    assert running.node == namespace

    ended = {"exitCode": 137, "signal": 9, "reason": "OOMKilled"}
    status["phase"] = "Failed"
    status["containerStatuses"] = [
        {**container, "name": "poller", "ready": False, "state": {"terminated": {"exitCode": 0}}},
        {**container, "name": "runner", "ready": False, "state": {"terminated": ended}},
    ]
    admin.request("PATCH", path, body={"status": status}, content_type="application/merge-patch+json")
    spent = get_pod(admin, namespace=namespace, name=NAME)
    assert spent is not None
    assert spent.is_terminal
    assert (spent.runner_exit_code, spent.runner_exit_signal, spent.runner_exit_reason) == (137, 9, "OOMKilled")


def rights_of(client: KubeClient, namespace: str, name: str = NAME) -> set[str]:
    """Return the existing ones of the two objects."""
    found = set()
    for kind in ("roles", "rolebindings"):
        try:
            client.request("GET", object_path(kind, namespace=namespace, name=name, group=RBAC))
        except Gone:
            continue
        found.add(kind)
    return found


def with_containers(client: KubeClient, pool: PoolSpec, *, attempt: str = "a1") -> Created:
    return create_runner(
        client,
        pool=replace(pool, containers=HookPods(vcpu_millicores=2000, memory_mib=4096)),
        name=NAME,
        attempt=attempt,
        dispatch_url="http://web/",
        audience="ostler-dispatch",
        hooks_image="ostler:1",
    )


def test_runner_without_containers_has_no_role_and_takes_two_calls(
    admin: KubeClient, namespace: str, faulty: Faulty, make_runner: MakeRunner
) -> None:
    client, faults = faulty
    make_runner(client=client)
    assert rights_of(admin, namespace) == set()
    assert faults.calls == ["POST", "POST"]


def test_runner_with_containers_takes_two_calls_more(namespace: str, faulty: Faulty, pool: PoolSpec) -> None:
    client, faults = faulty

    made = with_containers(client, pool)
    created = list(faults.calls)
    faults.calls.clear()
    delete_runner(client, namespace=namespace, name=NAME, uid=made.uid)

    assert created == ["POST"] * 4
    assert faults.calls == ["DELETE", "DELETE"]


def test_role_of_a_runner_goes_with_its_service_account(admin: KubeClient, namespace: str, pool: PoolSpec) -> None:
    made = with_containers(admin, pool)
    assert rights_of(admin, namespace) == {"roles", "rolebindings"}

    delete_runner(admin, namespace=namespace, name=NAME, uid=made.uid)

    eventually(lambda: rights_of(admin, namespace) == set(), within=60)


def test_repeated_creation_with_lost_replies_keeps_role_and_binding(
    admin: KubeClient, namespace: str, faulty: Faulty, pool: PoolSpec
) -> None:
    client, faults = faulty
    for _ in range(4):
        faults.lose_reply("POST")

    first = with_containers(client, pool)
    second = with_containers(client, pool)

    assert (first.uid, second.ours_before) == (second.uid, True)
    assert rights_of(admin, namespace) == {"roles", "rolebindings"}


def test_role_of_an_older_service_account_is_a_conflict(admin: KubeClient, namespace: str, pool: PoolSpec) -> None:
    """The garbage collector is about to delete this Role, so a Pod that relied on it would soon have no rights."""
    given = {"namespace": namespace, "name": NAME, "pool": pool.name, "attempt": "a1", "digest": pool.template_hash}
    keeper = {"metadata": {"name": "keeper"}}
    uid = admin.request("POST", object_path("serviceaccounts", namespace=namespace), body=keeper)["metadata"]["uid"]
    role = build_role(**given, account_uid=uid, size="1000m-1024Mi")
    role["metadata"]["ownerReferences"][0]["name"] = "keeper"
    admin.request("POST", object_path("roles", namespace=namespace, group=RBAC), body=role)

    with pytest.raises(Conflict):
        with_containers(admin, pool)
