"""Bare ASGI application on the same server, as the bound for a webhook and a held poll without any processing."""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answer a webhook with 202 after its body is read, and a poll with 204 after the time that Ostler holds it."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    status = 202
    if scope["path"].startswith("/runners"):
        status = 204
        await asyncio.sleep(random.uniform(40, 55))  # noqa: S311  it spreads polls
    await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", b"1")]})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.bare", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=parser.parse_args().port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=4096,
        timeout_graceful_shutdown=1,
        server_header=False,
    )


if __name__ == "__main__":
    main()
