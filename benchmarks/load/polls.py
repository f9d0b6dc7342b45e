"""Simulated Pods that poll like the poller, with one connection per poll.

A Pod reacts to each answer like the lab's kubelet. A Pod stops when it gets a JIT or when an answer ends it; a line of
JSON records both. A further line per second has the number of open polls and of answers by status.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import ssl
import sys
import time
from collections import Counter
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvloop
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from benchmarks.load.tokens import BenchPod, sign
from lab.kubelet.answers import End, Work, decide

_LONGEST = 75.0


class Pods:
    """All Pods of this process."""

    def __init__(self, *, port: int, path: str, tls: ssl.SSLContext | None) -> None:
        self._port = port
        self._tls = tls
        self._path = path
        self.open = 0
        self.answers: Counter[int] = Counter()

    async def live(self, pod: BenchPod, token: str, *, after: float) -> None:
        """Poll until the Pod gets a JIT or must end."""
        await asyncio.sleep(after)
        failures, chance = 0, random.Random()  # noqa: S311  it spreads polls
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            "Accept: application/json\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ).encode()
        while True:
            status, retry_after, body = await self._poll(head)
            self.answers[status] += 1
            verdict = decide(status=status, retry_after=retry_after, body=body, failures=failures, chance=chance)
            if isinstance(verdict, Work):
                _write(event="jit", at=time.time(), pod=pod.uid, claim=int(verdict.claim), runner=verdict.runner_name)
                return
            if isinstance(verdict, End):
                _write(event="ended", at=time.time(), pod=pod.uid, code=verdict.code, why=verdict.message)
                return
            failures = failures + 1 if verdict.failed else 0
            await asyncio.sleep(verdict.wait)

    async def _poll(self, head: bytes) -> tuple[int, str | None, Any]:
        writer = None
        try:
            async with asyncio.timeout(_LONGEST):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
                writer.write(head)
                self.open += 1
                try:
                    answer = await reader.read(-1)
                finally:
                    self.open -= 1
        except (OSError, TimeoutError):
            return 0, None, None
        finally:
            if writer is not None:
                writer.close()
        return _parse(answer)

    async def tell(self) -> None:
        """Print the state once per second."""
        while True:
            _write(event="state", at=time.time(), open=self.open, answers=dict(self.answers))
            await asyncio.sleep(1)


def _parse(answer: bytes) -> tuple[int, str | None, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if not head:
        return 0, None, None
    status = int(lines[0].split()[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return status, headers.get("retry-after"), json.loads(body) if status == HTTPStatus.OK else None


def _write(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def run(arguments: argparse.Namespace) -> None:
    """Sign every token, then start the polls, spread over the ramp time."""
    key = load_pem_private_key(arguments.private_key.read_bytes(), password=None)
    if not isinstance(key, RSAPrivateKey):
        raise TypeError(f"--private-key: {arguments.private_key} must be an RSA key")
    pods = [BenchPod(**each) for each in json.loads(arguments.pods.read_text())]
    tokens = [sign(key, pod) for pod in pods]
    tls = None if arguments.ca is None else ssl.create_default_context(cafile=arguments.ca)
    crowd = Pods(port=arguments.port, path=arguments.path, tls=tls)
    _write(event="ready", at=time.time(), pods=len(pods))
    async with asyncio.TaskGroup() as tasks:
        teller = tasks.create_task(crowd.tell())
        lives = [
            tasks.create_task(crowd.live(pod, token, after=number * arguments.ramp / max(1, len(pods))))
            for number, (pod, token) in enumerate(zip(pods, tokens, strict=True))
        ]
        await asyncio.wait(lives)
        _write(event="state", at=time.time(), open=crowd.open, answers=dict(crowd.answers))
        teller.cancel()


def main() -> None:
    """Read the arguments and poll until every Pod has a JIT or has ended, or until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.polls", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/runners/v1/dispatch")
    parser.add_argument("--pods", type=Path, required=True, help="JSON list of {name, uid}")
    parser.add_argument("--private-key", type=Path, required=True)
    parser.add_argument("--ca", type=Path, help="poll by TLS, and trust this certificate")
    parser.add_argument("--ramp", type=float, default=0.0, help="seconds over which the first polls are spread")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    arguments = parser.parse_args()
    # With TLS, asyncio's own loop allocates 256 KiB for each connection.
    runner = asyncio.run if arguments.ca is None else uvloop.run
    runner(run(arguments))


if __name__ == "__main__":
    main()
