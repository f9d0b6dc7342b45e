"""A real Helm renames, removes and restores pools while jobs run: no job is killed, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.runners.runner_scripts import ensure_scripts
from lab import helm
from lab.control_plane import ClusterAccess
from lab.manifests import Kinds
from ostler.errors import Gone
from tests.guard import collector_policy, until_refused
from tests.integration.tasks.conftest import Stage
from tests.integration.tasks.pools.drains import busy_pod, delete, drain, end_job, seen
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.cluster]  # a cold cache builds Helm first

SPEC = {"image": "runner:1", "runnerLabels": ["self-hosted", "small"], "replicas": 2}


@dataclass(frozen=True, slots=True)
class Release:
    """The chart in a separate namespace. Its runners are in the namespace of the stage."""

    stage: Stage
    access: ClusterAccess

    @property
    def namespace(self) -> str:
        """Return the namespace of the release."""
        return f"{self.stage.namespace}-release"

    def upgrade(self, *pools: str) -> None:
        """Install or upgrade the release with these pools."""
        values: dict[str, Any] = {
            "runners": {"namespace": self.stage.namespace, "create": False},
            "pools": {name: {**SPEC, "runnerLabels": ["self-hosted", name]} for name in pools},
        }
        helm.upgrade_install(values=values, kubeconfig=self.access.kubeconfig, namespace=self.namespace)

    def roll_back(self, revision: int = 0) -> None:
        """Roll back to a revision, or to the previous one."""
        helm.rollback(kubeconfig=self.access.kubeconfig, namespace=self.namespace, revision=revision)

    def uninstall(self) -> None:
        """Uninstall the release."""
        helm.uninstall(kubeconfig=self.access.kubeconfig, namespace=self.namespace)


@pytest.fixture
def release(stage: Stage, control_plane: ClusterAccess, admin: KubeClient) -> Iterator[Release]:
    # The chart's policy for scripts lets only a worker create them, and the tasks of a stage are an administrator's.
    ensure_scripts(stage.kube, namespace=stage.namespace)
    made = Release(stage, control_plane)
    yield made
    kinds = Kinds(admin)
    with suppress(helm.HelmRefused):
        made.uninstall()
    for each in collector_policy(stage.namespace):  # it stays by itself
        with suppress(Gone):
            admin.request("DELETE", f"{kinds.collection(each)}/{each['metadata']['name']}")
    admin.request("DELETE", f"/api/v1/namespaces/{made.namespace}")


def pods_of(stage: Stage, pool: str) -> set[str]:
    return {name for name, pod in stage.pods().items() if pod.pool == pool}


def work(stage: Stage, pool: str, job: int) -> tuple[str, int]:
    """Let a Pod of a pool execute a job."""
    return busy_pod(stage, job, name=min(pods_of(stage, pool)), stamped=True)


def after_drains(stage: Stage, condition: Callable[[], bool]) -> None:
    """Continue the drain until a condition is true. For a moment, admission might refuse what a new release allows."""

    def holds() -> bool:
        drain(stage)
        return condition()

    eventually(holds, within=60)


def test_a_pool_renamed_and_rolled_back_while_it_is_busy_kills_nothing(release: Release) -> None:
    stage = release.stage
    release.upgrade("old")
    after_drains(stage, lambda: len(pods_of(stage, "old")) == 2)
    name, claim = work(stage, "old", 7)

    release.upgrade("new")
    after_drains(stage, lambda: pods_of(stage, "old") == {name} and len(pods_of(stage, "new")) == 2)

    # Helm cannot bring back what is still there; it says so, and changes nothing.
    with pytest.raises(helm.HelmRefused, match='cannot patch "old"'):
        release.roll_back()
    other, second = work(stage, "new", 8)
    drain(stage)
    assert pods_of(stage, "old") == {name}
    assert len(pods_of(stage, "new")) == 2

    end_job(stage, name, claim)
    after_drains(stage, lambda: seen(stage, "old") is None)
    release.roll_back(1)
    after_drains(stage, lambda: len(pods_of(stage, "old")) == 2)
    # The revision that failed has no pool of this name, so it is nobody's now, and serves on.
    assert other in pods_of(stage, "new")
    delete(stage, "new")
    after_drains(stage, lambda: pods_of(stage, "new") == {other})
    end_job(stage, other, second)
    after_drains(stage, lambda: seen(stage, "new") is None)
    assert stage.service_accounts() == {"default", *pods_of(stage, "old")}


def test_a_pool_dropped_by_the_chart_and_one_uninstalled_drain(release: Release) -> None:
    stage = release.stage
    release.upgrade("old", "kept")
    after_drains(stage, lambda: len(stage.pods()) == 4)
    name, claim = work(stage, "old", 7)
    kept = pods_of(stage, "kept")

    release.upgrade("kept")
    after_drains(stage, lambda: pods_of(stage, "old") == {name})
    end_job(stage, name, claim)
    after_drains(stage, lambda: seen(stage, "old") is None)
    assert pods_of(stage, "kept") == kept

    release.roll_back()
    after_drains(stage, lambda: len(pods_of(stage, "old")) == 2)
    name, claim = work(stage, "old", 8)

    release.uninstall()
    after_drains(stage, lambda: set(stage.pods()) == {name})
    until_refused(stage.kube, stage.namespace, refused=True)
    end_job(stage, name, claim)
    after_drains(stage, lambda: seen(stage, "old") is None and seen(stage, "kept") is None)
    assert stage.pods() == {}
    assert stage.service_accounts() == {"default"}
