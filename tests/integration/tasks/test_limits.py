"""Rows of the governor in Postgres never cost a call its answer."""

from __future__ import annotations

from sqlalchemy import create_engine

from github_adapters.calls.governor import CallClass
from github_adapters.calls.http import Answer
from tasks.worker.limits import make_governor
from tests.database import Database
from tests.integration.web.polls.stage import make_settings


def test_an_answer_is_not_lost_because_no_connection_was_free_to_keep_its_limit(database: Database) -> None:
    settings = make_settings(database_url=database.url, redis_url="redis://127.0.0.1:1/0")
    engine = create_engine(database.url.reveal(), pool_size=1, max_overflow=0, pool_timeout=0.1)
    governor = make_governor(settings, engine)

    with governor.call(501, CallClass.MINT) as ticket:
        busy = engine.connect()
        ticket.answer = Answer(status=201, headers=last_of_the_quota(), body=b"")

    assert engine.pool.checkedout() == 1, "none was free"  # type: ignore[attr-defined]
    busy.close()
    governor.close()
    engine.dispose()


def last_of_the_quota() -> dict[str, str]:
    """Return the headers of an answer after which GitHub requests a wait."""
    return {
        "x-ratelimit-resource": "core",
        "x-ratelimit-limit": "5000",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "4102444800",
    }
