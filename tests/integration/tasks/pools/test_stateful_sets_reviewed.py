"""Runners that are StatefulSets at bad moments. Each test failed before the defect of a review was fixed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, object_path
from k8s_adapters.runners import runners
from k8s_adapters.runners.owners.stateful_set import StatefulSetOwner
from k8s_adapters.runners.owners.volumes import list_volumes
from k8s_adapters.runners.pods import list_pods
from models.pools import pod_rows
from ostler.clock import utcnow
from ostler.errors import Invalid
from tasks.claims.retire import retire
from tasks.pools import create_pods
from tasks.sweeps.orphaned_service_accounts import orphaned_service_accounts
from tests.contract.k8s.test_stamps import bind_to_a_node
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import delete, drain, seen, tick
from tests.integration.tasks.pools.fleet import NEW, limit_pods, new_tick, polls, spec
from tests.integration.tasks.pools.test_stateful_sets import CACHE, SETS, finish, grown, sets, started, volumes
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

DELETE = {**CACHE, "reclaim": "Delete"}


def refuse_pods(stage: Stage) -> None:
    """Create a quota that allows no Pod."""
    limit_pods(stage, 0)


def accept_pods(stage: Stage) -> None:
    """Remove the quota."""
    stage.kube.request("DELETE", object_path("resourcequotas", namespace=stage.namespace, name="few"))


def ticks(stage: Stage, count: int) -> None:
    """Run the reconciler without its backoff, while every Pod polls."""
    for _ in range(count):
        stage.rows("UPDATE pools SET create_after = NULL")
        tick(stage)
        polls(stage)


def begun(stage: Stage, **more: Any) -> str:
    """Create a pool with one runner whose Pod the controller cannot create, and return the name of the StatefulSet."""
    refuse_pods(stage)
    stage.pool(replicas=1, **SETS, **more)

    def has_a_set() -> str | None:
        tick(stage)
        return next(iter(sets(stage)), None)

    return eventually(has_a_set)


def sweep_accounts(stage: Stage) -> None:
    """Run the sweep over ServiceAccounts without its waiting time."""
    stage.with_settings(orphaned_account_after=0.0)
    orphaned_service_accounts.run()


def rows_of(stage: Stage, name: str) -> list[Any]:
    """Return the rows with this name."""
    return stage.rows("SELECT id, uid, gone_at FROM runner_pods WHERE name = :name ORDER BY id", name=name)


def emptied(stage: Stage, count: int = 1, **more: Any) -> list[str]:
    """Create a pool whose runners have ended, and return the names that later runners get."""
    names = started(stage, count, volumes=CACHE, **more)
    spec(stage, replicas=0)

    def is_empty() -> bool:
        new_tick(stage)
        tick(stage)
        return not uids(stage) and not set(names) & stage.service_accounts()

    eventually(is_empty, within=30)
    eventually(lambda: sets(stage) == set(), within=30)
    return names


def uids(stage: Stage) -> set[str]:
    """Return the UIDs of all Pods, also of those that are being deleted."""
    return {pod.uid for pod in list_pods(stage.kube, namespace=stage.namespace)}


@pytest.mark.usefixtures("github")
@pytest.mark.parametrize("more", [{}, {"volumes": CACHE}, {"volumes": DELETE}], ids=["none", "Retain", "Delete"])
def test_a_reserved_pod_that_somebody_deletes_does_not_stay(stage: Stage, more: dict[str, Any]) -> None:
    (name,) = started(stage, 1, **more)
    stage.job(7)
    claim = stage.claim(name, job_id=7, state="claimed")
    bind_to_a_node(stage.kube, stage.namespace, name)
    uid = stage.pods()[name].uid
    stage.kube.request("DELETE", object_path("pods", namespace=stage.namespace, name=name))

    stage.release(claim)
    ticks(stage, 2)
    if more:
        assert f"cache-{name}" in volumes(stage), "the volume of a Pod that still runs was deleted"
    if uid in uids(stage):
        finish(stage, name)

    def is_gone() -> bool:
        for row in stage.rows("SELECT id FROM claims WHERE purpose = 'retire' AND ended_at IS NULL"):
            stage.later()
            retire.run(claim_id=row.id)
        ticks(stage, 1)
        return uid not in uids(stage)

    eventually(is_gone, within=30)
    grown(stage, 1)


def test_a_changed_template_goes_on_while_the_controller_cannot_create_the_pod(stage: Stage) -> None:
    begun(stage, volumes=CACHE)
    ticks(stage, 2)
    spec(stage, image=NEW)
    ticks(stage, 1)
    accept_pods(stage)

    def runs() -> bool:
        ticks(stage, 1)
        return len(stage.pods()) == 1

    eventually(runs, within=30)
    assert len(sets(stage)) == 1


def test_a_runner_that_was_given_up_leaves_nothing_and_does_not_block_its_volume(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    spec(stage, replicas=0)

    def is_empty() -> bool:
        tick(stage)
        return not uids(stage)

    eventually(is_empty, within=30)
    ticks(stage, 2)
    refuse_pods(stage)
    spec(stage, replicas=1)
    ticks(stage, 3)
    assert sets(stage) == {name.removesuffix("-0")}
    spec(stage, replicas=0)
    ticks(stage, 3)
    sweep_accounts(stage)
    eventually(lambda: sets(stage) == set())
    assert name not in stage.service_accounts()
    sweep_accounts(stage)
    assert len(rows_of(stage, name)) == 1, "the row still reserves the name"
    accept_pods(stage)
    spec(stage, replicas=1)
    assert grown(stage, 1) == [name]


def test_a_stateful_set_without_an_account_does_not_stay(stage: Stage) -> None:
    name = begun(stage, volumes=CACHE)
    stage.kube.request("DELETE", object_path("serviceaccounts", namespace=stage.namespace, name=f"{name}-0"))
    spec(stage, replicas=0)
    ticks(stage, 3)
    sweep_accounts(stage)
    eventually(lambda: sets(stage) == set())


def test_a_row_with_another_attempt_than_its_pod_leaves_no_stateful_set(stage: Stage) -> None:
    (name,) = started(stage, 1)
    uid = stage.pods()[name].uid
    stage.rows("UPDATE runner_pods SET attempt_id = 'other' RETURNING id")
    spec(stage, replicas=0)
    ticks(stage, 6)
    assert uids(stage) <= {uid}
    eventually(lambda: sets(stage) == set())


def test_a_stateful_set_that_does_not_end_costs_other_runners_little(stage: Stage) -> None:
    name = begun(stage, volumes=CACHE)
    path = object_path("statefulsets", namespace=stage.namespace, name=name, group="apps")
    held: Json = {"metadata": {"finalizers": ["example.com/held"]}}
    stage.kube.request("PATCH", path, body=held, content_type=MERGE_PATCH)
    stage.kube.request("DELETE", path)
    accept_pods(stage)
    spec(stage, replicas=2)
    began = time.monotonic()

    def has_another() -> bool:
        ticks(stage, 1)
        return len(stage.pods()) >= 1

    eventually(has_another, within=30)
    assert time.monotonic() - began < 30
    stage.rows("UPDATE runner_pods SET created_at = created_at - interval '10 minutes' WHERE uid IS NULL RETURNING id")
    grown(stage, 2)
    stage.kube.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


def test_a_recreated_pool_does_not_get_the_volumes_of_the_deleted_pool(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE, allowedAccounts=[1])
    delete(stage)

    def is_gone() -> bool:
        drain(stage)
        return seen(stage) is None

    eventually(is_gone)
    stage.pool(replicas=1, volumes=CACHE, allowedAccounts=[2], **SETS)
    (new,) = grown(stage, 1)
    assert new != name
    assert volumes(stage) == {f"cache-{name}", f"cache-{new}"}


def test_a_deleted_pool_does_not_delete_the_volumes_of_its_namesake(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    own = "'id', 'uid', 'deleted_at', 'volume_reclaim', 'rerouting_since'"
    found = stage.rows(f"""
        SELECT column_name FROM information_schema.columns
        WHERE table_name = 'pools' AND column_name NOT IN ({own}) AND is_generated = 'NEVER'
    """)  # noqa: S608
    columns = ", ".join(row.column_name for row in found)
    stage.rows(f"""
        INSERT INTO pools (uid, deleted_at, volume_reclaim, rerouting_since, {columns})
        SELECT 'old-uid', now(), 'Delete', now(), {columns} FROM pools RETURNING id
    """)  # noqa: S608
    spec(stage, replicas=0)

    def is_empty() -> bool:
        tick(stage)
        return not uids(stage)

    eventually(is_empty, within=30)
    ticks(stage, 3)
    assert volumes(stage) == {f"cache-{name}"}


@pytest.mark.parametrize(
    "change",
    [{"volumes": {**CACHE, "reclaim": "Retain"}, "allowForks": False}, {"volumes": None}],
    ids=["reclaim", "removed"],
)
def test_volumes_that_a_job_of_a_fork_wrote_never_become_a_cache(stage: Stage, change: dict[str, Any]) -> None:
    stage.pool(replicas=1, volumes=DELETE, allowForks=True, **SETS)
    with pytest.raises(Invalid):
        spec(stage, **change)


def test_volumes_stay_while_the_rows_are_not_trusted(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=DELETE)
    stage.rows("UPDATE epochs SET older_since = now()")
    stage.rows("DELETE FROM offers")
    stage.rows("DELETE FROM runner_pods WHERE name = :name RETURNING id", name=name)
    stage.rows("UPDATE pools SET replicas = 0")
    ticks(stage, 3)
    found = list_volumes(stage.kube, namespace=stage.namespace, pool="small")
    assert [each.name for each in found if not each.terminating] == [f"cache-{name}"]


@pytest.mark.parametrize("kind", ["serviceaccounts", "statefulsets"])
def test_names_that_another_program_uses_cost_other_runners_nothing(stage: Stage, kind: str) -> None:
    names = emptied(stage, 2)
    for name in names:
        body: Json = {"metadata": {"name": name}}
        if kind == "serviceaccounts":
            stage.kube.request("POST", object_path(kind, namespace=stage.namespace), body=body)
            continue
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        body = {
            "metadata": {"name": name.removesuffix("-0")},
            "spec": {"replicas": 0, "serviceName": "x", "selector": {"matchLabels": {"a": "b"}}, "template": template},
        }
        stage.kube.request("POST", object_path(kind, namespace=stage.namespace, group="apps"), body=body)
    spec(stage, replicas=4)
    assert not set(grown(stage, 4)) & set(names)


def test_a_stateful_set_that_ends_slowly_costs_no_volume(stage: Stage) -> None:
    name = begun(stage, volumes=CACHE)
    ticks(stage, 2)
    path = object_path("statefulsets", namespace=stage.namespace, name=name, group="apps")
    held: Json = {"metadata": {"finalizers": ["example.com/held"]}}
    stage.kube.request("PATCH", path, body=held, content_type=MERGE_PATCH)
    spec(stage, image=NEW)
    ticks(stage, 3)
    stage.kube.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
    accept_pods(stage)
    assert grown(stage, 1) == [f"{name}-0"]
    assert len(rows_of(stage, f"{name}-0")) == 1


def test_a_creation_that_is_late_leaves_no_stateful_set(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is frozen between its ServiceAccount and its StatefulSet, while the pool gives the runner up."""
    (name,) = emptied(stage)
    original = StatefulSetOwner.create
    frozen: list[str] = []

    def late(self: StatefulSetOwner, *args: Any, **kwargs: Any) -> Any:
        if not frozen:
            frozen.append(name)
            spec(stage, replicas=0)
            tick(stage)
            sweep_accounts(stage)
            sweep_accounts(stage)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(StatefulSetOwner, "create", late)
    spec(stage, replicas=1)
    ticks(stage, 1)
    assert frozen

    def is_clean() -> bool:
        ticks(stage, 1)
        sweep_accounts(stage)
        return not sets(stage) and not uids(stage)

    eventually(is_clean, within=60)


def test_volumes_of_a_pool_are_deleted_before_the_pool_is_gone(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=DELETE)
    delete(stage)
    stage.rows("UPDATE epochs SET older_since = now()")
    finish(stage, name)
    for _ in range(5):
        drain(stage)
    assert seen(stage) is not None, "the pool is gone, and its volume is not"
    stage.rows("UPDATE epochs SET older_since = NULL")

    def is_gone() -> bool:
        drain(stage)
        return seen(stage) is None

    eventually(is_gone, within=60)
    assert volumes(stage) == set()


def test_a_list_that_is_older_than_the_end_of_a_pod_does_not_bring_it_back(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    listed_at = utcnow()
    pods = list_pods(stage.kube, namespace=stage.namespace)
    spec(stage, replicas=0)

    def is_gone() -> bool:
        tick(stage)
        return bool(rows_of(stage, name)[0].gone_at)

    eventually(is_gone, within=30)
    (row,) = stage.rows("SELECT pool_id FROM runner_pods")
    later = utcnow() + timedelta(seconds=70)
    stage.rt.transaction(pod_rows.record_pods, pool_id=row.pool_id, pods=pods, listed_at=listed_at, now=later)
    assert rows_of(stage, name)[0].gone_at is not None


def test_runners_that_finished_at_once_are_replaced_although_their_sets_end_slowly(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = started(stage, 12)
    original = StatefulSetOwner.end

    def slow(self: StatefulSetOwner, client: KubeClient, *, namespace: str, name: str, **more: Any) -> None:
        path = object_path("statefulsets", namespace=namespace, name=name.removesuffix("-0"), group="apps")
        held: Json = {"metadata": {"finalizers": ["example.com/slow"]}}
        client.request("PATCH", path, body=held, content_type=MERGE_PATCH)
        original(self, client, namespace=namespace, name=name, **more)

    monkeypatch.setattr(StatefulSetOwner, "end", slow)
    for name in names:
        finish(stage, name)
    tick(stage)
    assert len(sets(stage)) == 24
    for each in sets(stage):
        path = object_path("statefulsets", namespace=stage.namespace, name=each, group="apps")
        stage.kube.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


def unbind(stage: Stage, name: str) -> None:
    """Give the name to the row of another attempt, which waits for a Pod."""
    stage.rows("DELETE FROM offers")
    stage.rows(
        """
        UPDATE runner_pods SET uid = NULL, attempt_id = 'other', first_polled_at = NULL, polled_at = NULL
        WHERE name = :name RETURNING id
        """,
        name=name,
    )


def test_a_row_does_not_hide_the_pod_of_another_attempt(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    uid = stage.pods()[name].uid
    unbind(stage, name)
    ticks(stage, 6)
    assert uid in {row.uid for row in rows_of(stage, name)}


def test_a_given_up_row_does_not_hide_the_pod_of_another_attempt(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    uid = stage.pods()[name].uid
    unbind(stage, name)
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE name = :name RETURNING id", name=name)
    spec(stage, replicas=0)
    stage.with_settings(orphaned_account_after=0.0)
    for _ in range(4):
        ticks(stage, 1)
        sweep_accounts(stage)
    assert uid in {row.uid for row in rows_of(stage, name)} or uid not in uids(stage)


def test_a_row_does_not_hide_the_pod_of_another_attempt_whose_set_is_gone(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    uid = stage.pods()[name].uid
    unbind(stage, name)
    path = object_path("statefulsets", namespace=stage.namespace, name=name.removesuffix("-0"), group="apps")
    stage.kube.request("DELETE", path, body={"propagationPolicy": "Orphan"})
    eventually(lambda: sets(stage) == set())
    stage.kube.request("DELETE", object_path("serviceaccounts", namespace=stage.namespace, name=name))
    for _ in range(6):  # the Pod does not poll
        stage.rows("UPDATE pools SET create_after = NULL")
        tick(stage)
    assert uid in {row.uid for row in rows_of(stage, name)} or uid not in uids(stage)


def test_a_held_pod_whose_row_says_gone_does_not_stay(stage: Stage) -> None:
    (name,) = started(stage, 1, volumes=CACHE)
    bind_to_a_node(stage.kube, stage.namespace, name)
    uid = stage.pods()[name].uid
    stage.kube.request("DELETE", object_path("pods", namespace=stage.namespace, name=name))
    stage.rows("DELETE FROM offers")
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE uid = :uid RETURNING id", uid=uid)
    ticks(stage, 2)
    if uid in uids(stage):
        finish(stage, name)

    def is_gone() -> bool:
        ticks(stage, 1)
        return uid not in uids(stage)

    eventually(is_gone, within=60)


@pytest.mark.parametrize("workload", ["StatefulSet", "Pod"])
def test_a_surge_that_a_quota_refuses_is_not_tried_again_and_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, workload: str
) -> None:
    limit_pods(stage, 2)
    stage.pool(replicas=2, workload=workload)
    grown(stage, 2)
    tried: set[str] = set()
    original = runners.create_runner

    def counted(*args: Any, **kwargs: Any) -> Any:
        tried.add(kwargs["attempt"])
        return original(*args, **kwargs)

    monkeypatch.setattr(create_pods, "create_runner", counted)
    spec(stage, image=NEW)
    for _ in range(20):
        new_tick(stage)
        tick(stage)
        time.sleep(0.1)
    assert len(tried) <= 4
