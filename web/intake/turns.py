"""A queue whose owners take turns: an owner with many items waits behind itself, and no other owner does.

`take` gives one item of each owner in turn. When the queue is full, `evict` makes room for an owner that has less in it
than another one, at the cost of the newest item of the owner that has the most.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items by owner; those of one owner keep their order. Not for several threads."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[int, deque[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Return how many items are queued."""
        return self._size

    def put(self, owner: int, item: T) -> None:
        """Queue an item behind the others of its owner."""
        self._lanes.setdefault(owner, deque()).append(item)
        self._size += 1

    def take(self, most: int) -> list[T]:
        """Remove and return up to `most` items, one of each owner in turn; the next call goes on after the last."""
        taken: list[T] = []
        while self._lanes and len(taken) < most:
            owner, lane = self._lanes.popitem(last=False)
            taken.append(lane.popleft())
            if lane:
                self._lanes[owner] = lane
        self._size -= len(taken)
        return taken

    def evict(self, owner: int) -> T | None:
        """Remove and return the newest item of the owner with the most; None if that would leave it less than `owner`.

        With one more item `owner` may come to as many as that one keeps, and not to more.
        """
        if not self._lanes:
            return None
        lanes = self._lanes
        largest = max(lanes, key=lambda each: len(lanes[each]))
        if len(lanes[largest]) - 1 < len(lanes.get(owner, ())) + 1:
            return None
        evicted = lanes[largest].pop()  # it keeps one at least
        self._size -= 1
        return evicted
