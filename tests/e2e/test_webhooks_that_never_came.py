"""Webhooks that GitHub never sends, in the whole system: the sweep `catch_up` finds their jobs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from k8s_adapters.calls.client import KubeClient
from lab.bootstrap import LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LABELS = ("self-hosted", "linux", "small")


@pytest.fixture
def system(
    control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """A small system with a short interval of the sweep."""
    namespace = f"untold-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    settings = {
        **timings(catch_up_every=2, catch_up_after=2, catch_up_over_after=4, sweep_every=5),
    }
    options = Options(pools=(LabPool("small", LABELS, 3),), beats=1, real_pods=0, settings=settings)
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, namespace=namespace, control_plane=control_plane) as running:
        running.wait_for_warm_pods(3, timeout=180)
        yield running
    admin.request("DELETE", f"/api/v1/namespaces/{namespace}")


def send(system: System, labels: tuple[str, ...] = LABELS) -> int:
    """Queue one job and return its id."""
    body = {"repository": "acme/shop", "labels": list(labels), "duration_seconds": 0.2}
    found: int = system.lab("POST", "/jobs", body)["ids"][0]
    return found


def github_says(system: System, job: int) -> dict[str, Any]:
    """Return a job as GitHub shows it."""
    found: dict[str, Any] = next(each for each in system.lab("GET", "/jobs")["jobs"] if each["id"] == job)
    return found


def test_job_without_a_webhook_runs_once_and_one_that_never_starts_ends(system: System) -> None:
    engine = create_engine(system.postgres.url("ostler"))

    def rows(statement: str, **given: Any) -> list[Any]:
        with engine.connect() as db:
            return list(db.execute(text(statement), given))

    def ours(job: int) -> tuple[Any, ...] | None:
        found = rows("SELECT state, conclusion FROM jobs WHERE id = :id", id=job)
        return tuple(found[0]) if found else None

    first = send(system)  # the repository is one that we know
    eventually(lambda: ours(first) == ("completed", "success"), within=240)
    system.lab("POST", "/webhooks", {"vanish_action": "queued"})
    untold = send(system)
    eventually(lambda: ours(untold) == ("completed", "success"), within=240)
    brought = rows(
        "SELECT outcome FROM repairs WHERE sweep = 'catch_up' AND what = 'bring' AND job_id = :id", id=untold
    )
    assert [row.outcome for row in brought] == ["verified"]

    deliveries = system.lab("GET", "/deliveries")["deliveries"]
    late = next(each for each in deliveries if (each["job"], each["action"]) == (untold, "queued"))
    system.lab("POST", f"/deliveries/{late['guid']}/redeliver")
    eventually(lambda: bool(rows("SELECT 1 FROM deliveries WHERE guid = :guid", guid=late["guid"])), within=240)
    assert ours(untold) == ("completed", "success")
    assert len(rows("SELECT 1 FROM job_events WHERE job_id = :id AND transition = 'job_seen'", id=untold)) == 1

    system.lab("POST", "/webhooks", {"vanish_action": ""})
    stuck = send(system, labels=("self-hosted", "nobody"))
    eventually(lambda: ours(stuck) == ("queued", None), within=240)
    system.lab("POST", f"/runs/{github_says(system, stuck)['run_id']}/end")
    eventually(lambda: ours(stuck) == ("completed", "startup_failure"), within=240)
    assert github_says(system, stuck)["status"] == "queued"

    eventually(lambda: not system.lab("GET", "/runners")["runners"], within=240)
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log))
    assert verdict.problems == ()
    assert verdict.executions == 2
    engine.dispose()
