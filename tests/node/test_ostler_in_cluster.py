"""Ostler itself in a cluster: the chart installed by Helm on a real node, with the images of `make images`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from urllib3.exceptions import HTTPError

from cli.setup.store import KEYS
from k8s_adapters.cluster.secrets import keys_of
from lab import kubectl
from lab.node.namespace import is_isolated
from lab.node.policies.ruleset import Mode
from lab.node.product_images import PRODUCT, product_image
from lab.node.store_images import postgres_image, redis_image
from lab.system import NODE, Options, System
from tests.e2e.shell import blocks_of
from tests.fleet import Fleet
from tests.integration.setup.browser import Browser
from tests.node.conftest import SMALL
from tests.node.policed import enforcer_of
from tests.node.release import DEPLOYMENTS, WEBHOOK_ADDRESS, Release
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

CHANGED = "OSTLER_GITHUB_MINTS_PER_MINUTE"
"""Setting that only web and workers read, so that its change replaces their Pods."""

PAGE = Path(__file__).parents[2] / "docs" / "first-run.md"


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

    said = release.run_in("worker", "ostler", "doctor", "--wide")

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


@pytest.fixture
def shell(release: Release) -> dict[str, str]:
    """Return the environment of a newcomer's shell, with the page's own values and kubectl."""
    repository, _, tag = PRODUCT.rpartition(":")
    return {
        "PATH": f"{kubectl.build().parent}:{os.environ['PATH']}",
        "HOME": str(release.system.folder),
        "KUBECONFIG": str(release.system.kubeconfig),
        "IMAGE": repository,
        "TAG": tag,
        "WEBHOOK_HOST": "ostler.example.invalid",
    }


def run_page(shell: dict[str, str], script: str) -> str:
    done = subprocess.run(
        ["bash", "-ec", script],
        env=shell,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_setup_github_in_a_pod_as_the_page_prints_it(release: Release, shell: dict[str, str], tmp_path: Path) -> None:
    """This test is the last one: the lab's GitHub sends its webhooks to the new App from then on."""
    blocks = [block.text for block in blocks_of(PAGE.read_text())]
    (block,) = [text for text in blocks if "kubectl run setup" in text]
    (remove,) = [text for text in blocks if text.startswith("kubectl delete pod,serviceaccount")]
    prepare, exec_it, setup = block.replace("YOUR-ORG", "acme").partition("kubectl exec -it")
    run_page(shell, prepare)
    github = release.system.github_url
    command = f"exec {exec_it} {setup.strip()} --github-url {github} --github-api-url {github} --secret"
    try:
        refused = subprocess.run(
            ["bash", "-ec", f"{command} ostler"], env=shell, capture_output=True, text=True, check=False, timeout=120
        )
        assert "nothing was created yet: Secret ostler/ostler already has OSTLER_GITHUB_APP_ID" in refused.stderr

        log = tmp_path / "setup.log"
        with (
            log.open("w") as output,
            subprocess.Popen(["bash", "-ec", f"{command} app"], env=shell, stdout=output, stderr=output) as process,
        ):
            try:
                said = eventually(
                    lambda: re.search(r"Open (\S+)[\s\S]+^ +(kubectl port-forward .+)$", log.read_text(), re.MULTILINE),
                    "the command does not print its page",
                    within=60,
                )
                with subprocess.Popen(["bash", "-ec", f"exec {said[2]}"], env=shell) as forward:
                    try:
                        create_app(said[1])
                    finally:
                        forward.terminate()
                assert process.wait(timeout=120) == 0, log.read_text()
            finally:
                process.kill()
        assert "kubectl exec --namespace ostler deploy/ostler-worker-default -- ostler setup ping" in log.read_text()
        assert keys_of(release.kube, namespace="ostler", name="app") == frozenset(KEYS)
    finally:
        run_page(shell, remove)


def create_app(url: str) -> None:
    """Act as the person at the browser: open the page when the port-forward leads to it, and create the App."""
    browser = Browser()

    def opens() -> bool:
        with contextlib.suppress(HTTPError):
            browser.open(url)
            return True
        return False

    eventually(opens, "the port-forward does not lead to the page", within=30)
    browser.submit()
    browser.submit()
    assert "GitHub made the App" in browser.content
