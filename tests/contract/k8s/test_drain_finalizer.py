"""The finalizer of a pool on a real API server, while other clients write the same list."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, make_client
from k8s_adapters.names import DRAIN_FINALIZER
from k8s_adapters.pools.draining import add_finalizer, remove_finalizer
from k8s_adapters.pools.pools import create_pool, delete_pool, get_pool, pool_path
from lab.control_plane import ClusterAccess
from ostler.errors import Conflict, Gone, Retryable
from rules.pools.pool_spec import PoolSpec
from tests.contract.k8s.transport import FaultyTransport

Faulty = tuple[KubeClient, FaultyTransport]

OTHER = "example.com/audit"


def finalizers(admin: KubeClient, pool: PoolSpec) -> list[str]:
    metadata = admin.request("GET", pool_path(pool.namespace, pool.name))["metadata"]
    found: list[str] = metadata.get("finalizers") or []
    return found


def write(admin: KubeClient, pool: PoolSpec, wanted: list[str]) -> None:
    body = {"metadata": {"finalizers": wanted}}
    admin.request("PATCH", pool_path(pool.namespace, pool.name), body=body, content_type=MERGE_PATCH)


def hold(client: KubeClient, pool: PoolSpec, *, uid: str | None = None) -> bool:
    return add_finalizer(client, namespace=pool.namespace, name=pool.name, uid=uid or pool.uid)


def let_go(client: KubeClient, pool: PoolSpec, *, uid: str | None = None) -> bool:
    return remove_finalizer(client, namespace=pool.namespace, name=pool.name, uid=uid or pool.uid)


def test_pool_with_the_finalizer_survives_its_deletion_until_that_is_removed(admin: KubeClient, pool: PoolSpec) -> None:
    assert hold(admin, pool)
    delete_pool(admin, namespace=pool.namespace, name=pool.name)

    seen = get_pool(admin, namespace=pool.namespace, name=pool.name)
    assert seen is not None
    assert (seen.has_finalizer, seen.terminating) == (True, True)

    assert let_go(admin, pool)
    assert get_pool(admin, namespace=pool.namespace, name=pool.name) is None


def test_holding_twice_and_letting_go_twice_changes_nothing_more(admin: KubeClient, pool: PoolSpec) -> None:
    assert [hold(admin, pool), hold(admin, pool)] == [True, True]
    assert finalizers(admin, pool) == [DRAIN_FINALIZER]
    assert [let_go(admin, pool), let_go(admin, pool)] == [True, False]
    assert finalizers(admin, pool) == []


def test_the_finalizers_of_others_stay(admin: KubeClient, pool: PoolSpec) -> None:
    write(admin, pool, [OTHER])
    assert hold(admin, pool)
    assert finalizers(admin, pool) == [OTHER, DRAIN_FINALIZER]
    write(admin, pool, ["example.com/first", OTHER, DRAIN_FINALIZER, "example.com/last"])
    assert let_go(admin, pool)
    assert finalizers(admin, pool) == ["example.com/first", OTHER, "example.com/last"]


@pytest.mark.parametrize("holds", [True, False], ids=["hold", "let go"])
def test_write_between_our_read_and_our_patch_is_preserved(
    admin: KubeClient, pool: PoolSpec, faulty: Faulty, *, holds: bool
) -> None:
    client, faults = faulty
    if not holds:
        hold(client, pool)
    write_to = "PATCH" if holds else "PUT"
    faults.before(write_to, lambda: write(admin, pool, [OTHER, *([] if holds else [DRAIN_FINALIZER])]))
    assert hold(client, pool) if holds else let_go(client, pool)
    assert finalizers(admin, pool) == [OTHER, *([DRAIN_FINALIZER] if holds else [])]


def test_a_pool_that_others_change_all_the_time_is_left_to_the_next_try(
    admin: KubeClient, pool: PoolSpec, faulty: Faulty
) -> None:
    client, faults = faulty
    for number in range(4):
        faults.before("PATCH", lambda number=number: write(admin, pool, [f"example.com/{number}"]))  # type: ignore[misc]
    with pytest.raises(Retryable):
        hold(client, pool)
    assert finalizers(admin, pool) == ["example.com/3"]


def test_deletion_between_our_read_and_our_patch_is_found(admin: KubeClient, pool: PoolSpec, faulty: Faulty) -> None:
    write(admin, pool, [OTHER])
    client, faults = faulty
    faults.before("PATCH", lambda: delete_pool(admin, namespace=pool.namespace, name=pool.name))
    assert not hold(client, pool)
    assert finalizers(admin, pool) == [OTHER]


def test_finalizer_cannot_be_added_after_the_deletion_was_requested(admin: KubeClient, pool: PoolSpec) -> None:
    write(admin, pool, [OTHER])
    delete_pool(admin, namespace=pool.namespace, name=pool.name)
    assert not hold(admin, pool)
    assert finalizers(admin, pool) == [OTHER]


def test_a_pool_of_the_same_name_is_another_one(admin: KubeClient, pool: PoolSpec) -> None:
    delete_pool(admin, namespace=pool.namespace, name=pool.name)
    assert not hold(admin, pool)
    assert not let_go(admin, pool)
    second = create_pool(
        admin, namespace=pool.namespace, name=pool.name, spec={"image": "runner:1", "runnerLabels": ["linux"]}
    )
    assert not hold(admin, second, uid=pool.uid)
    assert hold(admin, second)
    assert not let_go(admin, second, uid=pool.uid)
    assert finalizers(admin, second) == [DRAIN_FINALIZER]


def test_a_lost_reply_does_no_harm(admin: KubeClient, pool: PoolSpec, faulty: Faulty) -> None:
    client, faults = faulty
    faults.lose_reply("PATCH")
    assert hold(client, pool)
    delete_pool(admin, namespace=pool.namespace, name=pool.name)
    faults.lose_reply("PUT")
    let_go(client, pool)
    assert get_pool(admin, namespace=pool.namespace, name=pool.name) is None


RECONCILERS = 5
ROUNDS = 80
SPEC = {"image": "runner:1", "runnerLabels": ["linux"]}


def test_a_pool_made_again_outlives_late_removals_of_the_old_finalizer(
    control_plane: ClusterAccess, admin: KubeClient, namespace: str
) -> None:
    clients = [make_client(kubeconfig=str(control_plane.kubeconfig)) for _ in range(RECONCILERS)]
    lost = []
    with ThreadPoolExecutor(RECONCILERS + 1) as threads:
        for number in range(ROUNDS):
            old = create_pool(admin, namespace=namespace, name=f"pool-{number}", spec=SPEC)
            assert hold(admin, old)
            delete_pool(admin, namespace=namespace, name=old.name)
            together = Barrier(RECONCILERS + 1)
            again = threads.submit(make_again, admin, old, together)
            every = [threads.submit(let_go_with, client, old, together) for client in clients]
            for each in every:
                each.result(60)
            made = again.result(60)
            found = get_pool(admin, namespace=namespace, name=made.name)
            if found is None or found.uid != made.uid:
                lost.append(made.name)
    for client in clients:
        client.close()
    assert lost == []


def let_go_with(client: KubeClient, pool: PoolSpec, together: Barrier) -> None:
    together.wait(60)
    let_go(client, pool)


def make_again(admin: KubeClient, pool: PoolSpec, together: Barrier) -> PoolSpec:
    """Create a pool of this name as soon as the API server has removed the old one."""
    together.wait(60)
    while True:
        try:
            return create_pool(admin, namespace=pool.namespace, name=pool.name, spec=SPEC)
        except (Conflict, Gone):
            continue
