"""What a change of a Pod is worth telling."""

from __future__ import annotations

import pytest

from rules.watching import Hint, Sight, hints_of

WARM = Sight("small", terminal=False, ready=False)
RUNS = Sight("small", terminal=False, ready=True)
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
    ],
)
def test_each_thing_is_told_once(before: Sight | None, after: Sight | None, told: set[Hint]) -> None:
    assert hints_of(before, after) == told
