"""`docs/operations/cluster.md` as it is written: each `sh` block, in order, in one bash, on a separate control plane.

helm, kubectl, the API server, Postgres and Redis are real, and the page's own commands install Ostler. There is no
kubelet: `Release` starts the processes that the Deployments name and runs the hook's Job. A wrapper of kubectl replaces
`kubectl exec … deploy/NAME -- ostler …` by that command with the environment of that process. kubectl gets everything
else unchanged. Runner Pods and GitHub are those of the lab. Between blocks the test does what the page leaves to
others: it sets the App's secrets, sends jobs and takes a backup. Then it checks the promises of the page.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.cluster.secrets import put_secret
from k8s_adapters.names import POOL_LABEL
from k8s_adapters.pools.crd import CRD_NAME
from lab import helm, kubectl
from lab.control_plane import ControlPlane, ControlPlaneUnavailable
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from ostler.errors import Gone
from ostler.secrets import Secret
from tests.e2e.release import Release
from tests.e2e.shell import Block, Shell, blocks_of
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.cluster]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations" / "cluster.md"
MOST_NOT_RUN = 3
BLOCK_WITHIN = 180.0
"""Seconds for one block on a slow machine. The limits on the page are for an operator and can be hours."""

RUNNERS = "ostler-runners"
PROMISES_NOTHING = f"kubectl get pods,serviceaccounts --namespace {RUNNERS} --selector {POOL_LABEL}\n"
"""The only command that must find nothing."""

LABELS = ["self-hosted", "linux", "small"]
APP_KEYS = ("OSTLER_GITHUB_APP_ID", "OSTLER_GITHUB_PRIVATE_KEY", "OSTLER_WEBHOOK_SECRETS")
ELSEWHERE = ("OSTLER_GITHUB_API_URL", "OSTLER_GITHUB_MINTS_PER_MINUTE", "OSTLER_DISPATCH_URL", "OSTLER_WEB_HOST")
"""Settings that depend on the network of the processes, and those that the lab's three accounts need."""

SOONER = {
    **timings(
        epoch_every=1,
        pools_every=1,
        autoscale_every=2,
        sweep_every=10,
        spent_after=2,
        unresolved_after=6,
        redelivery_again_after=3,
    ),
}


@dataclass
class Story:
    """The system that the page describes, and the acts and checks of the test between the blocks."""

    system: System
    release: Release
    shell: Shell
    kube: KubeClient
    settings: Mapping[str, str]
    long_jobs: list[int] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        """Prepare a block, run it, and check its effect."""
        before, after = STEPS.get((block.heading, block.number), (None, None))
        if before is not None:
            before(self)
        if block.reason is None:
            began = time.monotonic()
            said = self.shell.run(block.text, timeout=BLOCK_WITHIN)
            print(f"{block.heading} {block.number}: {time.monotonic() - began:.1f} s\n{said}")  # noqa: T201
            # Neither is an error to kubectl: a selector or a field with a slip in it would do nothing, and say so here.
            assert "unknown field" not in said
            assert ("No resources found" in said) == (PROMISES_NOTHING in block.text)
        if after is not None:
            after(self)
        assert self.release.problem is None, self.release.problem

    # What the page leaves to others.

    def give_the_app(self) -> None:
        """Write the secrets that `ostler setup github` writes after GitHub has created the App."""
        values = {name: Secret(self.settings[name]) for name in APP_KEYS}
        put_secret(self.kube, namespace="ostler", name="ostler", values=values)

    def run_jobs(self, count: int = 3) -> None:
        """Send short jobs, and check that each ran once."""
        ids = self.send(count, seconds=0.3)
        eventually(lambda: self.states(ids) == {"completed"}, what="the jobs ended")

    def begin_a_long_job(self, seconds: float = 6.0) -> None:
        """Start a job that runs until the next block has begun."""
        ids = self.send(1, seconds=seconds)
        self.long_jobs += ids
        eventually(lambda: self.states(ids) == {"in_progress"}, within=60, what="the long job began")
        eventually(lambda: len(self.busy_pods()) == 1, within=30, what="its Pod is stamped")

    def see_it_ended(self) -> None:
        """Check that every long job ended on its first Pod."""
        eventually(lambda: self.states(self.long_jobs) == {"completed"}, what="the long job ended")

    def take_a_backup(self) -> None:
        """Copy Postgres, and run more jobs that the copy does not contain."""
        self.system.postgres.copy("backup")
        self.run_jobs()
        self.begin_a_long_job(seconds=20)

    def put_it_back(self) -> None:
        """Replace the database by the copy, which is an hour old and contains the lease of a sweep."""
        self.system.postgres.put_back("backup")
        self.rows("""
            UPDATE sweeps SET began_at = began_at - interval '1 h', succeeded_at = succeeded_at - interval '1 h',
                   lease_holder = CASE WHEN name = 'redelivery' THEN 'killed' ELSE lease_holder END,
                   leased_until = CASE WHEN name = 'redelivery' THEN began_at + interval '25 s' ELSE leased_until END
            RETURNING name
        """)

    # What the page promises.

    def see_the_release(self) -> None:
        """Check that the hook's own processes finished before any other process ran."""
        assert self.release.hooks == ["database: 0", "definition: 0"]

    def see_restored(self) -> None:
        """Check that the jobs that ran during the restore ended, and that new jobs run."""
        assert self.rows("SELECT 1 FROM epochs WHERE older_since IS NOT NULL") == []
        self.see_it_ended()
        self.run_jobs()

    def see_the_pool(self) -> None:
        """Check that the API server stores the page's pool, with the overlay of its Pods."""
        spec = self.pool()["spec"]
        assert (spec["replicas"], spec["drainTimeout"], spec["rollout"]) == (3, "6h", {"maxUnavailablePercent": 34})
        assert {each["metadata"]["labels"]["team"] for each in self.runner_pods()} == {"ci"}
        self.run_jobs()

    def see_it_scaled_by_hand(self) -> None:
        """Check that the autoscaler does not change the number of Pods."""
        spec = self.pool()["spec"]
        assert (spec["autoscaling"]["enabled"], spec["replicas"]) == (False, 3)

    def see_it_paused(self) -> None:
        """Check that the pool is paused in the cluster, and that warm Pods still run jobs."""
        assert self.pool()["spec"]["paused"] is True
        self.run_jobs(1)

    def see_it_resumed(self) -> None:
        """Check that the pool is no longer paused."""
        assert self.pool()["spec"]["paused"] is False

    def see_the_new_image(self) -> None:
        """Check that no Pod of the old image is left."""
        images = {each["spec"]["containers"][0]["image"] for each in self.runner_pods()}
        assert images == {"registry.lab/runner:2"}

    def see_the_tag(self, tag: str) -> None:
        """Check that the cluster has this version, and that it runs jobs."""
        path = "/apis/apps/v1/namespaces/ostler/deployments/ostler-web"
        image = self.kube.request("GET", path)["spec"]["template"]["spec"]["containers"][0]["image"]
        assert image == f"registry.lab/ostler:{tag}"
        self.run_jobs(1)

    def see_no_pool(self) -> None:
        """Check that nothing of the pool is left, except the results of its jobs at GitHub.

        The finalizer waits for running Pods. A Pod that has just ended might outlive the pool for a moment: the garbage
        collector of the cluster deletes it by its owner reference.
        """
        assert self.kube.request("GET", f"/apis/ostler.dev/v1alpha1/namespaces/{RUNNERS}/runnerpools")["items"] == []
        eventually(lambda: self.runner_pods() == [], within=60, what="runner Pods of a pool that is gone")
        path = object_path("serviceaccounts", namespace=RUNNERS)

        def accounts_are_gone() -> bool:
            return not self.kube.request("GET", path, query={"labelSelector": POOL_LABEL})["items"]

        eventually(accounts_are_gone, within=60, what="ServiceAccounts of a pool that is gone")
        self.see_it_ended()

    def see_nothing(self) -> None:
        """Check that the cluster contains nothing of Ostler."""
        for path in (
            "/api/v1/namespaces/ostler",
            f"/api/v1/namespaces/{RUNNERS}",
            f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}",
        ):
            with pytest.raises(Gone):
                self.kube.request("GET", path)
        for group, kind in (
            ("rbac.authorization.k8s.io", "clusterroles"),
            ("rbac.authorization.k8s.io", "clusterrolebindings"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
        ):
            items = self.kube.request("GET", f"/apis/{group}/v1/{kind}")["items"]
            assert [each["metadata"]["name"] for each in items if "ostler" in each["metadata"]["name"]] == []

    # How it is checked.

    def send(self, count: int, *, seconds: float) -> list[int]:
        body = {"repository": "acme/shop", "labels": LABELS, "count": count, "duration_seconds": seconds}
        ids: list[int] = self.system.lab("POST", "/jobs", body)["ids"]
        return ids

    def states(self, ids: list[int]) -> set[str]:
        jobs = {each["id"]: each["status"] for each in self.system.lab("GET", "/jobs")["jobs"]}
        return {jobs[id_] for id_ in ids}

    def pool(self) -> dict[str, Any]:
        path = f"/apis/ostler.dev/v1alpha1/namespaces/{RUNNERS}/runnerpools/small"
        found: dict[str, Any] = self.kube.request("GET", path)
        return found

    def runner_pods(self) -> list[dict[str, Any]]:
        path = object_path("pods", namespace=RUNNERS)
        items: list[dict[str, Any]] = self.kube.request("GET", path, query={"labelSelector": POOL_LABEL})["items"]
        return items

    def busy_pods(self) -> set[str]:
        return {
            each["metadata"]["name"]
            for each in self.runner_pods()
            if "ostler.dev/runner-pool-owner" in each["metadata"]["labels"] and each["status"]["phase"] == "Running"
        }

    def rows(self, statement: str) -> list[Any]:
        engine = create_engine(self.system.postgres.url("ostler"))
        with engine.begin() as db:
            found = list(db.execute(text(statement)).all())
        engine.dispose()
        return found


Act = Callable[[Story], None] | None
STEPS: Mapping[tuple[str, int], tuple[Act, Act]] = {
    ("Install", 2): (None, Story.give_the_app),
    ("Install", 3): (None, Story.see_the_release),
    ("Define a pool", 1): (None, Story.see_the_pool),
    ("Change a pool", 3): (None, Story.see_it_scaled_by_hand),
    ("Change a pool", 4): (None, Story.see_it_paused),
    ("Change a pool", 5): (None, Story.see_it_resumed),
    ("Change a pool", 6): (None, Story.see_the_new_image),
    ("Upgrade", 1): (Story.begin_a_long_job, None),
    ("Upgrade", 2): (None, lambda story: story.see_the_tag("2")),
    ("Upgrade", 3): (None, lambda story: story.see_the_tag("1")),
    ("Drain a node", 1): (Story.begin_a_long_job, Story.see_it_ended),
    ("Drain a pool", 1): (Story.begin_a_long_job, Story.see_no_pool),
    ("Restore Postgres from a backup", 1): (Story.take_a_backup, Story.put_it_back),
    ("Restore Postgres from a backup", 2): (None, Story.see_restored),
    ("Remove everything", 1): (Story.begin_a_long_job, Story.see_no_pool),
    ("Remove everything", 2): (None, Story.see_nothing),
}


def programs(folder: Path, environments: Path) -> Path:
    """Return a folder with `helm`, `kubectl` and `ostler`. PATH has this folder and the system's folders only."""
    folder.mkdir()
    python = sys.executable
    for name, line in {
        "helm": f'exec {helm.build()} "$@"',
        "ostler": f'exec {python} -m ostler "$@"',
        "kubectl": f'[ "$1" != exec ] || exec {python} {ROOT}/tests/e2e/kubectl_exec.py {environments} "$@"\n'
        f'exec {kubectl.build()} "$@"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("docs")
    helm.build()
    kubectl.build()
    try:
        with ControlPlane.start(folder / "control-plane") as control_plane:
            system = System(
                folder / "system",
                Options(pools=(), real_pods=2),
                say=print,
                namespace=RUNNERS,
                control_plane=control_plane,
            )
            try:
                yield from _told(system, control_plane, folder)
            finally:
                system.stop()
    except ControlPlaneUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def _told(system: System, control_plane: ControlPlane, folder: Path) -> Iterator[Story]:
    settings = system.start_without_ostler()
    home = folder / "home"
    home.mkdir()
    shutil.copytree(ROOT / "charts", home / "charts")
    environment = {
        "PATH": f"{programs(folder / 'bin', folder / 'release')}:/usr/bin:/bin",
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),  # noqa: S108
        "KUBECONFIG": str(control_plane.kubeconfig),
        "IMAGE": "registry.lab/ostler",
        "TAG": "1",
        "RUNNER_IMAGE": "registry.lab/runner:1",
        "WEBHOOK_HOST": "ostler.lab.example",
        "DATABASE_URL": settings["OSTLER_DATABASE_URL"],
        "REDIS_URL": settings["OSTLER_REDIS_URL"],
    }
    instead = {name: settings[name] for name in ELSEWHERE} | SOONER
    kube = system.kube()
    with (
        Release(control_plane.access, "ostler", folder / "release", instead, system.web_ports[0]) as release,
        Shell(home, environment) as shell,
    ):
        yield Story(system, release, shell, kube, settings)
    kube.close()


def test_the_page_installs_runs_upgrades_drains_restores_and_removes(story: Story) -> None:
    blocks = blocks_of(PAGE.read_text())
    assert {(each.heading, each.number) for each in blocks} >= set(STEPS)

    for block in blocks:
        story.follow(block)

    verdict = judge(read_log(story.system.github_log), read_log(story.system.kubelet_log))
    assert verdict.problems == ()


def test_what_is_not_run_is_little_and_says_why() -> None:
    text = PAGE.read_text()
    blocks = blocks_of(text)
    left_out = [each for each in blocks if each.reason is not None]
    assert all(each.reason for each in left_out)
    assert len(left_out) <= MOST_NOT_RUN
    assert len(re.findall(r"^```\w*$", text, re.MULTILINE)) == 2 * len(blocks), "a block that is not marked as sh"
    assert text.count("<!--") == len(left_out), "a comment that marks no block"
