"""Pools in two namespaces: both are reconciled, swept and restored, and an empty list of one proves nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.pools.pools import list_pools
from ostler.errors import Forbidden, Retryable
from tasks.pools import mirror_pools
from tasks.pools.autoscale import autoscale
from tasks.restore import restoring
from tasks.restore.epochs import compare, stamped_by
from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.orphaned_service_accounts import orphaned_service_accounts
from tasks.sweeps.orphaned_stamps import orphaned_stamps
from tasks.worker.named_pools import pools_meant
from tests.cluster import delete_namespace
from tests.integration.tasks.conftest import Stage, StubGitHub
from tests.integration.tasks.pools.fleet import condition, kept, new_tick, polls, retired, rounds, spec


@pytest.fixture
def elevated(stage: Stage, github: StubGitHub, admin: KubeClient) -> Iterator[Stage]:
    """The stage of a second namespace. Both have a pool `small` with one Pod, and one runtime."""
    del github
    name = f"test-{secrets.token_hex(6)}-elevated"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    second = replace(stage, namespace=name)
    stage.rt.settings = replace(stage.rt.settings, elevated_namespace=name)
    stage.pool(replicas=1)
    second.pool(replicas=1)
    kept(stage)
    polls(stage)
    stage.outbox.sent.clear()
    yield second
    delete_namespace(admin, name)


def gone(stage: Stage) -> str:
    """Delete the only Pod of a stage, as another client would, and return its name."""
    (pod,) = stage.pods().values()
    stage.kube.request(
        "DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod.name}", body={"gracePeriodSeconds": 0}
    )
    return pod.name


def stamp(stage: Stage, pod: str, *, claim: int) -> None:
    """Stamp a Pod of a stage."""
    body = {
        "metadata": {
            "labels": {"ostler.dev/runner-pool-owner": "1"},
            "annotations": {"ostler.dev/claim": f"{claim}.1"},
        }
    }
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{pod}"
    stage.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")


def test_each_namespace_gets_the_pods_of_its_own_pool(stage: Stage, elevated: Stage) -> None:
    rows = stage.rows("""
        SELECT p.namespace, l.namespace AS of_pool, p.name FROM runner_pods p JOIN pools l ON l.id = p.pool_id
    """)
    assert {(row.namespace, row.of_pool) for row in rows} == {(each, each) for each in stage.rt.settings.namespaces}
    assert {row.name for row in rows} == {*stage.pods(), *elevated.pods()}


def test_pod_of_the_second_namespace_is_retired_after_its_job(stage: Stage, elevated: Stage) -> None:
    (name,) = elevated.pods()
    elevated.job(7)
    claim = elevated.claim(name, job_id=7, state="executing")
    elevated.execute_job(name)
    stage.rows("UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now() WHERE id = :id", id=claim)
    elevated.finish(name)
    before = set(stage.pods())
    for _ in range(3):
        kept(stage)
        stage.released()
        retired(stage)
        new_tick(stage)
    assert name not in elevated.pods()
    assert len(elevated.pods()) == 1  # its replacement
    assert set(stage.pods()) == before
    assert stage.rows("SELECT 1 FROM runner_pods WHERE name = :name AND gone_at IS NOT NULL", name=name)


@pytest.mark.usefixtures("elevated")
def test_pool_name_in_both_namespaces_wakes_both_pools(stage: Stage) -> None:
    rt: Any = stage.rt
    ids = {row.id for row in stage.rows("SELECT id FROM pools WHERE name = 'small'")}
    assert len(ids) == 2
    assert set(pools_meant(rt, pool_id=None, pool="small")) == ids


def test_autoscaler_scales_the_pool_of_the_second_namespace(stage: Stage, elevated: Stage) -> None:
    spec(elevated, autoscaling={"enabled": True, "minWarm": 3, "maxReplicas": 5})
    kept(stage)
    autoscale.run()
    path = "/apis/ostler.dev/v1alpha1/namespaces/{}/runnerpools/small"
    scaled = stage.kube.request("GET", path.format(elevated.namespace))["spec"]["replicas"]
    assert (scaled, stage.kube.request("GET", path.format(stage.namespace))["spec"]["replicas"]) == (3, 1)


def test_claim_of_a_missing_pod_ends_only_if_its_namespace_was_listed(stage: Stage, elevated: Stage) -> None:
    elevated.pool("other", replicas=1)
    kept(stage)
    path = f"/api/v1/namespaces/{elevated.namespace}/pods"
    name = next(each.name for each in elevated.pods().values() if each.pool == "small")
    elevated.job(7)
    claim = elevated.claim(name, job_id=7, state="claimed")
    stage.kube.request("DELETE", f"{path}/{name}", body={"gracePeriodSeconds": 0})

    stage.rt.settings, both = replace(stage.rt.settings, elevated_namespace=None), stage.rt.settings
    missing_pods.run()
    assert stage.see(claim).state == "claimed"

    stage.rt.settings = both
    missing_pods.run()
    assert stage.see(claim).state == "releasing"


def test_empty_list_of_one_namespace_ends_no_claim_there_and_stops_no_other(stage: Stage, elevated: Stage) -> None:
    stage.pool("other", replicas=1)
    kept(stage)
    for job_id in (7, 8):
        stage.job(job_id)
    ours = next(each.name for each in stage.pods().values() if each.pool == "small")
    (theirs,) = elevated.pods()
    ends, doubted = stage.claim(ours, job_id=7, state="claimed"), stage.claim(theirs, job_id=8, state="claimed")
    gone(elevated)
    path = f"/api/v1/namespaces/{stage.namespace}/pods/{ours}"
    stage.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})
    missing_pods.run()
    assert (stage.see(ends).state, stage.see(doubted).state) == ("releasing", "claimed")


def test_sweeps_read_a_pod_in_its_own_namespace(stage: Stage, elevated: Stage) -> None:
    (name,) = elevated.pods()
    stage.rows(
        "UPDATE runner_pods SET created_at = now() - interval '1 day', first_polled_at = now() - interval '1 day',"
        " polled_at = now() - interval '1 day' WHERE name = :name",
        name=name,
    )
    stage.with_settings(orphaned_stamp_after=0, orphaned_account_after=0)
    stamp(elevated, name, claim=99)
    orphaned_stamps.run()
    (sent,) = stage.outbox.take("ostler.retire")
    (row,) = stage.rows(
        "SELECT p.name FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id WHERE c.id = :id", id=sent["claim_id"]
    )
    assert row.name == name


def test_service_account_of_the_second_namespace_is_deleted_with_its_pod(stage: Stage, elevated: Stage) -> None:
    stage.with_settings(orphaned_account_after=0)
    (kept_name,) = stage.pods()
    name = gone(elevated)
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE name = :name", name=name)
    orphaned_service_accounts.run()
    assert name not in elevated.service_accounts()
    assert kept_name in stage.service_accounts()


def test_lists_that_fail_in_one_namespace_change_nothing(
    stage: Stage, elevated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = KubeClient.get

    def failing(self: KubeClient, path: str, **named: Any) -> Any:
        if elevated.namespace in path:
            raise Retryable("down")
        return get(self, path, **named)

    monkeypatch.setattr(KubeClient, "get", failing)
    stage.job(7)
    (name,) = stage.pods()
    claim = stage.claim(name, job_id=7, state="claimed")
    gone(stage)
    missing_pods.run()
    assert stage.see(claim).state == "claimed"


def test_pool_only_grows_while_the_other_namespace_cannot_be_read(
    stage: Stage, elevated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:

    def failing(kube: KubeClient, *, namespace: str, **named: Any) -> Any:
        if namespace == elevated.namespace:
            raise Forbidden("no right")
        return list_pools(kube, namespace=namespace, **named)

    spec(stage, autoscaling={"enabled": True, "minWarm": 3, "maxReplicas": 5})
    quick = {"enabled": True, "minWarm": 1, "maxReplicas": 5, "scaleDownDelay": "0s"}
    stage.pool("large", replicas=4, autoscaling=quick)
    kept(stage)
    monkeypatch.setattr("tasks.pools.autoscale.list_pools", failing)

    with pytest.raises(Forbidden):
        autoscale.run()
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{stage.namespace}/runnerpools"

    def replicas() -> dict[str, int]:
        return {each["metadata"]["name"]: each["spec"]["replicas"] for each in stage.kube.request("GET", path)["items"]}

    assert replicas() == {"small": 3, "large": 4}
    monkeypatch.setattr("tasks.pools.autoscale.list_pools", list_pools)
    autoscale.run()
    assert replicas() == {"small": 3, "large": 1}


def test_reconciles_of_one_namespace_are_requested_when_the_other_fails(
    stage: Stage, elevated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:

    def failing(kube: KubeClient, *, namespace: str, **named: Any) -> Any:
        if namespace == stage.namespace:
            raise Retryable("down")
        return list_pools(kube, namespace=namespace, **named)

    monkeypatch.setattr(mirror_pools, "list_pools", failing)
    elevated.pool("new", replicas=1)
    with pytest.raises(Retryable):
        mirror_pools.pools.run()
    assert stage.rows("SELECT 1 FROM pools WHERE name = 'new'")
    assert len(stage.outbox.take("ostler.reconcile")) == 3


def test_restore_rebuilds_the_claims_of_both_namespaces(
    stage: Stage, elevated: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt: Any = stage.rt
    monkeypatch.setattr(restoring, "QUIET_SECONDS", 0)
    compare(rt)
    (ours,), (theirs,) = stage.pods(), elevated.pods()
    for each, name, claim in ((stage, ours, 4711), (elevated, theirs, 4712)):
        stamp(each, name, claim=claim)
        each.execute_job(name)
    assert set(stamped_by(rt).values()) == {4711, 4712}
    stage.rows("DELETE FROM runner_pods")

    restoring.restore(rt, dry=False, anyway=True, say=lambda _: None)

    rows = stage.rows("""
        SELECT p.name, p.namespace, l.namespace AS of_pool FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
        JOIN pools l ON l.id = p.pool_id WHERE c.ended_at IS NULL
    """)
    assert {(row.name, row.namespace, row.of_pool) for row in rows} == {
        (ours, stage.namespace, stage.namespace),
        (theirs, elevated.namespace, elevated.namespace),
    }


@pytest.mark.parametrize("listed", [True, False], ids=["no-pod-is-found", "not-in-the-settings"])
def test_restore_believes_no_empty_namespace_with_live_claims(
    stage: Stage, elevated: Stage, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    rt: Any = stage.rt
    monkeypatch.setattr(restoring, "QUIET_SECONDS", 0)
    compare(rt)
    (name,) = elevated.pods()
    stage.job(7)
    claim = elevated.claim(name, job_id=7, state="executing")
    if listed:
        gone(elevated)
    else:
        rt.settings = replace(rt.settings, elevated_namespace=None)

    with pytest.raises(restoring.NotRestored, match=f"no Pod was found in namespace {elevated.namespace}, but"):
        restoring.restore(rt, dry=False, anyway=True, say=lambda _: None)
    assert stage.see(claim).state == "executing"


@pytest.mark.parametrize(
    ("allowed", "there", "level", "reason"),
    [
        ("restricted", True, "baseline", "PodSecurityNotAllowed"),
        ("baseline", True, "privileged", "PodSecurityNotAllowed"),
        ("privileged", False, "baseline", "PodSecurityNotAllowed"),
        ("baseline", True, "baseline", "AsExpected"),
    ],
)
def test_pool_that_asks_for_more_gets_no_pod_and_disturbs_no_other(
    stage: Stage, elevated: Stage, allowed: str, there: bool, level: str, reason: str
) -> None:
    stage.rt.settings = replace(stage.rt.settings, allowed_pod_security=allowed)
    place = elevated if there else stage
    place.pool("wide", replicas=1, security={"podSecurity": level})
    place.pool("other", replicas=1)
    found = condition(place, "Degraded", "wide")
    assert found["reason"] == reason
    made = {pod.pool for pod in place.pods().values()}
    assert made == {"small", "other"} | ({"wide"} if reason == "AsExpected" else set())


def test_level_that_is_no_longer_allowed_costs_a_pool_its_warm_pods_only(stage: Stage, elevated: Stage) -> None:
    stage.rt.settings = replace(stage.rt.settings, allowed_pod_security="baseline")
    elevated.pool("wide", replicas=3, security={"podSecurity": "baseline"})
    kept(stage)
    polls(elevated)
    busy = next(each.name for each in elevated.pods().values() if each.pool == "wide")
    elevated.job(7)
    elevated.claim(busy, job_id=7, state="executing")
    elevated.execute_job(busy)
    others = {name for name, pod in elevated.pods().items() if pod.pool == "small"}

    stage.rt.settings = replace(stage.rt.settings, allowed_pod_security="restricted")
    for _ in range(2):
        kept(stage)
        retired(stage)
        new_tick(stage)

    assert set(elevated.pods()) == {busy} | others
    found = condition(elevated, "Ready", "wide")
    assert (found["status"], found["reason"]) == ("False", "PodSecurityNotAllowed")
    stage.rt.settings = replace(stage.rt.settings, allowed_pod_security="baseline")
    kept(stage)
    assert len(elevated.pods()) == 3 + len(others)


@pytest.mark.parametrize(
    ("security", "admits"), [({}, False), ({"allowForks": True}, True), ({"podSecurity": "restricted"}, True)]
)
def test_pool_above_restricted_admits_forks_only_if_its_spec_says_so_twice(
    stage: Stage, elevated: Stage, security: dict[str, Any], admits: bool
) -> None:
    stage.rt.settings = replace(stage.rt.settings, allowed_pod_security="baseline")
    elevated.pool("wide", replicas=0, allowForks=True, security={"podSecurity": "baseline", **security})
    kept(stage)
    (row,) = stage.rows("SELECT allow_forks, pod_security FROM pools WHERE name = 'wide'")
    assert (row.allow_forks, row.pod_security) == (admits, security.get("podSecurity", "baseline"))


def builders(stage: Stage) -> dict[str, str | None]:
    """Return the image of the builder of each Pod of pool `wide`, or None for a Pod without a builder."""
    path = f"/api/v1/namespaces/{stage.namespace}/pods?labelSelector=ostler.dev%2Fpool%3Dwide"
    return {
        pod["metadata"]["name"]: next(
            (each["image"] for each in pod["spec"].get("initContainers", ()) if each["name"] == "builder"), None
        )
        for pod in stage.kube.request("GET", path)["items"]
        if "deletionTimestamp" not in pod["metadata"]
    }


def test_change_of_the_mode_replaces_warm_pods_and_keeps_busy_ones(stage: Stage, elevated: Stage) -> None:
    stage.with_settings(allowed_pod_security="privileged", buildkit_image="buildkit:1", dind_image="dind:1")
    containers = {"mode": "buildkit"}
    elevated.pool("wide", replicas=2, security={"podSecurity": "privileged"}, containers=containers)
    kept(stage)
    polls(stage)
    busy, _ = sorted(builders(elevated))
    stage.job(7)
    elevated.claim(busy, job_id=7, state="executing")

    for change, image in (({"mode": "dind"}, "dind:1"), (None, None)):
        spec(elevated, "wide", containers=change)
        rounds(stage, 4)
        found = builders(elevated)
        assert found.pop(busy) == "buildkit:1"
        assert set(found.values()) == {image}


@pytest.mark.parametrize("mode", ["buildkit", "dind"])
def test_pool_without_an_image_for_its_builder_is_degraded_and_others_go_on(
    stage: Stage, elevated: Stage, mode: str
) -> None:
    stage.with_settings(allowed_pod_security="privileged")
    elevated.pool("wide", replicas=1, security={"podSecurity": "privileged"}, containers={"mode": mode})
    elevated.pool("other", replicas=1)

    found = condition(elevated, "Degraded", "wide")
    assert found["reason"] == "BuilderDisabled"
    assert f"runners.{mode}.image" in found["message"]
    assert {pod.pool for pod in elevated.pods().values()} == {"small", "other"}
