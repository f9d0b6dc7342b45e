"""One locked job delays no webhook of another job: neither of its batch nor of the next (law L14)."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import text

from models.engine import make_engine
from tests.database import Database
from tests.integration.models.webhook_rows import add_pool
from tests.integration.web.test_webhooks import payload, running


@pytest.mark.xfail(strict=True, reason="a batch waits for a locked job, and so does every webhook behind it")
def test_other_webhooks_are_stored_when_one_job_is_locked(database: Database) -> None:
    engine = make_engine(database.url, pool_size=10, application="as in production")
    add_pool(engine, "linux")

    async def story() -> None:
        async with running(engine) as stage:
            assert (await stage.send(payload(1))).status_code == 202
            with engine.connect() as holder:
                holder.execute(text("SELECT 1 FROM jobs WHERE id = 1 FOR NO KEY UPDATE"))
                began = time.monotonic()

                async def send(body: bytes) -> tuple[int, float]:
                    answer = await stage.send(body)
                    return answer.status_code, time.monotonic() - began

                in_progress = payload(1, "in_progress", runner_name="elsewhere", runner_id=9)
                locked = asyncio.ensure_future(send(in_progress))
                others = [asyncio.ensure_future(send(payload(job_id))) for job_id in range(100, 120)]
                await asyncio.sleep(1)
                others += [asyncio.ensure_future(send(payload(job_id))) for job_id in range(200, 205)]
                stored = [await each for each in others]
                refused = await locked
            assert {code for code, _ in stored} == {202}
            assert max(seconds for _, seconds in stored) < 4  # of which the second half waited one to be sent
            assert refused[0] == 503

    asyncio.run(story())
