"""Ostler itself in a cluster: the chart installed by Helm on a real node, with the images of `make images`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from lab.node.namespace import is_isolated
from lab.node.policies.ruleset import Mode
from lab.node.product_images import product_image
from lab.node.store_images import postgres_image, redis_image
from lab.system import NODE, Options, System
from tests.node.conftest import SMALL, Fleet
from tests.node.policed import enforcer_of
from tests.node.release import DEPLOYMENTS, WEBHOOK_ADDRESS, Release

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

CHANGED = "OSTLER_GITHUB_MINTS_PER_MINUTE"
"""Setting that only web and workers read, so that its change replaces their Pods."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Yield a release of the chart with one pool. Of the system, only GitHub and the cluster are used."""
    if not is_isolated():
        pytest.fail("these tests need namespaces of their own: run `make test-node`", pytrace=False)
    options = Options(
        pools=(),
        images=[product_image(say=print), postgres_image(say=print), redis_image(say=print)],
        services=True,
        webhook_url=f"http://{WEBHOOK_ADDRESS}/webhooks/github",
    )
    system = System(tmp_path_factory.mktemp("system"), options, say=print, cluster=NODE)
    with contextlib.ExitStack() as stack:
        stack.callback(system.stop)
        settings = system.start_without_ostler()
        kube = stack.enter_context(contextlib.closing(system.kube()))
        release = Release(system, kube, (SMALL,))
        release.install(settings)
        yield release


@pytest.fixture(scope="module")
def fleet(release: Release) -> Iterator[Fleet]:
    """Yield what the tests ask of the release's pool."""
    fleet = Fleet(release.system)
    with contextlib.closing(fleet.kube):
        yield fleet


def test_every_deployment_becomes_available(release: Release) -> None:
    release.wait_until_available()

    assert set(release.restarts().values()) == {0}
    path = "/apis/policy/v1/namespaces/ostler/poddisruptionbudgets"
    budgets = {each["metadata"]["name"]: each["status"] for each in release.kube.request("GET", path)["items"]}
    assert {name: each["disruptionsAllowed"] for name, each in budgets.items()} == {
        "ostler-web": 1,
        "ostler-worker-default": 1,
    }


@pytest.mark.parametrize("component", [name.removeprefix("ostler-").removesuffix("-default") for name in DEPLOYMENTS])
def test_containers_run_as_the_user_of_the_image_and_write_only_to_tmp(release: Release, component: str) -> None:
    release.wait_until_available()

    said = release.run_in(component, "sh", "-c", "id -u; id -g; touch /tmp/x && echo written; touch /opt/ostler/x")

    assert said.splitlines()[:3] == ["10001", "10001", "written"]
    assert "Read-only file system" in said


def test_ten_jobs_complete_exactly_once(release: Release, fleet: Fleet) -> None:
    release.wait_until_available()
    fleet.wait_until_whole()

    jobs = fleet.send(10, duration_seconds=1)

    ends = [fleet.wait_for(job, "completed", within=240) for job in jobs]
    assert [(each["conclusion"], each["executions"]) for each in ends] == [("success", 1)] * 10


def test_doctor_finds_nothing_wrong(release: Release) -> None:
    release.wait_until_available()

    said = release.run_in("worker", "ostler", "doctor")

    assert " failed " not in said, said
    assert "18 sweeps are on time" in said, said
    assert "2 web processes send heartbeats" in said, said


def test_verify_deploy_proves_nothing_where_no_policy_is_enforced(release: Release, fleet: Fleet) -> None:
    release.wait_until_available()

    done = release.verify_deploy(to=fleet.system.github_url)

    assert done.returncode == 1, done.stdout
    assert "the network plugin does not enforce the policies" in done.stdout


@pytest.mark.parametrize("mode", Mode)
def test_verify_deploy_and_jobs_pass_where_policies_are_enforced(release: Release, fleet: Fleet, mode: Mode) -> None:
    release.wait_until_available()
    with enforcer_of(fleet, mode):
        done = release.verify_deploy(to=fleet.system.github_url)

        assert done.returncode == 0, done.stdout
        assert "passed: the connection was held" in done.stdout
        release.wait_until_available()
        fleet.wait_until_whole()
        ends = [fleet.wait_for(job, "completed", within=240) for job in fleet.send(6, duration_seconds=1)]
        assert [(each["conclusion"], each["executions"]) for each in ends] == [("success", 1)] * 6


@pytest.mark.timeout(1800)
def test_upgrade_and_rollback_touch_no_running_job(release: Release, fleet: Fleet) -> None:
    release.wait_until_available()
    fleet.wait_until_whole()
    jobs = fleet.send(SMALL.replicas, duration_seconds=600)
    running = {fleet.pod_of(job) for job in jobs}
    before = {pod["metadata"]["name"] for pod in release.pods()}

    release.upgrade(**{CHANGED: "61"})
    release.wait_until_available(within=420)
    assert release.setting("ostler-web", CHANGED) == "61"
    after = {pod["metadata"]["name"] for pod in release.pods()}
    replaced = {name.rpartition("-")[0].rpartition("-")[0] for name in before - after}
    assert replaced == {"ostler-web", "ostler-worker-default"}
    release.roll_back()
    release.wait_until_available(within=420)
    assert release.setting("ostler-web", CHANGED) is None

    assert {fleet.job(job)["status"] for job in jobs} == {"in_progress"}
    ends = [fleet.wait_for(job, "completed", within=600) for job in jobs]
    assert [(each["conclusion"], each["executions"]) for each in ends] == [("success", 1)] * len(jobs)
    assert fleet.events("killed") == []
    assert {fleet.pod_of(job) for job in jobs} == running
    assert set(release.restarts().values()) == {0}
    assert all(codes <= {0} for codes in release.exit_codes.values()), release.exit_codes
