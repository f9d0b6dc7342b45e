"""Use of runners through the API: what limits the load of its queries on Postgres and on other requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import event

from rules.token_scopes import TokenScope
from tests.database import Database
from tests.integration.web.api.conftest import Stage
from web.api.database import MOST_SLOW
from web.api.database import Database as ApiDatabase
from web.api.problems import Refusal


@pytest.fixture
def threads(database: Database) -> Iterator[ApiDatabase]:
    found = ApiDatabase(database.engine)
    yield found
    found.stop()


def test_usage_of_a_month_is_read_once_for_several_readers_of_the_same_accounts(stage: Stage) -> None:
    sent: list[str] = []
    event.listen(stage.engine, "before_cursor_execute", lambda _c, _x, statement, *_: sent.append(statement))
    limited = stage.token(TokenScope.READ, accounts=[7])
    for token in (stage.reader, stage.reader, limited, limited):
        assert stage.client.call("GET", "/api/v1/usage?month=2026-01", token=token).status_code == 200
    assert stage.get("/usage", month="2026-02").status_code == 200
    assert sum("GROUP BY a.login" in each for each in sent) == 3


def test_a_slow_read_waits_for_the_one_before_it_and_other_reads_do_not(threads: ApiDatabase) -> None:
    go, running, most = threading.Event(), 0, 0

    def slow(_db: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        go.wait(10)
        running -= 1

    async def story() -> str:
        reads = [asyncio.create_task(threads.run_slow(slow)) for _ in range(MOST_SLOW)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal):
            await threads.run_slow(slow)
        found = await asyncio.wait_for(threads.run(lambda _db: "other"), 10)
        go.set()
        await asyncio.gather(*reads)
        await threads.run_slow(slow)
        return found

    assert asyncio.run(story()) == "other"
    assert most == 1


def test_usage_of_a_limited_token_says_nothing_about_jobs_of_other_accounts(stage: Stage) -> None:
    stage.account(7, "acme")
    stage.account(8, "globex")
    ends = {8: datetime(2026, 1, 1, tzinfo=UTC), 7: datetime(2026, 1, 9, tzinfo=UTC)}
    for account, at in ends.items():
        stage.job(account, account_id=account, state="completed", completed_at=at)
    for accounts, first in (([7], 7), ([7, 8], 8), ([9], None)):
        token = stage.token(TokenScope.READ, accounts=accounts)
        found = stage.client.call("GET", "/api/v1/usage", token=token).json()["rows_since_at"]
        assert (None if found is None else datetime.fromisoformat(found)) == (None if first is None else ends[first])
