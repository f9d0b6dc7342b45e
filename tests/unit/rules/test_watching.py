"""Changes of a Pod that are worth a report."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rules.pools.pool_spec import pool_changed
from rules.upstream.watching import Hint, Sight, hints_of
from tests.rows import pool_spec

WARM = Sight("small", terminal=False, ready=False)
RUNS = Sight("small", terminal=False, ready=True)
UNSTAMPED = Sight("small", terminal=False, ready=False, unstamped=True)
ENDED = Sight("small", terminal=True, ready=False)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, WARM, set()),
        (WARM, WARM, set()),
        (WARM, RUNS, {Hint.EXECUTING}),
        (RUNS, RUNS, set()),
        (None, RUNS, {Hint.EXECUTING}),
        (RUNS, ENDED, {Hint.SPENT}),
        (ENDED, ENDED, set()),
        (None, ENDED, {Hint.SPENT}),
        (RUNS, None, {Hint.GONE}),
        (ENDED, None, {Hint.GONE}),
        (None, None, {Hint.GONE}),
        (WARM, UNSTAMPED, {Hint.UNSTAMPED}),
        (None, UNSTAMPED, {Hint.UNSTAMPED}),
        (UNSTAMPED, UNSTAMPED, set()),
        (UNSTAMPED, WARM, set()),
    ],
)
def test_each_change_is_reported_once(before: Sight | None, after: Sight | None, told: set[Hint]) -> None:
    assert hints_of(before, after) == told


def test_pool_is_reconciled_when_it_is_added_changed_or_deleted() -> None:
    one = pool_spec(generation=1)
    assert not pool_changed(one, pool_spec(generation=1, status={"replicas": 1}, resource_version="2"))
    assert not pool_changed(None, None)
    drains = pool_spec(generation=1, deleted_at=datetime(2026, 1, 1, tzinfo=UTC))
    for other in (None, pool_spec(generation=2), drains):
        assert pool_changed(one, other)
        assert pool_changed(other, one)
