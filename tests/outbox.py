"""Doubles of the waker and of the publisher: they record each message in `sent`, in order, and send none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ostler.task_names import AUTOSCALE, RECONCILE, TaskName, queue_of
from web.process.publisher import Publisher


class Outbox:
    """A double of the waker of a worker, of the watch and of the publisher, without Redis. No key stops a message."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.retries: dict[str, int] = {}
        """Earlier attempts according to the last message of each task."""
        self.done_by_others: set[str] = set()
        self.pods_are_watched = False
        self.heads: dict[str, datetime | None] = {}

    def oldest(self, queue: str) -> datetime | None:
        """Return the time that the test has set."""
        return self.heads.get(queue)

    def record_pod_count(self, pool_id: int, *, pods: int) -> None:
        """Do nothing: there is no key to set."""

    def may_reconcile(self, pool_id: int) -> bool:
        """Return True: a reconcile may begin."""
        del pool_id
        return True

    def is_watched(self, namespace: str) -> bool:
        """Return the value that the test has set."""
        del namespace
        return self.pods_are_watched

    def wake(self, pool_id: int) -> bool:
        """Record a wake."""
        self._note("wake", {"pool_id": pool_id})
        return True

    def reconcile(self, pool_id: int, *, after: float = 0, shared: bool = False, ended: bool = False) -> None:
        """Record a reconcile."""
        how = {"after": after, "shared": shared, "ended": ended}
        self._note(RECONCILE, {"pool_id": pool_id} | {name: value for name, value in how.items() if value})

    def autoscale(self) -> None:
        """Record a run of the autoscaler."""
        self._note(AUTOSCALE, {})

    def send(self, name: TaskName, *, retries: int = 0, **kwargs: Any) -> None:
        """Record a message. A task that is not in the table fails the test."""
        queue_of(name)
        self.retries[name] = retries
        self._note(name, kwargs)

    def _note(self, name: str, kwargs: dict[str, Any]) -> None:
        self.sent.append((name, kwargs))

    def clear_wake(self, pool_id: int) -> None:
        """Do nothing: there is no key to delete."""

    def clear_reconcile(self, pool_id: int, *, shared: bool = False, ended: bool = False) -> None:
        """Do nothing: there is no key to delete."""

    @contextmanager
    def single_flight(self, what: str) -> Iterator[bool]:
        """Yield True, as if no other worker did this, unless the test sets another value."""
        yield what.partition(":")[0] not in self.done_by_others

    @property
    def woken(self) -> list[int]:
        """Return the pools whose matcher was woken, in order."""
        return [kwargs["pool_id"] for kwargs in self.named("wake")]

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the messages of one name."""
        return [kwargs for sent, kwargs in self.sent if sent == name]

    def take(self, name: str) -> list[dict[str, Any]]:
        """Return and remove the messages of one name."""
        taken = self.named(name)
        self.sent = [(sent, kwargs) for sent, kwargs in self.sent if sent != name]
        return taken

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class PublisherOutbox(Publisher):
    """A double of the publisher of a web process, without its thread."""

    def __init__(self) -> None:
        self.wakes: list[int] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def wake(self, pool_ids: Iterable[int]) -> None:
        self.wakes += pool_ids

    def reconcile(self, pool_id: int) -> None:
        self.sent.append((RECONCILE, {"pool_id": pool_id, "ended": True}))

    def send(self, name: TaskName, **kwargs: Any) -> None:
        queue_of(name)
        self.sent.append((name, kwargs))
