"""The queue whose owners take turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from web.intake.turns import Turns


def queued(*owners: int) -> Turns[tuple[int, int]]:
    turns: Turns[tuple[int, int]] = Turns()
    for number, owner in enumerate(owners):
        turns.put(owner, (owner, number))
    return turns


def test_an_owner_that_queues_last_is_taken_next_to_one_that_queued_much() -> None:
    turns = queued(*[1] * 1000, 2)
    assert [owner for owner, _ in turns.take(3)] == [1, 2, 1]


def test_the_next_take_goes_on_with_the_owner_after_the_last() -> None:
    turns = queued(1, 1, 1, 2, 2, 3, 3)
    assert [owner for owner, _ in turns.take(2) + turns.take(2) + turns.take(2)] == [1, 2, 3, 1, 2, 3]


def test_an_owner_with_less_gets_the_room_of_the_newest_item_of_the_one_with_most() -> None:
    turns = queued(1, 1, 1, 2)
    assert turns.evict(2) == (1, 2)
    assert len(turns) == 3


def test_an_owner_with_as_much_as_any_other_gets_no_room() -> None:
    assert queued(1, 1, 2, 2).evict(1) is None
    assert queued(1, 1).evict(1) is None
    assert queued(1, 2).evict(3) is None
    assert Turns[int]().evict(1) is None


@given(st.lists(st.integers(0, 4)), st.integers(1, 7))
def test_everything_is_taken_once_and_in_the_order_of_its_owner(owners: list[int], most: int) -> None:
    turns, taken = queued(*owners), []
    while batch := turns.take(most):
        assert len(batch) <= most
        taken += batch
    assert len(turns) == 0
    for owner in set(owners):
        assert [each for each in taken if each[0] == owner] == [
            (owner, number) for number, each in enumerate(owners) if each == owner
        ]


@given(st.lists(st.integers(0, 4), min_size=1), st.integers(0, 4))
def test_room_is_never_made_at_the_cost_of_an_owner_that_has_no_more(owners: list[int], owner: int) -> None:
    turns, before = queued(*owners), Counter(owners)
    evicted = turns.evict(owner)
    if evicted is not None:
        assert before[evicted[0]] == max(before.values()) > before[owner] + 1
