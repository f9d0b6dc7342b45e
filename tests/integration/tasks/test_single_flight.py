"""One of many processes does shared work. The keys for it survive no loss of Redis, no failure, and only seconds."""

from __future__ import annotations

import pytest

from lab.processes import free_port
from lab.redis import Redis
from ostler.secrets import Secret
from ostler.wakes import SINGLE_FLIGHT_MS, Waker


def does(waker: Waker, what: str) -> bool:
    with waker.single_flight(what) as alone:
        return alone


def test_the_first_does_it(waker: Waker) -> None:
    assert [does(waker, "delete:1"), does(waker, "delete:1"), does(waker, "delete:2")] == [True, False, True]


def test_another_may_after_a_failure(waker: Waker) -> None:
    with pytest.raises(ValueError, match="no"), waker.single_flight("delete:1"):
        raise ValueError("no")
    assert does(waker, "delete:1")


def test_who_was_not_first_gives_nothing_free(waker: Waker) -> None:
    with waker.single_flight("delete:1"):
        with pytest.raises(ValueError, match="no"), waker.single_flight("delete:1"):
            raise ValueError("no")
        assert not does(waker, "delete:1")


def test_the_word_of_one_who_was_killed_holds_for_seconds(waker: Waker, redis_server: Redis) -> None:
    does(waker, "delete:1")
    with redis_server.client() as client:
        assert 0 < client.pttl("ostler:single_flight:delete:1") <= SINGLE_FLIGHT_MS


def test_without_redis_all_do_it() -> None:
    waker = Waker(Secret(f"redis://127.0.0.1:{free_port()}/0"))
    assert [does(waker, "delete:1"), does(waker, "delete:1")] == [True, True]
    waker.close()
