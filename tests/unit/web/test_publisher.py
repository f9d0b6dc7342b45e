"""The publisher survives an outage of Redis, and keeps its messages within its limits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from ostler.secrets import Secret
from ostler.task_names import RECONCILE, REMATCH, STAMP
from tests.outbox import Outbox
from tests.waiting import eventually
from web.process import publisher
from web.process.publisher import Publisher

NOWHERE = Secret("redis://127.0.0.1:1/0")


class Sender(Outbox):
    """An outbox that fails while `away` is set, and that has the wake keys of Redis."""

    def __init__(self) -> None:
        super().__init__()
        self.away: Exception | None = None
        self.keys: set[int] = set()
        self.reconcile_keys: set[int] = set()
        self.tried = threading.Event()

    def wake(self, pool_id: int) -> bool:
        if pool_id in self.keys:
            return False
        self.keys.add(pool_id)
        return super().wake(pool_id)

    def clear_wake(self, pool_id: int) -> None:
        self.keys.discard(pool_id)

    def reconcile(self, pool_id: int, **how: Any) -> None:
        if pool_id not in self.reconcile_keys:
            self.reconcile_keys.add(pool_id)
            super().reconcile(pool_id, **how)

    def clear_reconcile(self, pool_id: int, **_: Any) -> None:
        self.reconcile_keys.discard(pool_id)

    def _note(self, name: str, kwargs: dict[str, Any]) -> None:
        self.tried.set()
        if self.away is not None:
            raise self.away
        super()._note(name, kwargs)


def test_what_is_asked_for_is_sent_in_order() -> None:
    sender = Sender()
    publishing = Publisher(NOWHERE, sender=sender)
    publishing.wake([3, 1, 3])
    publishing.send(STAMP, claim_id=9)
    publishing.reconcile(3)
    publishing.start()
    publishing.stop()
    assert sender.woken == [3, 1]
    assert sender.sent[2:] == [(STAMP, {"claim_id": 9}), (RECONCILE, {"pool_id": 3, "ended": True})]


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), OperationalError("away"), OSError("away")])
def test_nothing_is_lost_while_redis_is_away(error: Exception) -> None:
    sender = Sender()
    sender.away = error
    publishing = Publisher(NOWHERE, sender=sender)
    publishing.start()
    publishing.wake([1, 2])
    publishing.send(STAMP, claim_id=9)
    assert sender.tried.wait(10)
    sender.away = None
    eventually(lambda: publishing.depth == 0 and len(sender.sent) == 3)
    publishing.stop()
    assert sorted(sender.woken) == [1, 2]


def test_reconcile_is_sent_in_the_end_when_its_key_was_set_before_a_failure() -> None:
    sender = Sender()
    sender.away = OperationalError("the key was set, the message was not sent")
    publishing = Publisher(NOWHERE, sender=sender)
    publishing.start()
    publishing.reconcile(1)
    assert sender.tried.wait(10)
    sender.away = None
    eventually(lambda: sender.sent == [(RECONCILE, {"pool_id": 1, "ended": True})], within=10)
    publishing.stop()


def test_a_wake_whose_key_was_set_but_never_sent_is_sent_in_the_end() -> None:
    sender = Sender()
    sender.away = OperationalError("the key was set, the message was not sent")
    publishing = Publisher(NOWHERE, sender=sender)
    publishing.start()
    publishing.wake([1])
    assert sender.tried.wait(10)
    sender.away = None
    eventually(lambda: sender.woken == [1])
    publishing.stop()


def test_what_is_over_the_bound_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MOST_POOLS", 2)
    monkeypatch.setattr(publisher, "MOST_MESSAGES", 1)
    publishing = Publisher(NOWHERE, sender=Sender())
    publishing.wake([1, 2, 3, 2])
    publishing.send(STAMP)
    publishing.send(REMATCH)
    assert publishing.dropped == 2
    assert publishing.depth == 3
