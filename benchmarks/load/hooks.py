"""Sender of GitHub's webhooks. It prints latencies and statuses as JSON.

It sends either at a rate or as fast as a number of senders can. With a rate, the latency of a request counts from its
due time and not from its send time, so that a stall of the server counts. The bodies come from the lab's GitHub and are
signed before the measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp

from lab.github.entities import QUEUED, Account, Job, Repository
from lab.github.payloads import tail_of, webhook_head


@dataclass(slots=True)
class Seen:
    """Answers to the webhooks. Latencies are in milliseconds and exist only for answers."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    late: float = 0.0
    began: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Hook:
    """A signed webhook."""

    body: bytes
    headers: dict[str, str]


def make(count: int, *, first: int, labels: tuple[str, ...], secret: bytes, accounts: int = 3) -> list[Hook]:
    """Return signed `queued` webhooks of jobs with ids from `first`, spread over some accounts."""
    repositories = []
    for number in range(accounts):
        account = Account(id=7001 + number, login=f"org-{number}", type="Organization", installation_id=8001 + number)
        repository = Repository(id=9001 + number, name="app", account=account)
        repository.tail = tail_of(repository)
        repositories.append(repository)
    hooks = []
    for number in range(first, first + count):
        repository = repositories[number % accounts]
        job = Job(
            id=number,
            run_id=number // 4,
            repository=repository,
            labels=labels,
            duration_seconds=1,
            name="build",
            workflow_name="CI",
            head_branch="main",
            status=QUEUED,
            created_at=datetime.now(UTC),
        )
        body = webhook_head("queued", job) + repository.tail
        hooks.append(
            Hook(
                body,
                {
                    "Content-Type": "application/json",
                    "User-Agent": "GitHub-Hookshot/benchmark",
                    "X-GitHub-Event": "workflow_job",
                    "X-GitHub-Delivery": str(uuid.uuid4()),
                    "X-Hub-Signature-256": "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest(),
                },
            )
        )
    return hooks


async def _send(session: aiohttp.ClientSession, url: str, hook: Hook, *, due: float, seen: Seen) -> None:
    seen.late = max(seen.late, time.perf_counter() - due)
    try:
        async with session.post(url, data=hook.body, headers=hook.headers) as answer:
            await answer.read()
            seen.latencies.append((time.perf_counter() - due) * 1000)
            seen.statuses[str(answer.status)] += 1
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        seen.statuses[type(error).__name__] += 1
    seen.ended = max(seen.ended, time.perf_counter())


async def at_rate(session: aiohttp.ClientSession, url: str, hooks: list[Hook], *, rate: float) -> Seen:
    """Send each webhook at its due time, independent of answers."""
    seen, tasks = Seen(), []
    seen.began = time.perf_counter()
    for number, hook in enumerate(hooks):
        due = seen.began + number / rate
        if (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        tasks.append(asyncio.create_task(_send(session, url, hook, due=due, seen=seen)))
    await asyncio.gather(*tasks)
    return seen


async def at_once(session: aiohttp.ClientSession, url: str, hooks: list[Hook], *, senders: int) -> Seen:
    """Send with a number of senders. Each sends its next webhook after the answer to the last."""
    seen, left = Seen(), iter(hooks)
    seen.began = time.perf_counter()

    async def sender() -> None:
        for hook in left:
            await _send(session, url, hook, due=time.perf_counter(), seen=seen)

    await asyncio.gather(*(sender() for _ in range(senders)))
    return seen


async def run(arguments: argparse.Namespace) -> None:
    """Send the webhooks, and print latencies and statuses."""
    hooks = make(
        arguments.count,
        first=arguments.first,
        labels=tuple(arguments.labels.split(",")),
        secret=os.environ["LAB_WEBHOOK_SECRET"].encode(),
    )
    timeout = aiohttp.ClientTimeout(total=10)  # GitHub also waits ten seconds for an answer
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        if arguments.rate:
            seen = await at_rate(session, arguments.url, hooks, rate=arguments.rate)
        else:
            seen = await at_once(session, arguments.url, hooks, senders=arguments.senders)
    json.dump(
        {"latencies": seen.latencies, "statuses": seen.statuses, "late": seen.late, "seconds": seen.ended - seen.began},
        sys.stdout,
    )


def main() -> None:
    """Read the arguments and send."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.hooks", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--first", type=int, required=True, help="id of the first job")
    parser.add_argument("--labels", default="self-hosted,linux")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="webhooks per second; 0 lets --senders send as fast as they can"
    )
    parser.add_argument("--senders", type=int, default=32)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
