"""Requests to pause or resume a pool over the API."""

from __future__ import annotations

from rules.token_scopes import TokenScope
from tests.integration.web.api.conftest import Stage


def test_request_is_shown_with_its_author_until_it_is_carried_out(stage: Stage) -> None:
    pool = stage.pool()
    answer = stage.put(f"/pools/{pool}/paused", {"paused": True})
    shown = answer.json()
    assert (answer.status_code, shown["paused"], shown["pause_request"]["by"]) == (200, False, "writer (API)")
    assert stage.outbox.sent == [("ostler.pool_changed", {"namespace": "runners", "pool": "small"})]
    assert stage.put(f"/pools/{pool}/paused", {"paused": False}).json()["pause_request"]["paused"] is False
    stage.execute("UPDATE pools SET pause_request = NULL, paused = true")
    found = stage.get(f"/pools/{pool}").json()
    assert (found["paused"], found["pause_request"]) == (True, None)
    recorded = stage.get("/changes", kind="pool").json()["items"]
    assert [(each["who"], each["old"], each["new"]) for each in recorded] == [
        ("writer", {"asked_paused": True}, {"asked_paused": False}),
        ("writer", {"asked_paused": None}, {"asked_paused": True}),
    ]


def test_pool_that_drains_is_not_paused(stage: Stage) -> None:
    pool = stage.pool()
    stage.execute("UPDATE pools SET draining = true")
    answer = stage.put(f"/pools/{pool}/paused", {"paused": True})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:ostler:problem:pool-drains")
    assert stage.put(f"/pools/{pool}/paused", {"paused": False}).status_code == 200
    stage.execute("UPDATE pools SET deleted_at = now()")
    assert stage.put(f"/pools/{pool}/paused", {"paused": False}).status_code == 404


def test_token_that_may_not_write_the_fleet_changes_nothing(stage: Stage) -> None:
    stage.account()
    path = f"/api/v1/pools/{stage.pool()}/paused"
    limited = stage.token(TokenScope.READ, accounts=[7])
    answers = [
        stage.client.call("PUT", path, token=token, json={"paused": True}) for token in (None, stage.reader, limited)
    ]
    assert [each.status_code for each in answers] == [401, 403, 403]
    assert stage.execute("SELECT 1 FROM pools WHERE pause_request IS NOT NULL") == []
