"""The client of a channel: one for all commands, and never one with a broken connection or an old pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from celery import Celery

from lab.redis import Redis
from ostler.secrets import Secret
from ostler.task_names import DISPATCH
from ostler.wakes import producer


@pytest.fixture
def app(redis_server: Redis) -> Iterator[Celery]:
    with producer(Secret(redis_server.url)) as found:
        yield found


def send(app: Celery, number: int) -> None:
    app.send_task(DISPATCH, kwargs={"pool_id": number}, queue="dispatch")


def sent(server: Redis) -> list[int]:
    with server.client() as client:
        messages = [json.loads(each) for each in client.lrange("dispatch", 0, -1)]
    return sorted(json.loads(each["headers"]["kwargsrepr"].replace("'", '"'))["pool_id"] for each in messages)


def test_commands_make_no_client(app: Celery, redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    send(app, 1)
    made: list[object] = []
    begin = redis.Redis.__init__

    def noted(self: redis.Redis, **given: object) -> None:
        made.append(self)
        begin(self, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(redis.Redis, "__init__", noted)

    send(app, 2)

    assert sent(redis_server) == [1, 2]
    assert len(made) == 1  # `sent`'s own


def test_threads_share_it(app: Celery, redis_server: Redis) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: send(app, number), range(100)))
    assert sent(redis_server) == list(range(100))


def test_connections_that_were_cut_are_replaced(app: Celery, redis_server: Redis) -> None:
    send(app, 1)
    with redis_server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    send(app, 2)
    assert sent(redis_server) == [1, 2]


def test_a_channel_with_a_new_pool_has_a_new_client(app: Celery, redis_server: Redis) -> None:
    with app.connection_for_write() as connection, connection.channel() as channel:
        first = channel._create_client()
        assert channel._create_client() is first
        channel._disconnect_pools()
        second = channel._create_client()
        assert second is not first
        assert second.connection_pool is channel.pool
        assert second.ping()
        assert channel.client is not second
    assert sent(redis_server) == []
