"""Sets of whole numbers, stored as ranges. The numbers are ports or IP addresses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of whole numbers. `ranges` are closed and sorted, and do not touch, so that equal sets compare as equal.

    Create a set with `of`, which accepts any ranges.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """Return the set of the numbers in at least one of `ranges`. A range that ends before its start is empty."""
        joined: list[tuple[int, int]] = []
        for low, high in sorted(each for each in ranges if each[0] <= each[1]):
            if joined and low <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(high, joined[-1][1])
            else:
                joined.append((low, high))
        return cls(tuple(joined))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, number: int) -> bool:
        return any(low <= number <= high for low, high in self.ranges)

    def union(self, other: Self) -> Self:
        """Return the numbers that are in this set or in `other`."""
        return self.of((*self.ranges, *other.ranges))

    def minus(self, other: Self) -> Self:
        """Return the numbers that are in this set and not in `other`."""
        left: list[tuple[int, int]] = []
        for low, high in self.ranges:
            start = low
            for cut_low, cut_high in other.ranges:
                if cut_high < start or cut_low > high:
                    continue
                left.append((start, cut_low - 1))
                start = cut_high + 1
            left.append((start, high))
        return self.of(left)

    def common(self, other: Self) -> Self:
        """Return the numbers that are in both sets."""
        return self.minus(self.minus(other))
