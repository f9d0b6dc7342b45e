"""Reads that open pages share."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from web.api.shared import Shared


def test_a_read_that_failed_is_repeated_and_one_that_succeeded_is_shared() -> None:
    calls: list[datetime] = []

    async def read(at: datetime) -> int:
        calls.append(at)
        if len(calls) == 1:
            raise TimeoutError
        return len(calls)

    async def story() -> list[int]:
        shared: Shared[int] = Shared()
        with pytest.raises(TimeoutError):
            await shared.get("key", read, max_age=timedelta(minutes=1))
        return [(await shared.get("key", read, max_age=timedelta(minutes=1)))[0] for _ in range(2)]

    assert asyncio.run(story()) == [2, 2]


def test_no_second_read_begins_while_the_first_runs() -> None:
    async def story() -> int:
        go, calls, shared = asyncio.Event(), [], Shared[None]()

        async def read(at: datetime) -> None:
            calls.append(at)
            await go.wait()

        readers = [asyncio.create_task(shared.get("key", read, max_age=timedelta())) for _ in range(3)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*readers)
        return len(calls)

    assert asyncio.run(story()) == 1
