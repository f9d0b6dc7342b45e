"""A worker that has just started requests a check of the pools, without a wait for beat's first tick."""

from __future__ import annotations

import json
from types import SimpleNamespace

from lab.redis import Redis
from ostler.secrets import Secret
from ostler.wakes import producer
from tasks.worker.processes import reconcile_at_start


def test_a_worker_that_is_ready_asks_for_the_pools(redis_server: Redis) -> None:
    app = producer(Secret(redis_server.url))

    reconcile_at_start(sender=SimpleNamespace(app=app))

    with redis_server.client() as client:
        (message,) = client.lrange("pools", 0, -1)
    assert json.loads(message)["headers"]["task"] == "ostler.pools"
    app.close()
