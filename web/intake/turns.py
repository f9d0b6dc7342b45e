"""A queue in which owners take turns, so that an owner with many items hardly delays the items of other owners.

`take` removes one item of each owner in turn. If the queue is full, the caller calls `evict` to make room for a new
item of an owner. `evict` removes the newest item of the owner with the most items.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items by owner. The items of one owner stay in order.

    A queue is not safe for use by several threads.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[int, deque[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of queued items."""
        return self._size

    def put(self, owner: int, item: T) -> None:
        """Queue an item behind the other items of its owner."""
        self._lanes.setdefault(owner, deque()).append(item)
        self._size += 1

    def take(self, most: int) -> list[T]:
        """Remove and return up to `most` items, one item of each owner in turn.

        The next call starts with the owner whose turn is next.
        """
        taken: list[T] = []
        while self._lanes and len(taken) < most:
            owner, lane = self._lanes.popitem(last=False)
            taken.append(lane.popleft())
            if lane:
                self._lanes[owner] = lane
        self._size -= len(taken)
        return taken

    def evict(self, owner: int) -> T | None:
        """Remove and return the newest item of the owner with the most items.

        The caller then has room for a new item of `owner`. Return None and remove nothing if the owner with the most
        items would then have fewer items than `owner` with its new item.
        """
        if not self._lanes:
            return None
        lanes = self._lanes
        largest = max(lanes, key=lambda each: len(lanes[each]))
        if len(lanes[largest]) - 1 < len(lanes.get(owner, ())) + 1:
            return None
        evicted = lanes[largest].pop()  # the owner had at least two items, so its queue does not become empty
        self._size -= 1
        return evicted
