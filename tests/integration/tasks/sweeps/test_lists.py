"""Lists of a large cluster arrive in pages, and any page can fail: the conclusions from an incomplete list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from k8s_adapters.calls import metadata
from k8s_adapters.calls.client import make_client
from k8s_adapters.calls.metadata import ObjectSeen
from k8s_adapters.names import OWNER_LABEL
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.sweeps import missing_pods as of_pods
from tasks.sweeps import orphaned_stamps as of_stamps
from tasks.sweeps.frame import lists
from tasks.sweeps.missing_pods import missing_pods
from tasks.sweeps.missing_stamps import missing_stamps
from tasks.sweeps.orphaned_service_accounts import orphaned_service_accounts
from tasks.sweeps.orphaned_stamps import orphaned_stamps
from tests.integration.tasks.conftest import RUNNER, Stage, StubGitHub

SWEEPS = (missing_pods, missing_stamps, orphaned_stamps, orphaned_service_accounts)
LATER_PAGES = r".*[?&]continue=.*"
BREAKS = {
    "the continue token expired": Fault(kind="status", status=410, path_regex=LATER_PAGES),
    "the body was cut": Fault(kind="truncate", path_regex=LATER_PAGES),
    "the connection was reset": Fault(kind="reset_before", path_regex=LATER_PAGES),
    "the server failed": Fault(kind="status", status=500, path_regex=LATER_PAGES),
}


@pytest.fixture
def line(stage: Stage, control_plane: ClusterAccess) -> Iterator[FaultProxy]:
    """The breakable connection of the sweeps to the real API server."""
    with (
        FaultProxy(control_plane.url, ca_file=control_plane.ca_file) as proxy,
        closing(make_client(kubeconfig=str(proxy.kubeconfig(control_plane.kubeconfig)))) as client,
    ):
        stage.rt._kube = client
        yield proxy


def path(stage: Stage, pod: str) -> str:
    return f"/api/v1/namespaces/{stage.namespace}/pods/{pod}"


def stamp(stage: Stage, pod: str) -> None:
    body = {"metadata": {"labels": {OWNER_LABEL: "1"}}}
    stage.kube.request("PATCH", path(stage, pod), body=body, content_type="application/merge-patch+json")


def fill(stage: Stage, *, replicas: int) -> list[str]:
    """Create Pods, let nothing be too young, and return the names of the Pods in the order of a list."""
    stage.rt.github = StubGitHub()
    stage.with_settings(orphaned_stamp_after=0, orphaned_account_after=0)
    stage.pool(replicas=replicas)
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    stage.outbox.sent.clear()
    return sorted(stage.pods())


def stall(stage: Stage) -> None:
    """Create something for each sweep to repair, which is not on the first page of its list."""
    first, unstamped, vanished, orphan, outlived = fill(stage, replicas=5)
    for job in (1, 2, 3):
        stage.job(job)
    stage.claim(first, job_id=1, state="claimed")
    stamp(stage, first)
    stage.claim(unstamped, job_id=2, state="delivered", age=60)
    stage.claim(vanished, job_id=3, state="executing", runner=RUNNER)
    stamp(stage, orphan)
    for pod in (vanished, outlived):
        stage.kube.request("DELETE", path(stage, pod), body={"gracePeriodSeconds": 0})
    stage.rows("UPDATE runner_pods SET gone_at = now() WHERE name = :name", name=outlived)


def accounts(stage: Stage) -> int:
    pages = metadata.metadata_pages(
        stage.kube, "serviceaccounts", namespace=stage.namespace, selector=metadata.OF_POOLS
    )
    return sum(len(page) for page in pages)


def state(stage: Stage) -> list[Any]:
    return [
        *stage.rows("SELECT id, purpose, state, end_reason, due_at FROM claims ORDER BY id"),
        *stage.rows("SELECT id, state, hold_reason FROM jobs ORDER BY id"),
        *stage.rows("SELECT sweep, what FROM repairs"),
        *stage.outbox.sent,
        accounts(stage),
    ]


@pytest.mark.parametrize("how", BREAKS)
def test_a_list_that_breaks_off_ends_the_tick_and_nothing_is_concluded_from_its_part(
    stage: Stage, line: FaultProxy, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stall(stage)
    monkeypatch.setattr(metadata, "PAGE", 1)
    before = state(stage)
    line.add(BREAKS[how])
    for sweep in SWEEPS:
        sweep.run()
    assert state(stage) == before
    runs = stage.rows("SELECT outcome, listed FROM sweep_runs")
    assert [tuple(run) for run in runs] == [("aborted", 1)] * len(SWEEPS)

    line.clear()
    for sweep in SWEEPS:
        sweep.run()
    repaired = {row.sweep: row.what for row in stage.rows("SELECT sweep, what FROM repairs")}
    assert repaired == {
        "missing_pods": "end claim",
        "missing_stamps": "stamp",
        "orphaned_stamps": "retire",
        "orphaned_service_accounts": "delete service account",
    }


def meanwhile(monkeypatch: pytest.MonkeyPatch, module: Any, act: Callable[[], object]) -> None:
    """Do something once after the server has answered, before the sweep has read the answer."""
    real = lists.runner_pages

    def pages(*args: Any, **kwargs: Any) -> Iterator[list[ObjectSeen]]:
        found = list(real(*args, **kwargs))
        act()
        yield from found

    monkeypatch.setattr(module, "runner_pages", pages)


def test_a_stamped_pod_that_was_claimed_while_it_was_listed_is_not_even_suspected(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, _ = fill(stage, replicas=2)
    stamp(stage, pod)
    stage.job(7)
    meanwhile(monkeypatch, of_stamps, lambda: stage.claim(pod, job_id=7, state="claimed"))
    orphaned_stamps.run()
    (run,) = stage.rows("SELECT * FROM sweep_runs")
    assert (run.outcome, run.listed, run.found) == ("done", 2, 0)


def test_a_claim_whose_pod_is_missing_from_one_list_goes_on_when_the_pod_is_there(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, other = fill(stage, replicas=2)
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="executing", runner=RUNNER)
    real = lists.runner_pages

    def without(*args: Any, **kwargs: Any) -> Iterator[list[ObjectSeen]]:
        for page in real(*args, **kwargs):
            yield [each for each in page if each.name == other]

    monkeypatch.setattr(of_pods, "runner_pages", without)
    missing_pods.run()
    assert stage.see(claim).state == "executing"
