"""A writer to Redis can neither end a worker nor keep it from its queues."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker
from celery.signals import heartbeat_sent
from celery.worker import WorkController

from lab.redis import Redis
from ostler import telemetry, transport
from ostler.task_names import QUEUES
from tasks.worker import processes
from tasks.worker.app import SETTINGS, app
from tasks.worker.processes import leave_signs_of_life
from tests.waiting import eventually

HITS: list[int] = []


@app.task(name="test.hit")  # type: ignore[untyped-decorator]
def hit(number: int) -> None:
    """Record that a message was executed."""
    HITS.append(number)


def message(**changes: Any) -> dict[str, Any]:
    """Return a valid message as kombu stores it, with changes at any of its places."""
    made: dict[str, Any] = {
        "body": base64.b64encode(b"[[1], {}, {}]").decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "test.hit", "id": "forged", "retries": 0},
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": "forged",
            "delivery_info": {"exchange": "", "routing_key": "dispatch"},
        },
    }
    for place, value in changes.items():
        *path, last = place.split("__")
        at = made
        for key in path:
            at = at[key]
        at[last.replace("_", "-") if last.startswith("content") else last] = value
    return made


POISON: list[bytes] = [
    b"no json",
    b"\xff\xfe",
    b"",
    b"[" * 100_000,
    b"5",
    b"[]",
    b"{}",
    b'"text"',
    b'{"__type__": "datetime", "__value__": "never"}',
    *(
        json.dumps(each).encode()
        for each in (
            message(headers=None),
            message(headers={}),
            message(headers__id=7),
            message(headers__task=["test.hit"]),
            message(headers__retries="many"),
            message(headers__timelimit=5),
            message(headers__timelimit=["a", "b"]),
            message(headers__eta="never"),
            message(headers__eta=5),
            message(headers__expires=[1]),
            message(headers__root_id={}),
            message(headers__compression="gzip"),
            message(headers__argsrepr=5),
            message(headers__origin=[]),
            message(headers__ignore_result=[]),
            message(headers__stamps=5, headers__stamped_headers=["a"]),
            message(headers__shadow=7),
            message(headers__group=7),
            message(headers__parent_id=[]),
            message(properties=None),
            message(properties={}),
            message(properties__delivery_tag=None),
            message(properties__delivery_info=None),
            message(properties__delivery_info={}),
            message(properties__body_encoding="rot13"),
            message(properties__priority="high"),
            message(properties__reply_to=5),
            message(properties__correlation_id=[]),
            message(body=None),
            message(body=5),
            message(body="a"),
            message(body=base64.b64encode(b"no json").decode()),
            message(body=base64.b64encode(b"5").decode()),
            message(body=base64.b64encode(b"[1, 2, 3]").decode()),
            message(body=base64.b64encode(b'[[1], {}, {"callbacks": 5, "errbacks": {}, "chain": 7}]').decode()),
            message(content_type="application/x-python-serialize"),
            message(content_encoding="rot13"),
            message(content_type=None),
        )
    ),
]


@pytest.fixture
def worker(redis_server: Redis) -> Iterator[WorkController]:
    """A real worker on all queues, in threads of this process."""
    before = app.conf.broker_url
    app.conf.update({**SETTINGS, "broker_url": redis_server.url})
    options = {**SETTINGS["broker_transport_options"], "unacked_restore_interval": 1}
    app.conf.broker_transport_options = options
    app.conf.task_routes = {**SETTINGS["task_routes"], "test.hit": {"queue": "dispatch"}}
    HITS.clear()
    with start_worker(
        app, pool="threads", concurrency=2, perform_ping_check=False, loglevel="ERROR", queues=list(QUEUES)
    ) as running:
        yield running
    app.conf.update({**SETTINGS, "broker_url": before})
    app.close()


def executes(number: int) -> None:
    """Wait until a message that is sent now was executed."""
    hit.apply_async((number,))
    eventually(lambda: number in HITS, f"message {number} was executed")


@pytest.mark.usefixtures("worker")
def test_worker_survives_every_entry_that_is_no_message(redis_server: Redis) -> None:
    executes(-1)
    before = telemetry.MESSAGES_MALFORMED._value.get()
    with redis_server.client() as writer:
        for number, entry in enumerate(POISON):
            writer.lpush("dispatch", entry)
            executes(number)
        assert writer.llen("dispatch") == 0
    assert telemetry.MESSAGES_MALFORMED._value.get() >= before + 20


@pytest.mark.usefixtures("worker")
def test_broken_unacknowledged_entries_keep_no_other_from_its_return(redis_server: Redis) -> None:
    executes(-1)
    lost = message(headers__id="lost", body=base64.b64encode(b"[[77], {}, {}]").decode())
    with redis_server.client() as writer:
        for number, entry in enumerate(("no json", "5", "[1, 2]", '[{}, "", ""]', json.dumps([lost, "", "dispatch"]))):
            writer.hset("unacked", f"forged-{number}", entry)
            writer.zadd("unacked_index", {f"forged-{number}": number})
        eventually(lambda: 77 in HITS, "the last of them was executed")
        eventually(lambda: not writer.zrangebyscore("unacked_index", 0, 10), "the broken ones are gone")


@pytest.mark.usefixtures("worker")
def test_forged_control_messages_reach_no_worker(redis_server: Redis) -> None:
    executes(1)
    for command in ("cancel_consumer", "shutdown", "rate_limit", "pool_shrink"):
        app.control.broadcast(command, arguments={"queue": "dispatch", "task_name": "test.hit", "rate_limit": "1/h"})
    with redis_server.client() as reader:
        assert reader.keys("_kombu.binding.*pidbox") == []
    executes(2)


def test_worker_that_consumes_nothing_gives_no_sign_of_life(
    worker: WorkController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executes(1)
    alive = tmp_path / "alive"
    leave_signs_of_life(alive)
    heartbeat_sent.send(sender=None)
    assert alive.exists()

    def cancel() -> None:
        for queue in QUEUES:
            worker.consumer.cancel_task_queue(queue)

    worker.consumer.call_soon(cancel)
    monkeypatch.setattr(processes, "READS_WITHIN", 3.0)
    eventually(lambda: not transport.reading.is_fresh(within=3), "the worker reads no queue")
    alive.unlink()
    heartbeat_sent.send(sender=None)
    assert not alive.exists()


def test_worker_whose_hands_are_full_counts_as_reading() -> None:
    class Full(transport.QoS):
        def __init__(self) -> None:
            self.prefetch_count = 1
            self._delivered, self._dirty = {"a": 1}, set()  # type: ignore[assignment]

    transport.reading.at = time.monotonic() - 100
    assert Full().can_consume() is False
    assert transport.reading.is_fresh(within=5)
