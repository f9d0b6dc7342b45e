"""Lists: pages neither repeat nor hide a row, filters work, and a 422 names the field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.web.api.conftest import Stage


def ids(stage: Stage, path: str, **query: Any) -> list[int]:
    """Return the ids of all pages of a list."""
    found: list[int] = []
    cursor: str | None = None
    while True:
        answer = stage.get(path, **query, **({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        found += [item["id"] for item in answer.json()["items"]]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


def test_an_empty_list_is_an_empty_page(stage: Stage) -> None:
    for path in ("/jobs", "/claims", "/pools", "/accounts", "/repairs"):
        assert stage.get(path).json() == {"items": [], "next_cursor": None}


def test_pages_go_through_all_rows_once_the_newest_first(stage: Stage) -> None:
    stage.account()
    for job_id in range(1, 8):
        stage.job(job_id)
    assert ids(stage, "/jobs", limit=3) == [7, 6, 5, 4, 3, 2, 1]
    assert ids(stage, "/jobs", limit=7) == [7, 6, 5, 4, 3, 2, 1]


def test_rows_that_come_or_go_between_two_pages_repeat_and_hide_nothing(stage: Stage) -> None:
    stage.account()
    for job_id in range(10, 60, 10):
        stage.job(job_id)
    first = stage.get("/jobs", limit=2).json()
    assert [item["id"] for item in first["items"]] == [50, 40]
    stage.job(60)
    stage.job(35)
    stage.execute("DELETE FROM jobs WHERE id = 40")
    second = stage.get("/jobs", limit=2, cursor=first["next_cursor"]).json()
    assert [item["id"] for item in second["items"]] == [35, 30]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"state": "queued"}, [4, 2, 1]),
        ({"state": "completed"}, [3]),
        ({"hold_reason": "no_pool"}, [2]),
        ({"held": "true"}, [4, 2]),
        ({"held": "false"}, [3, 1]),
        ({"account_id": 8}, [4]),
        ({"repository": "globex/reactor"}, [4]),
        ({"workflow": "nothing"}, []),
        ({"label": "nothing"}, []),
        ({"state": "queued", "repository": "acme/shop"}, [2, 1]),
    ],
)
def test_each_filter_of_jobs_leaves_what_it_names(stage: Stage, query: dict[str, Any], expected: list[int]) -> None:
    stage.account()
    stage.account(8, "globex")
    pool = stage.pool()
    stage.job(1, pool_id=pool)
    stage.job(2, hold_reason="no_pool")
    stage.job(3, pool_id=pool, state="completed", conclusion="success")
    stage.job(4, account_id=8, repository="globex/reactor", hold_reason="ask_github")
    assert ids(stage, "/jobs", limit=1, **query) == expected
    assert ids(stage, "/jobs", pool_id=pool) == [3, 1]


def test_a_filter_that_fits_nothing_is_an_empty_page(stage: Stage) -> None:
    assert ids(stage, "/jobs", account_id=999) == []


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/jobs", {"limit": "0"}, "limit"),
        ("/jobs", {"limit": "201"}, "limit"),
        ("/jobs", {"limit": "many"}, "limit"),
        ("/jobs", {"state": "asleep"}, "state"),
        ("/jobs", {"hold_reason": "none"}, "hold_reason"),
        ("/jobs", {"held": "perhaps"}, "held"),
        ("/jobs", {"account_id": "-1"}, "account_id"),
        ("/jobs", {"pool_id": str(2**63)}, "pool_id"),
        ("/jobs", {"repository": "a\0b"}, "repository"),
        ("/jobs", {"repository": "x" * 201}, "repository"),
        ("/jobs", {"colour": "red"}, "colour"),
        ("/jobs", {"cursor": "x" * 101}, "cursor"),
        ("/jobs", {"cursor": ""}, "cursor"),
        ("/jobs", {"cursor": "\u00e9"}, "cursor"),
        ("/claims", {"purpose": "fun"}, "purpose"),
        ("/claims", {"job_id": "1.5"}, "job_id"),
        ("/pools", {"name": "n\u00e4me"}, "name"),
        ("/accounts", {"login": ""}, "login"),
        ("/repairs", {"sweep": "broom"}, "sweep"),
        ("/repairs", {"outcome": "fine"}, "outcome"),
        ("/repairs", {"pod_uid": ""}, "pod_uid"),
        ("/jobs/x", {}, "job_id"),
        (f"/claims/{2**63}", {}, "claim_id"),
        ("/pools/0", {}, "pool_id"),
    ],
)
def test_a_wild_value_is_422_and_names_its_field(stage: Stage, path: str, query: dict[str, Any], field: str) -> None:
    answer = stage.get(path, **query)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == 422
    assert [error["field"] for error in body["errors"]] == [field]
    assert body["detail"].startswith((f"{field}: ", "This cursor"))


def test_a_cursor_that_was_changed_in_any_place_is_refused(stage: Stage) -> None:
    stage.account()
    for job_id in range(1, 4):
        stage.job(job_id)
    cursor = stage.get("/jobs", limit=1).json()["next_cursor"]
    assert stage.get("/jobs", cursor=cursor).status_code == 200
    for place in range(len(cursor)):
        other = "A" if cursor[place] != "A" else "B"
        answer = stage.get("/jobs", cursor=cursor[:place] + other + cursor[place + 1 :])
        assert answer.status_code == 422, place
        assert answer.json()["errors"][0]["field"] == "cursor"


def test_a_cursor_belongs_to_its_list_and_its_filters(stage: Stage) -> None:
    stage.account()
    for job_id in range(1, 4):
        stage.job(job_id)
    cursor = stage.get("/jobs", limit=1).json()["next_cursor"]
    assert stage.get("/jobs", limit=2, cursor=cursor).status_code == 200  # the size of a page may change
    assert stage.get("/jobs", limit=1, cursor=cursor, state="queued").status_code == 422
    assert stage.get("/claims", limit=1, cursor=cursor).status_code == 422


def test_what_is_not_there_is_404(stage: Stage) -> None:
    for path in ("/jobs/1", "/claims/1", "/pools/1", "/accounts/1"):
        answer = stage.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
