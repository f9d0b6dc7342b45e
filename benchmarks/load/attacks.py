"""Clients that attack `ostler web` concurrently, with low priority (`nice` 15) because they share the machine with web.

Each kind of attack continues until SIGTERM, at a rate that one cheap machine can reach. A closed connection is opened
again. Once per second, the program writes the number of ended connections of each kind as a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

NICE = 15
PIECE = b"a" * 65_536
LARGE = 24 * 1024 * 1024
AGAIN = 0.05
"""Seconds before a closed connection is opened again."""

_POST = b"POST /webhooks/github HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
_UNSIGNED = _POST + b"X-GitHub-Event: workflow_job\r\n"
ENDLESS = {
    "endless value": b"GET / HTTP/1.1\r\nX-A: ",
    "endless name": b"GET / HTTP/1.1\r\n",
    "endless trailer": _CHUNKED + b"0\r\nX-A: ",
    "endless extension": _CHUNKED + b"1;",
    "tiny chunks": _CHUNKED,
}
DRIBBLED = {
    "dribbled head": b"GET / HTTP/1.1\r\nX-A: ",
    "dribbled body": _POST + b"Content-Length: 1000000\r\n\r\n",
    "dribbled after an answer": b"GET /nothing HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n",
}
REQUESTS = {
    "unsigned webhook": (50, _UNSIGNED + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"),
    "poll without a token": (50, b"POST /runners/v1/dispatch HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    "API without a token": (20, b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    "garbage": (50, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20),
    "pipelined": (10, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 2000),
}
"""New connections per second, and the bytes that each connection sends, for each kind of attack."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attack:
    """All kinds of attacks at once. `done` counts the ended connections of each kind."""

    def __init__(self, port: int, *, idle: int, dribbling: int) -> None:
        self.done: Counter[str] = Counter()
        self._port = port
        self._idle = idle
        self._dribbling = dribbling

    async def run(self) -> None:
        """Attack until this task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind, begun in ENDLESS.items():
                piece = b"1\r\na\r\n" * 10_000 if kind == "tiny chunks" else PIECE
                tasks.create_task(self._forever(kind, self._endless(begun, piece)))
            for number in range(self._idle):
                tasks.create_task(self._forever("idle", self._wait(b""), after=number * 0.005))
            for kind, begun in DRIBBLED.items():
                for number in range(self._dribbling):
                    tasks.create_task(self._forever(kind, self._dribble(begun), after=number * 0.02))
            for _ in range(20):
                tasks.create_task(self._forever("slow reader", self._unread()))
            for _ in range(2):
                tasks.create_task(self._forever("large unsigned webhook", self._large()))
            for kind, (rate, data) in REQUESTS.items():
                tasks.create_task(self._at_rate(kind, rate, data))
            tasks.create_task(self._tell())

    async def _forever(self, kind: str, attack: Callable[[Streams], Awaitable[None]], *, after: float = 0.0) -> None:
        await asyncio.sleep(after)
        while True:
            await self._once(kind, attack)
            await asyncio.sleep(AGAIN)

    async def _at_rate(self, kind: str, rate: float, data: bytes) -> None:
        running: set[asyncio.Task[None]] = set()
        while True:
            if len(running) < rate:
                task = asyncio.create_task(self._once(kind, self._wait(data)))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(1 / rate)

    async def _once(self, kind: str, attack: Callable[[Streams], Awaitable[None]]) -> None:
        with contextlib.suppress(OSError):
            streams = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                await attack(streams)
            finally:
                streams[1].transport.abort()
        self.done[kind] += 1

    @staticmethod
    def _endless(begun: bytes, piece: bytes) -> Callable[[Streams], Awaitable[None]]:
        async def attack(streams: Streams) -> None:
            streams[1].write(begun)
            while not streams[1].is_closing():
                streams[1].write(piece)
                await streams[1].drain()

        return attack

    @staticmethod
    def _wait(data: bytes) -> Callable[[Streams], Awaitable[None]]:
        async def attack(streams: Streams) -> None:
            streams[1].write(data)
            await streams[0].read()

        return attack

    @staticmethod
    def _dribble(begun: bytes) -> Callable[[Streams], Awaitable[None]]:
        async def attack(streams: Streams) -> None:
            streams[1].write(begun)
            while not streams[1].is_closing():
                streams[1].write(b"a")
                await asyncio.sleep(1)

        return attack

    @staticmethod
    def _unread() -> Callable[[Streams], Awaitable[None]]:
        async def attack(streams: Streams) -> None:
            streams[1].transport.pause_reading()  # type: ignore[attr-defined]
            while not streams[1].is_closing():
                streams[1].write(b"GET /api/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
                await asyncio.sleep(0.5)

        return attack

    @staticmethod
    def _large() -> Callable[[Streams], Awaitable[None]]:
        async def attack(streams: Streams) -> None:
            streams[1].write(_UNSIGNED + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % LARGE)
            for _ in range(LARGE // len(PIECE)):
                streams[1].write(PIECE)
                await streams[1].drain()
            await streams[0].read()

        return attack

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(1)
            sys.stdout.write(json.dumps({"event": "attacks", "at": time.time(), "done": dict(self.done)}) + "\n")
            sys.stdout.flush()


def main() -> None:
    """Read the arguments and attack until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.attacks", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument(
        "--dribbling", type=int, default=100, help="number of connections of each kind that sends slowly"
    )
    arguments = parser.parse_args()
    os.nice(NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(Attack(arguments.port, idle=arguments.idle, dribbling=arguments.dribbling).run())


if __name__ == "__main__":
    main()
