"""Lists of Pods that end out of order: the newest stays, both as the share and as the last one of a pool."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from models.pools import pod_lists, pool_mirror
from ostler.clock import utcnow
from tests.database import Database
from tests.rows import insert_pool

NOW = utcnow()
NEWER, OLDER, FUTURE = NOW, NOW - timedelta(seconds=5), NOW + timedelta(hours=1)


@pytest.mark.parametrize(
    ("before", "after", "stays"), [(NEWER, OLDER, NEWER), (OLDER, NEWER, NEWER), (FUTURE, NEWER, NEWER)]
)
def test_a_share_is_replaced_by_a_newer_one_or_if_it_is_of_the_future(
    database: Database, before: datetime, after: datetime, stays: datetime
) -> None:
    for taken_at in (before, after):
        with database.engine.begin() as db:
            pod_lists.store(db, namespace="n", shares={"small": b"x"}, taken_at=taken_at, whole_at=NOW)
    with database.engine.begin() as db:
        assert db.execute(text("SELECT taken_at FROM pod_lists")).scalar_one() == stays


@pytest.mark.parametrize(
    ("before", "after", "stays"), [(NEWER, OLDER, NEWER), (OLDER, NEWER, NEWER), (FUTURE, NEWER, NEWER)]
)
def test_listed_at_never_goes_back_unless_it_is_of_the_future(
    database: Database, before: datetime, after: datetime, stays: datetime
) -> None:
    pool_id = insert_pool(database.engine, listed_at=before)
    with database.engine.begin() as db:
        pool_mirror.record_listed(db, pool_id=pool_id, at=after, now=NOW)
        assert db.execute(text("SELECT listed_at FROM pools")).scalar_one() == stays
