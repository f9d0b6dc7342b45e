"""Changes of a Pod that are worth a report."""

from __future__ import annotations

import pytest

from rules.upstream.watching import Hint, PoolObservation, Sight, hints_of, pool_changed

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
    one = PoolObservation("small", 1, terminating=False)
    assert not pool_changed(one, PoolObservation("small", 1, terminating=False))
    for other in (None, PoolObservation("small", 2, terminating=False), PoolObservation("small", 1, terminating=True)):
        assert pool_changed(one, other)
        assert pool_changed(other, one)
