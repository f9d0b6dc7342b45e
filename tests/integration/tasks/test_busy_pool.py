"""A pool whose lock another transaction holds is matched again soon, without a sweep (law L14)."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from models.db.engine import make_engine
from tasks.claims.dispatch import BUSY_PAUSE, dispatch
from tests.database import Database
from tests.integration.tasks.conftest import Stage


class Keys:
    """The wake keys of Redis, and the sent messages. A key that is set is not set again."""

    def __init__(self) -> None:
        self.set: set[int] = set()
        self.sent: list[float] = []

    def wake(self, pool_id: int, *, after: float = 0) -> bool:
        """Send a message unless one is waiting."""
        if pool_id in self.set:
            return False
        self.set.add(pool_id)
        self.sent.append(after)
        return True

    def clear_wake(self, pool_id: int) -> None:
        """Delete a key."""
        self.set.discard(pool_id)


def test_a_wake_that_finds_its_pool_locked_is_sent_again(
    clusterless: Stage, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, keys = clusterless, Keys()
    stage.rt.engine = make_engine(database.url, pool_size=2, application="as in production")
    monkeypatch.setattr(stage.rt, "wake_keys", keys, raising=False)
    monkeypatch.setattr(stage.rt.waker, "wake", keys.wake)
    (pool,) = stage.rows("SELECT id FROM pools")
    keys.wake(pool.id)
    with database.engine.begin() as holder:
        holder.execute(text("SELECT pg_advisory_xact_lock(:pool)"), {"pool": pool.id})
        dispatch.run(pool_id=pool.id)
    stage.rt.engine.dispose()
    assert keys.sent == [0, BUSY_PAUSE]
