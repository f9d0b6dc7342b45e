"""A claim that a frozen process holds locked does not stop `resume` for the other claims (law L14)."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from models.db.engine import make_engine
from tasks.sweeps import resume as of_resume
from tasks.sweeps.resume import resume
from tests.database import Database
from tests.integration.tasks.conftest import Stage


def test_resume_sends_late_steps_when_another_claim_is_locked(
    clusterless: Stage, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = clusterless
    stage.rt.engine = make_engine(database.url, pool_size=10, application="as in production")
    sent: list[int] = []

    def start(ids: list[int], **_: Any) -> None:
        sent.extend(ids)

    monkeypatch.setattr(of_resume, "start_chains", start)
    for number in (1, 2):
        stage.add_pod(f"pod-{number}")
        stage.job(number)
    frozen = stage.claim("pod-1", job_id=1, state="minted", age=60)
    late = stage.claim("pod-2", job_id=2, state="claimed", age=60)
    stage.rows("UPDATE claims SET due_at = now() - interval '30 s' WHERE id = :id", id=late)
    with stage.rt.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM claims WHERE id = :id FOR NO KEY UPDATE"), {"id": frozen})
        resume.run()
        assert sent == [late]
