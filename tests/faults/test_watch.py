"""The watch in the whole system: the changes that it notices without any list of Pods. No job needs it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Row, text

from lab.control_plane import ClusterAccess
from lab.system import read_log
from lab.timings import timings
from tests.faults.stage import Stage, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NO_LISTS = timings(sweep_every=3600, pools_every=3600, watch_executing_after=1)
"""Beat sends no sweep that lists Pods, and no reconciler."""

ROUNDS = 5
AT_ONCE = 4


@pytest.fixture(scope="module")
def stage(control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A system with two watches and without lists."""
    folder = tmp_path_factory.mktemp("watch")
    with running(
        folder, control_plane, f"watch-{secrets.token_hex(4)}", workers=1, watches=2, settings=NO_LISTS
    ) as stage:
        yield stage


def let_go_at(stage: Stage) -> dict[str, float]:
    """Return the time (Unix) at which the kubelet confirmed the end of each Pod, before the API server removed it."""
    return {
        event["uid"]: datetime.fromisoformat(event["at"]).timestamp()
        for event in read_log(stage.system.kubelet_log)
        if event["event"] == "pod_deleted"
    }


def ended(stage: Stage, claims: Sequence[int]) -> Sequence[Row[Any]]:
    """Return id, reason, Pod and time (Unix) of the claims that have ended."""
    with stage.engine.connect() as db:
        return db.execute(
            text("""
                SELECT id, end_reason, pod_uid, extract(epoch FROM ended_at)::float AS at FROM claims
                WHERE id = ANY(:ids) AND ended_at IS NOT NULL
            """),
            {"ids": list(claims)},
        ).all()


def test_claims_end_soon_after_their_pods_are_gone_although_nothing_lists_pods(stage: Stage) -> None:
    took: list[float] = []
    for _ in range(ROUNDS):
        # GitHub does not notice the loss of a runner meanwhile: no webhook helps.
        stage.system.lab("POST", "/settings", {"lock_expiry": 3600})
        jobs = stage.send(AT_ONCE, seconds=3600)
        claims = stage.claims_in(jobs, {"executing"})

        stage.delete_pods({claim.pod_uid: claim.pod_name for claim in claims})

        ids = [claim.id for claim in claims]
        stage.until(lambda ids=ids: len(ended(stage, ids)) == AT_ONCE, what="the end of the claims")  # type: ignore[misc]
        rows = ended(stage, ids)
        assert {row.end_reason for row in rows} == {"pod_gone"}
        let_go = let_go_at(stage)
        took += [row.at - let_go[row.pod_uid] for row in rows]
        stage.system.lab("POST", "/settings", {"lock_expiry": 5})
        stage.until(lambda jobs=jobs: stage.are_over(jobs), what="the end of the jobs")  # type: ignore[misc]

    took.sort()
    middle, most = took[len(took) // 2], took[-1]
    print(f"\n{len(took)} claims ended after their Pods were gone: p50 {middle:.2f} s, most {most:.2f} s")  # noqa: T201


def test_an_execution_is_seen_without_a_webhook(stage: Stage) -> None:
    with ExitStack() as until_seen:
        with stage.engine.begin() as db:  # while the pool is locked nothing is claimed
            db.execute(text("SELECT pg_advisory_xact_lock(id) FROM pools"))
            (job,) = stage.send(1, seconds=3600)
            stage.until(lambda: stage.job_states([job]) == {job: "queued"}, what="the job's row")
            until_seen.enter_context(stage.webhooks_lost())

        (claim,) = stage.claims_in([job], {"executing"})

        with stage.engine.connect() as db:
            why = db.execute(
                text("SELECT why FROM claim_events WHERE claim_id = :id AND to_state = 'executing'"), {"id": claim.id}
            ).scalar_one()
        assert why == "the runner of the claim has begun a job"
        assert stage.job_states([job]) == {job: "claimed"}
    stage.cancel(job)
    stage.until(lambda: stage.are_over([job]), what="the end of the job")


def test_jobs_flow_on_when_every_watch_is_gone(stage: Stage) -> None:
    watches = [name for name in stage.system.children if name.startswith("watch")]
    for name in watches:
        stage.system.children[name].kill()

    jobs = stage.send(2) + stage.send(2)

    stage.until(lambda: stage.are_over(jobs), what="the end of the jobs")
    for name in watches:
        stage.system.restart(name)
    stage.assert_whole()
