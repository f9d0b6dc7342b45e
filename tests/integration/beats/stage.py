"""Real beats with their own Redis, and a listener that takes their messages and records the times."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from lab.processes import Child
from lab.redis import Redis
from tests.waiting import eventually

ROOT = Path(__file__).parents[3]
LOCK = "redbeat::lock"


@dataclass(frozen=True, slots=True)
class Tick:
    """A message of beat: the sweep, and the time at which it was taken (monotonic seconds)."""

    sweep: str
    at: float


class Listener:
    """A listener that takes the sweeps' messages off the queues, as a worker would. It misses flushed messages."""

    def __init__(self, server: Redis) -> None:
        self.ticks: list[Tick] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)

    def start(self) -> None:
        """Start the listener."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the listener."""
        self._stop.set()
        self._thread.join()

    def of(self, sweep: str, *, since: float = 0) -> list[float]:
        """Return the times of a sweep's ticks after a moment."""
        return [tick.at for tick in list(self.ticks) if tick.sweep == sweep and tick.at > since]

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                with self._server.client() as client:
                    while not self._stop.is_set():
                        found: Any = client.brpop(["sweeps", "pools"], timeout=0.2)
                        if found is not None:
                            self.ticks.append(Tick(json.loads(found[1])["headers"]["task"], time.monotonic()))
            except RedisError:
                time.sleep(0.05)


class Beats:
    """Beats and their Redis."""

    def __init__(self, folder: Path, *, count: int, settings: Mapping[str, str]) -> None:
        self.redis = Redis(folder)
        self.listener = Listener(self.redis)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))}
        environment |= {"OSTLER_REDIS_URL": self.redis.url, **settings}
        self.children = [
            Child(
                f"beat-{number}",
                [sys.executable, "-m", "ostler", "beat"],
                log=folder / f"beat-{number}.log",
                env=environment,
                cwd=ROOT,
            )
            for number in range(count)
        ]

    def events(self, child: Child) -> list[str]:
        """Return the names of the events that a beat logged."""
        lines = child.log.read_text().splitlines()
        return [json.loads(line)["event"] for line in lines if line.startswith("{")]

    def active(self) -> Child:
        """Return the beat that became active last."""
        latest: tuple[str, Child] | None = None
        for child in self.children:
            for line in child.log.read_text().splitlines():
                if '"beat.lock_acquired"' in line:
                    at = str(json.loads(line)["timestamp"])
                    latest = (at, child) if latest is None or at > latest[0] else latest
        assert latest is not None, "no beat was ever active"
        return latest[1]

    def standby(self) -> Child:
        """Return a beat that is not active."""
        active = self.active()
        return next(child for child in self.children if child is not active)

    @contextmanager
    def another_stands_by(self) -> Iterator[None]:
        """At the end of the block, wait until a beat has tried to acquire a lock that another beat holds.

        Only the lock sends a SET: a beat that starts writes its probe and then requests the lock.
        """
        before = self._sets()
        yield
        eventually(lambda: self._sets() >= before + 2)

    def _sets(self) -> int:
        with self.redis.client() as client:
            return int(client.info("commandstats").get("cmdstat_set", {}).get("calls", 0))


@contextmanager
def beats(folder: Path, *, count: int = 2, settings: Mapping[str, str], locked: bool = False) -> Iterator[Beats]:
    """Start the beats one after the other, and yield them when the first is active and the others stand by.

    With `locked`, the test already holds the lock, so that all beats stand by.
    """
    stage = Beats(folder, count=count, settings=settings)
    try:
        stage.redis.start()
        stage.listener.start()
        children = list(stage.children)
        if locked:
            with stage.redis.client() as client:
                client.set(LOCK, "another's", px=600_000)
        else:
            first = children.pop(0)
            first.start()
            eventually(lambda: "beat.lock_acquired" in stage.events(first))
        for child in children:
            with stage.another_stands_by():
                child.start()
        yield stage
    finally:
        for child in stage.children:
            child.kill()
        stage.listener.stop()
        stage.redis.stop()
