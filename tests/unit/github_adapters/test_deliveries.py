"""The list of webhook deliveries: the entries of a page that are read, left out, or doubted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from github_adapters.calls.http import MOST_BYTES
from github_adapters.client import GitHub
from github_adapters.endpoints.deliveries import DeliverySeen
from ostler.errors import Retryable
from tests.unit.github_adapters.upstream import Reply, Upstream

ENTRY: dict[str, Any] = {
    "id": 12345678901234,
    "guid": "0b989ba4-242f-11e5-81e1-c7b6966d2516",
    "delivered_at": "2026-03-01T09:58:16Z",
    "redelivery": False,
    "duration": 0.27,
    "status": "failed to connect to host",
    "status_code": 0,
    "event": "workflow_job",
    "action": "queued",
    "installation_id": 123,
    "repository_id": 456,
    "throttled_at": None,
}


def link(cursor: str, *, rel: str = "next") -> dict[str, str]:
    return {"Link": f'<https://elsewhere.example/app/hook/deliveries?per_page=100&cursor={cursor}>; rel="{rel}"'}


def test_an_attempt_is_read_and_asked_for_in_the_name_of_the_app(
    github: GitHub, upstream: Upstream, key: rsa.RSAPrivateKey
) -> None:
    upstream.answer = lambda _: Reply(body=[ENTRY])
    page = github.list_deliveries()
    assert page.deliveries == (
        DeliverySeen(
            id=12345678901234,
            guid="0b989ba4-242f-11e5-81e1-c7b6966d2516",
            delivered_at=datetime(2026, 3, 1, 9, 58, 16, tzinfo=UTC),
            accepted=False,
            event="workflow_job",
            action="queued",
            installation_id=123,
        ),
    )
    assert (page.next_cursor, page.malformed) == (None, 0)
    (call,) = upstream.calls
    assert call.path == "/api/v3/app/hook/deliveries?per_page=100"
    token = call.authorization.removeprefix("Bearer ")
    assert jwt.decode(token, key.public_key(), ["RS256"], options={"verify_exp": False})["iss"] == "7"


@pytest.mark.parametrize(("status", "accepted"), [(200, True), (202, True), (0, False), (302, False), (503, False)])
def test_only_a_2xx_is_accepted(github: GitHub, upstream: Upstream, status: int, *, accepted: bool) -> None:
    upstream.answer = lambda _: Reply(body=[{**ENTRY, "status_code": status}])
    assert github.list_deliveries().deliveries[0].accepted is accepted


def test_only_the_cursor_of_the_next_page_is_taken_from_a_link(github: GitHub, upstream: Upstream) -> None:
    both = f"{link('v1_1', rel='prev')['Link']}, {link('v1%5F9%26x')['Link']}"
    upstream.answer = lambda _: Reply(body=[ENTRY], headers={"Link": both})
    cursor = github.list_deliveries().next_cursor
    assert cursor == "v1_9&x"
    github.list_deliveries(cursor=cursor)
    assert upstream.calls[-1].path == "/api/v3/app/hook/deliveries?per_page=100&cursor=v1_9%26x"


@pytest.mark.parametrize(
    "wrong",
    [
        {"guid": None},
        {"guid": ""},
        {"guid": "x" * 129},
        {"guid": "a\x00b"},
        {"id": "5"},
        {"delivered_at": None},
        {"event": None},
        {"action": 7},
        {"installation_id": "123"},
    ],
    ids=str,
)
def test_an_entry_that_makes_no_sense_is_left_out_and_the_others_are_read(
    github: GitHub, upstream: Upstream, wrong: dict[str, Any]
) -> None:
    upstream.answer = lambda _: Reply(body=[{**ENTRY, **wrong}, ENTRY, 5])
    page = github.list_deliveries()
    assert ([each.guid for each in page.deliveries], page.malformed) == ([ENTRY["guid"]], 2)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body={"message": "moved"}),
        Reply(body=b"[{"),
        Reply(body=[{**ENTRY, "guid": None}]),
        Reply(body=[ENTRY], cut=True),
        Reply(body=[ENTRY], headers={"Link": '<https://api.example/app/hook/deliveries?page=2>; rel="next"'}),
        Reply(body=[ENTRY], headers=link("c" * 513)),
        Reply(body=b" " * (MOST_BYTES + 1)),
    ],
    ids=[
        "no list",
        "no JSON",
        "no entry makes sense",
        "cut",
        "a next page without a cursor",
        "long cursor",
        "too large",
    ],
)
def test_a_page_that_makes_no_sense_is_no_page(github: GitHub, upstream: Upstream, reply: Reply) -> None:
    upstream.answer = lambda _: reply
    with pytest.raises(Retryable):
        github.list_deliveries()


def test_a_redelivery_is_asked_for_by_the_id_of_an_attempt(github: GitHub, upstream: Upstream) -> None:
    upstream.answer = lambda _: Reply(status=202, body={})
    github.redeliver(delivery_id=9)
    (call,) = upstream.calls
    assert (call.method, call.path) == ("POST", "/api/v3/app/hook/deliveries/9/attempts")
