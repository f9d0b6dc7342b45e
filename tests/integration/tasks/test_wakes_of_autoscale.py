"""Many processes ask for the autoscaler: at most two messages per second are sent, and none too early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lab.redis import Redis
from ostler.secrets import Secret
from ostler.task_names import AUTOSCALE
from ostler.wakes import AUTOSCALE_MS, Waker


class Sender:
    """A Celery app that records the messages to send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, float | None]] = []

    def send_task(self, name: str, *, countdown: float | None, **_: Any) -> None:
        self.sent.append((name, countdown))

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
def waker(redis_server: Redis, sender: Sender) -> Iterator[Waker]:
    found = Waker(Secret(redis_server.url), app=sender)
    yield found
    found.close()


def test_the_first_goes_out_at_once_and_one_more_for_those_who_came_too_late(
    waker: Waker, sender: Sender, redis_server: Redis
) -> None:
    for _ in range(10):
        waker.autoscale()
    assert sender.sent == [(AUTOSCALE, None), (AUTOSCALE, AUTOSCALE_MS / 1000)]
    with redis_server.client() as client:
        assert 0 < client.pttl("ostler:autoscale") <= AUTOSCALE_MS
        assert 0 < client.pttl("ostler:autoscale:next") <= AUTOSCALE_MS
    redis_server.flush()
    waker.autoscale()
    assert sender.sent[-1] == (AUTOSCALE, None)
