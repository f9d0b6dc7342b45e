"""Readers of the dashboard, each with an open page that asks every two seconds. Prints latencies and statuses as JSON.

Each reader logs in with the same token, so each has a session of its own. The latency of a refresh counts from its due
time, so that a stall of the server counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

EVERY = 2.0
"""Seconds between two refreshes of a page."""


@dataclass(slots=True)
class Seen:
    """Latencies in milliseconds by path, and the answers."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)


async def _log_in(url: str, token: str) -> aiohttp.ClientSession:
    jar = aiohttp.CookieJar(unsafe=True)  # the address of the server is an IP address
    session = aiohttp.ClientSession(cookie_jar=jar, timeout=aiohttp.ClientTimeout(total=30))
    async with session.post(f"{url}/ui/login", data={"token": token}, headers={"Origin": url}) as answer:
        await answer.read()
    return session


async def _read(session: aiohttp.ClientSession, url: str, path: str, *, seconds: float, seen: Seen) -> None:
    async with session:
        began = time.perf_counter() + random.uniform(0, EVERY)  # noqa: S311  spreads the readers
        due, end = began, began + seconds
        while due < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            try:
                async with session.get(f"{url}{path}", headers={"HX-Request": "true"}) as answer:
                    body = await answer.read()
                    shown = answer.status if b'id="live"' in body else "not the page"
                    seen.statuses[str(shown)] += 1
                    seen.latencies.setdefault(path, []).append((time.perf_counter() - due) * 1000)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                seen.statuses[type(error).__name__] += 1
            due += EVERY


async def run(arguments: argparse.Namespace) -> None:
    """Let the readers read, and print latencies and statuses."""
    seen, token = Seen(), os.environ["BENCH_TOKEN"]
    paths = arguments.paths.split(",")
    sessions = [await _log_in(arguments.url, token) for _ in range(arguments.readers)]  # one after the other
    json.dump({"event": "ready"}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
    async with asyncio.TaskGroup() as group:
        for number, session in enumerate(sessions):
            path = paths[number % len(paths)]
            group.create_task(_read(session, arguments.url, path, seconds=arguments.seconds, seen=seen))
    json.dump({"event": "read", "latencies": seen.latencies, "statuses": seen.statuses}, sys.stdout)
    sys.stdout.write("\n")


def main() -> None:
    """Read the arguments, and read the pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.pages", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--readers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--paths", required=True, help="paths of the pages, comma-separated; the readers share them")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
