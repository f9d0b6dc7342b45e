"""Runners that are StatefulSets in unlucky moments: what a review found, each red before it was mended."""

from __future__ import annotations

import time
from typing import Any

import pytest

from k8s_adapters.client import MERGE_PATCH, Json, object_path
from k8s_adapters.owners.volumes import list_volumes
from k8s_adapters.pods import list_pods
from ostler.errors import Invalid
from tasks.claims.release import release
from tasks.claims.retire import retire
from tasks.sweeps.orphaned_service_accounts import orphaned_service_accounts
from tests.contract.k8s.test_stamps import bind_to_a_node
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import delete, drain, seen, tick
from tests.integration.tasks.pools.fleet import NEW, polls, spec
from tests.integration.tasks.pools.test_stateful_sets import CACHE, SETS, finish, grown, sets, started, volumes
from tests.waiting import eventually

DELETE = {**CACHE, "reclaim": "Delete"}


def refuse_pods(stage: Stage) -> None:
    """Have a quota that allows no Pod."""
    body = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    stage.kube.request("POST", object_path("resourcequotas", namespace=stage.namespace), body=body)


def accept_pods(stage: Stage) -> None:
    """Remove the quota."""
    stage.kube.request("DELETE", object_path("resourcequotas", namespace=stage.namespace, name="none"))


def ticks(stage: Stage, count: int) -> None:
    """Run the reconciler without its backoff, with every Pod polling."""
    for _ in range(count):
        stage.rows("UPDATE pools SET create_after = NULL")
        tick(stage)
        polls(stage)


def begun(stage: Stage, **more: Any) -> str:
    """Create a pool with one runner whose Pod the controller cannot create; return the name of the StatefulSet."""
    refuse_pods(stage)
    stage.pool(replicas=1, **SETS, **more)

    def has_a_set() -> str | None:
        tick(stage)
        return next(iter(sets(stage)), None)

    return eventually(has_a_set)


def sweep_accounts(stage: Stage) -> None:
    """Run the sweep over ServiceAccounts without its grace."""
    stage.with_settings(orphaned_account_after=0.0)
    orphaned_service_accounts.run()


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

    release.run(claim_id=claim)
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
    assert sets(stage) == set()
    assert name not in stage.service_accounts()
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
    grown(stage, 2)
    assert time.monotonic() - began < 30
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
