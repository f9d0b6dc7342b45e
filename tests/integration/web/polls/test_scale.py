"""The cost of a thousand held polls is memory only."""

from __future__ import annotations

import asyncio
import threading
import time

from tests.integration.web.polls.stage import Stage
from tests.waiting import eventually
from web.runners.offering import BATCH_EVERY

POLLS = 1000


def test_a_thousand_held_polls_cost_no_thread_and_no_connection(stage: Stage) -> None:
    pods = [stage.pod(stage.pool())]
    pods += [stage.pod(pods[0].pool_id) for _ in range(POLLS - 1)]
    web = stage.start_web(poll_hold_min=240, poll_hold_max=240)
    connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    port = int(web.url.rsplit(":", 1)[1])
    warm = threading.active_count()

    async def open_poll(token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST /runners/v1/dispatch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            "Content-Length: 0\r\n\r\n".encode()
        )
        return reader, writer

    async def hold() -> None:
        began = time.monotonic()
        streams = [await open_poll(pod.token) for pod in pods]
        await asyncio.to_thread(eventually, lambda: stage.scalar("SELECT count(*) FROM offers") == POLLS)
        assert web.web.polls.held == POLLS
        # The bounded pools of the process, and this coroutine's own thread.
        assert threading.active_count() <= warm + 4 + 1
        # The listener's thread may have one for a moment.
        await asyncio.to_thread(eventually, lambda: web.web.engine.pool.checkedout() == 0)  # type: ignore[attr-defined]
        assert stage.scalar(connections) <= 8 + 1 + 1
        # One in so many seconds at most, however slowly this machine lets the polls come.
        slowly = (time.monotonic() - began) / BATCH_EVERY + 1
        assert web.web.counts["offers.statements"] <= max(0.15 * POLLS, slowly)
        claims = {pod.uid: stage.claim(pod, state="claimed") for pod in pods[::100]}
        for claim_id in claims.values():
            stage.mint(claim_id)
        for (reader, _), pod in zip(streams, pods, strict=True):
            if pod.uid in claims:
                async with asyncio.timeout(90):
                    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for _, writer in streams:
            writer.close()

    asyncio.run(hold())
    eventually(lambda: stage.scalar("SELECT count(*) FROM offers") == 0)
