"""Blame for late starts: the part of the way that took most of the time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.waiting.blame import Blame, Start, blame_of, spent_of

QUEUED = datetime(2026, 11, 30, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return QUEUED + timedelta(seconds=seconds)


PROMPT = Start(
    queued_at=QUEUED,
    started_at=at(4),
    tried_at=at(1),
    tried_refused=False,
    claimed_at=at(1),
    minted_at=at(2),
    delivered_at=at(3),
    pod_created_at=at(-100),
    polled_at=at(-90),
    at_budget=False,
)
REST: dict[str, Any] = {"minted_at": at(601), "delivered_at": at(602), "started_at": at(605)}


@pytest.mark.parametrize(
    ("start", "blame"),
    [
        (replace(PROMPT, **REST, claimed_at=at(600), tried_at=at(600)), Blame.OSTLER),
        (replace(PROMPT, **REST, claimed_at=at(600), tried_at=at(600), at_budget=True), Blame.BUDGET),
        (
            replace(PROMPT, **REST, claimed_at=at(600), tried_at=at(600), pod_created_at=at(500), polled_at=at(590)),
            Blame.CAPACITY,
        ),
        (
            replace(PROMPT, **REST, claimed_at=at(600), tried_at=at(600), pod_created_at=at(10), polled_at=at(590)),
            Blame.CLUSTER,
        ),
        # Without room in the budget, the time before the first poll of the Pod still counts for the cluster.
        (
            replace(
                PROMPT,
                **REST,
                claimed_at=at(600),
                tried_at=at(600),
                pod_created_at=at(10),
                polled_at=at(590),
                at_budget=True,
            ),
            Blame.CLUSTER,
        ),
        (replace(PROMPT, **REST, claimed_at=at(600), tried_at=at(1), tried_refused=True), Blame.GITHUB),
        (replace(PROMPT, **REST, claimed_at=at(600), tried_at=at(1)), Blame.CLUSTER),
        (replace(PROMPT, minted_at=at(600), delivered_at=at(601), started_at=at(605)), Blame.GITHUB),
        (replace(PROMPT, delivered_at=at(600), started_at=at(605)), Blame.OSTLER),
        (replace(PROMPT, started_at=at(605)), Blame.GITHUB),
        (replace(PROMPT, started_at=at(605), claimed_at=None), Blame.CAPACITY),
        (replace(PROMPT, started_at=at(605), claimed_at=at(600), tried_at=None, polled_at=None), Blame.OSTLER),
    ],
)
def test_blame_of_a_late_start_is_the_longest_part_of_its_way(start: Start, blame: Blame) -> None:
    assert blame_of(start) is blame


_TIMES = st.none() | st.integers(-1000, 1000).map(at)


@given(
    st.builds(
        Start,
        **{name: _TIMES for name in PROMPT.__slots__ if name.endswith("_at")}
        | {
            "queued_at": st.just(QUEUED),
            "started_at": st.integers(0, 1000).map(at),
            "tried_refused": st.booleans(),
            "at_budget": st.booleans(),
        },
    )
)
def test_parts_of_a_wait_sum_to_the_wait_in_any_order_of_times(start: Start) -> None:
    spent = spent_of(start)
    assert sum(spent.values()) == (start.started_at - start.queued_at).total_seconds()
    assert min(spent.values()) >= 0
    assert spent[blame_of(start)] == max(spent.values())
