"""Readers of the dashboard. Prints latencies, statuses and the number of events as JSON.

Each reader has an open page with a stream, in a session of its own. Beside them, one more reader opens pages at a fixed
rate. The latency of a page counts from its due time, so that a stall of the server counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True)
class Seen:
    """Latencies in milliseconds by path, the answers, and what the streams brought."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    events: int = 0
    bytes: int = 0


OPEN_EVERY = 0.02
"""Seconds between two streams. Web refuses requests while 64 wait for Postgres."""


async def _log_in(url: str, token: str) -> aiohttp.ClientSession:
    jar = aiohttp.CookieJar(unsafe=True)  # the address of the server is an IP address
    session = aiohttp.ClientSession(cookie_jar=jar, timeout=aiohttp.ClientTimeout(total=None, sock_read=30))
    async with session.post(f"{url}/ui/login", data={"token": token}, headers={"Origin": url}) as answer:
        await answer.read()
    return session


async def _watch(session: aiohttp.ClientSession, address: str, *, seen: Seen, opened: asyncio.Event) -> None:
    """Read a stream until it is cancelled. A stream that ends is counted as an error."""
    try:
        async with session.get(address, headers={"Accept": "text/event-stream"}) as answer:
            async for line in answer.content:
                seen.bytes += len(line)
                if line.startswith(b"event: "):
                    seen.events += 1
                    opened.set()
            seen.statuses[f"stream ended: {answer.status}"] += 1
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        seen.statuses[f"stream ended: {type(error).__name__}"] += 1


async def _open(session: aiohttp.ClientSession, address: str, path: str, *, due: float, seen: Seen) -> None:
    try:
        async with session.get(address) as answer:
            body = await answer.read()
            seen.statuses[str(answer.status) if b'id="live"' in body else "not the page"] += 1
            seen.latencies.setdefault(path, []).append((time.perf_counter() - due) * 1000)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        seen.statuses[type(error).__name__] += 1


def _say(**what: Any) -> None:
    json.dump(what, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


async def run(arguments: argparse.Namespace) -> None:
    """Open the streams, open pages, and print what was seen."""
    seen, tokens = Seen(), os.environ["BENCH_TOKENS"].split(",")
    paths = arguments.paths.split(",")
    sessions = [
        await _log_in(arguments.url, tokens[n % len(tokens)]) for n in range(arguments.readers + 1)
    ]  # one after the other
    watched = [(asyncio.Event(), each, paths[number % len(paths)]) for number, each in enumerate(sessions[1:])]
    streams = []
    for opened, session, path in watched:  # people open pages one after the other
        streams.append(asyncio.create_task(_watch(session, f"{arguments.url}{path}", seen=seen, opened=opened)))
        await asyncio.sleep(OPEN_EVERY)
    await asyncio.wait_for(asyncio.gather(*(opened.wait() for opened, _, _ in watched)), 60)
    seen.events = seen.bytes = 0
    _say(event="ready")
    due, opens = time.perf_counter(), arguments.opens.split(",") if arguments.opens else []
    end = due + arguments.seconds
    async with asyncio.TaskGroup() as group:
        while opens and due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            path = opens.pop(0)
            opens.append(path)
            group.create_task(_open(sessions[0], f"{arguments.url}{path}", path, due=due, seen=seen))
            due += 1 / arguments.rate
        await asyncio.sleep(max(0.0, end - time.perf_counter()))
    _say(event="read", latencies=seen.latencies, statuses=seen.statuses, events=seen.events, bytes=seen.bytes)
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    for session in sessions:
        await session.close()


def main() -> None:
    """Read the arguments, and read the pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.pages", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--readers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--paths", required=True, help="paths of the streams, comma-separated; the readers share them")
    parser.add_argument("--opens", default="", help="paths of the pages that are opened in turn, comma-separated")
    parser.add_argument("--rate", type=float, default=16, help="pages per second")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
