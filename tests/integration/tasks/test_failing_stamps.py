"""The stamp is safety, not a gate (law L10): Pod PATCHes that fail for minutes hold back no JIT and no job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import pytest

from models import offers
from models.deliver import deliver
from models.engine import transaction
from ostler.clock import utcnow
from ostler.errors import Retryable
from tasks import release as of_release
from tasks import stamp as of_stamp
from tasks.release import release
from tasks.stamp import unstamp
from tasks.sweeps import resume as of_resume
from tasks.sweeps.resume import resume
from tasks.sweeps.stale_claims import stale_claims
from tests.integration.tasks.conftest import Stage


@pytest.fixture
def removing(clusterless: Stage, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return a minted claim whose stamp is being removed while every PATCH of a Pod fails."""
    stage = clusterless

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise Retryable("the mutating webhook is broken")

    def start(*_: Any, **__: Any) -> None:
        return

    monkeypatch.setattr(of_stamp, "write", fail)
    monkeypatch.setattr(of_release, "write", fail)
    monkeypatch.setattr(of_resume, "start_chains", start)
    stage.add_pod("pod-1")
    stage.job(1)
    claim = stage.claim("pod-1", job_id=1, state="minted", age=60)
    stage.rows("UPDATE claims SET jit = 'x' WHERE id = :id", id=claim)
    resume.run()
    assert stage.see(claim).stamp == "removing"
    with pytest.raises(Retryable):
        unstamp.run(claim_id=claim)
    return claim


@pytest.mark.xfail(strict=True, reason="nothing is delivered while the stamp is being removed, however the Pod polls")
def test_a_polling_pod_gets_its_jit_when_its_stamp_cannot_be_removed(clusterless: Stage, removing: int) -> None:
    stage, now = clusterless, utcnow()
    poll = offers.Polling("pod-1", "none", "pod-1", "poll-9", now + timedelta(seconds=60), again=False)
    transaction(stage.rt.engine, lambda db: offers.offer(db, [poll], web_id="w", now=now))
    delivery = transaction(
        stage.rt.engine,
        lambda db: deliver(db, claim_id=removing, pod_uid="pod-1", poll_id="poll-9", now=utcnow(), who="web"),
    )
    assert delivery is not None


@pytest.mark.xfail(strict=True, reason="a release needs a PATCH of the Pod, and its job waits for that")
def test_a_job_is_queued_again_when_the_stamp_of_its_claim_cannot_be_removed(clusterless: Stage, removing: int) -> None:
    stage = clusterless
    created = "UPDATE claims SET created_at = now() - interval '10 min', leased_until = NULL WHERE id = :id"
    stage.rows(created, id=removing)
    stale_claims.run()
    for _ in range(5):
        hour = "UPDATE claims SET leased_until = NULL, changed_at = now() - interval '1 hour' WHERE id = :id"
        stage.rows(hour, id=removing)
        with pytest.raises(Retryable):
            release.run(claim_id=removing)
    assert stage.see(removing).job_state == "queued"
