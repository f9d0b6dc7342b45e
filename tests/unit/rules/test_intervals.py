"""Ranges of whole numbers at their ends."""

from __future__ import annotations

import pytest

from deploys.intervals import Intervals


def of(*ranges: tuple[int, int]) -> Intervals:
    return Intervals.of(ranges)


def test_ranges_that_touch_are_joined_and_those_apart_are_not() -> None:
    assert of((5, 6), (1, 2), (3, 4)).ranges == ((1, 6),)
    assert of((1, 2), (4, 5)).ranges == ((1, 2), (4, 5))
    assert of((1, 9), (2, 3)).ranges == ((1, 9),)
    assert of((3, 2), (4, 4)).ranges == ((4, 4),)
    assert not of((3, 2))


def test_a_number_at_an_edge_is_in_the_range() -> None:
    assert [number in of((3, 5)) for number in (2, 3, 4, 5, 6)] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        ((0, 9), ((10, 20),)),
        ((0, 10), ((11, 20),)),
        ((20, 30), ((10, 19),)),
        ((21, 30), ((10, 20),)),
        ((12, 14), ((10, 11), (15, 20))),
        ((10, 20), ()),
        ((0, 30), ()),
    ],
)
def test_what_is_cut_out_leaves_both_sides(cut: tuple[int, int], left: tuple[tuple[int, int], ...]) -> None:
    assert of((10, 20)).minus(of(cut)).ranges == left


def test_several_ranges_are_cut_and_shared() -> None:
    one, two = of((1, 10), (20, 30)), of((3, 4), (8, 22), (30, 40))
    assert one.minus(two).ranges == ((1, 2), (5, 7), (23, 29))
    assert one.common(two).ranges == ((3, 4), (8, 10), (20, 22), (30, 30))
    assert one.union(two).ranges == ((1, 40),)
