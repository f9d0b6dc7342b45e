"""No-op tasks with Ostler's Celery settings, as the bound: the cost of three messages without any database access.

`worker` runs them in threads as Ostler's worker does; `send` starts them at a rate and prints the time of each from
its first message to the end of the third task, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import redis
from celery import Celery, chain

from tasks.worker.app import SETTINGS

app = Celery("noop", broker=os.environ.get("OSTLER_REDIS_URL", "redis://"), set_as_current=True)
app.conf.update({**SETTINGS, "task_routes": {}})
_DONE = "noop:done"
_store = redis.Redis.from_url(os.environ.get("OSTLER_REDIS_URL", "redis://"))


@app.task(name="noop.first")  # type: ignore[untyped-decorator]
def first(*, sent: float) -> None:
    """Simulate the dispatch: start a chain of two tasks."""
    chain(second.si(sent=sent), third.si(sent=sent)).apply_async(link_error=failed.si())


@app.task(name="noop.second")  # type: ignore[untyped-decorator]
def second(*, sent: float) -> None:
    """Simulate the stamp."""


@app.task(name="noop.third")  # type: ignore[untyped-decorator]
def third(*, sent: float) -> None:
    """Simulate the mint, and record the time of the three tasks."""
    _store.rpush(_DONE, time.time() - sent)


@app.task(name="noop.failed")  # type: ignore[untyped-decorator]
def failed() -> None:
    """Stand in for the release. It does not run, because no task fails."""


def send(*, count: int, rate: float) -> list[float]:
    """Send `count` chains and return the milliseconds of each.

    Raises TimeoutError if a chain has not ended 30 seconds after the last was sent.
    """
    _store.delete(_DONE)
    began = time.monotonic()
    for number in range(count):
        if (left := began + number / rate - time.monotonic()) > 0:
            time.sleep(left)
        first.apply_async(kwargs={"sent": time.time()})
    end = time.monotonic() + 30
    while int(_store.llen(_DONE)) < count:
        if time.monotonic() > end:
            raise TimeoutError(f"{_store.llen(_DONE)} of {count} chains ended within 30 s; see the log of the worker")
        time.sleep(0.05)
    times: Any = _store.lrange(_DONE, 0, -1)
    return [float(each) * 1000 for each in times]


def main() -> None:
    """Run the worker or the sender."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.noop", description=__doc__)
    parser.add_argument("what", choices=["worker", "send"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10.0)
    arguments = parser.parse_args()
    if arguments.what == "send":
        json.dump(send(count=arguments.count, rate=arguments.rate), sys.stdout)
        return
    app.worker_main(
        ["worker", "--pool=threads", "--concurrency=16", "--without-gossip", "--without-mingle", "--loglevel=WARNING"]
    )


if __name__ == "__main__":
    main()
