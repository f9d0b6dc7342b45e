"""Tokens that are limited to accounts: the visible objects, and the answer of every route of the API."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute

from rules.token_scopes import TokenScope
from tests.database import Database
from tests.integration.web.api.conftest import Stage, make_settings
from web.api.app import build_api
from web.api.limited import is_by_account

OURS, THEIRS = 7, 8
OF_FLEET = {
    ("GET", "/v1/changes"),
    ("GET", "/v1/gates"),
    ("GET", "/v1/pods"),
    ("GET", "/v1/pools"),
    ("GET", "/v1/pools/{pool_id}"),
    ("GET", "/v1/pools/{pool_id}/explanation"),
    ("GET", "/v1/repairs"),
    ("GET", "/v1/sweeps"),
}
BY_ACCOUNT = {
    "/v1/accounts",
    "/v1/accounts/{account_id}",
    "/v1/accounts/{account_id}/explanation",
    "/v1/claims",
    "/v1/claims/{claim_id}",
    "/v1/jobs",
    "/v1/jobs/{job_id}",
    "/v1/jobs/{job_id}/explanation",
    "/v1/pods/{pod}",
    "/v1/pods/{pod}/explanation",
    "/v1/usage",
}


def claimed(stage: Stage, number: int, *, owner: int, pod: str, pool_id: int, purpose: str = "job") -> int:
    """Insert a claim on a Pod. Insert the Pod too if no Pod has this name."""
    stage.execute(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
        SELECT :pool, 'runners', :pod, :pod, :pod, 'h', now()
        WHERE NOT EXISTS (SELECT FROM runner_pods WHERE name = :pod)
        """,
        pool=pool_id,
        pod=pod,
    )
    rows = stage.execute(
        """
        INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, scope, vcpu, memory, state,
                            created_at, changed_at, due_at, ended_at, end_reason)
        SELECT :purpose, CAST(:job AS bigint), id, uid, pool_id, CAST(:owner AS bigint), 'orgs/x', 1, 1, 'ended', now(),
               now(), now(), now(), 'released' FROM runner_pods WHERE name = :pod RETURNING id
        """,
        purpose=purpose,
        job=number if purpose == "job" else None,
        owner=owner if purpose == "job" else None,
        pod=pod,
    )
    claim_id: int = rows[0].id
    stage.execute(
        """
        INSERT INTO claim_events (claim_id, at, transition, to_state, who, why)
        VALUES (:id, now(), 'claim', 'claimed', 'dispatch', :why)
        """,
        id=claim_id,
        why=f"of {owner}",
    )
    return claim_id


class Fleet:
    """Two accounts, each with a job, a claim and a Pod, and a Pod that served both."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.account(OURS, "acme")
        stage.account(THEIRS, "globex")
        pool_id = stage.pool()
        stage.job(100, pool_id=pool_id)
        stage.job(200, pool_id=pool_id, account_id=THEIRS, repository="globex/app")
        self.our_claim = claimed(stage, 100, owner=OURS, pod="ours", pool_id=pool_id)
        self.their_claim = claimed(stage, 200, owner=THEIRS, pod="theirs", pool_id=pool_id)
        self.shared = claimed(stage, 100, owner=OURS, pod="shared", pool_id=pool_id)
        claimed(stage, 200, owner=THEIRS, pod="shared", pool_id=pool_id)
        claimed(stage, 0, owner=THEIRS, pod="shared", pool_id=pool_id, purpose="retire")
        self.token = stage.token(TokenScope.READ, accounts=[OURS])

    def get(self, path: str, **query: Any) -> Any:
        return self.stage.client.call("GET", f"/api/v1{path}", token=self.token, params=query)


@pytest.fixture
def fleet(stage: Stage) -> Fleet:
    return Fleet(stage)


def test_lists_show_what_is_of_the_tokens_account_alone(fleet: Fleet) -> None:
    assert [each["id"] for each in fleet.get("/jobs").json()["items"]] == [100]
    assert {each["account_id"] for each in fleet.get("/claims").json()["items"]} == {OURS}
    assert [each["id"] for each in fleet.get("/accounts").json()["items"]] == [OURS]


def test_filter_for_another_account_finds_nothing(fleet: Fleet) -> None:
    for path, query in (
        ("/jobs", {"account_id": THEIRS}),
        ("/jobs", {"repository": "globex/app"}),
        ("/claims", {"account_id": THEIRS}),
        ("/claims", {"pod": "theirs"}),
        ("/claims", {"job_id": 200}),
        ("/accounts", {"login": "globex"}),
    ):
        answer = fleet.get(path, **query)
        assert (answer.status_code, answer.json()["items"]) == (200, []), (path, query)


def test_page_of_a_limited_list_is_full_and_goes_on(fleet: Fleet) -> None:
    for number in range(5):
        fleet.stage.job(300 + number, account_id=THEIRS, repository="globex/app")
        fleet.stage.job(400 + number)
    seen, cursor = [], None
    while True:
        page = fleet.get("/jobs", limit=2, **({"cursor": cursor} if cursor else {})).json()
        seen += [each["id"] for each in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert len(page["items"]) == 2
    assert seen == [404, 403, 402, 401, 400, 100]


def test_what_is_of_another_account_is_not_found(fleet: Fleet) -> None:
    for ours, theirs in (
        ("/jobs/100", "/jobs/200"),
        (f"/claims/{fleet.our_claim}", f"/claims/{fleet.their_claim}"),
        ("/pods/ours", "/pods/theirs"),
        (f"/accounts/{OURS}", f"/accounts/{THEIRS}"),
    ):
        assert fleet.get(ours).status_code == 200, ours
        hidden, absent = fleet.get(theirs), fleet.get(theirs.rpartition("/")[0] + "/999")
        assert hidden.status_code == 404, theirs
        assert hidden.json() == absent.json()


def test_pod_that_others_had_too_shows_the_tokens_claims_alone(fleet: Fleet) -> None:
    shown = fleet.get("/pods/shared").json()
    assert [each["id"] for each in shown["claims"]] == [fleet.shared]
    assert [each["why"] for each in shown["events"]] == [f"of {OURS}"]


def test_path_of_the_whole_fleet_says_why_it_is_refused(fleet: Fleet) -> None:
    answer = fleet.get("/pools")
    assert answer.status_code == 403
    assert answer.json()["type"] == "urn:ostler:problem:limited-token"
    assert "--account" in answer.json()["detail"]


def test_limited_token_changes_nothing(fleet: Fleet) -> None:
    for account in (OURS, THEIRS):
        for path, body in (
            ("weight", {"weight": 9}),
            ("access", {"access": "allowed"}),
            ("budget", {"count": 1, "vcpu": 1, "memory_gib": 1}),
        ):
            answer = fleet.stage.client.call("PUT", f"/api/v1/accounts/{account}/{path}", token=fleet.token, json=body)
            assert answer.status_code == 403
    assert (
        fleet.stage.client.call("PUT", "/api/v1/sweeps/resume", token=fleet.token, json={"paused": True}).status_code
        == 403
    )


def routes(database: Database) -> list[APIRoute]:
    gate: Any = build_api(make_settings(database), database=lambda: None, publisher=lambda: None)  # type: ignore[arg-type,return-value]
    every = [
        route
        for each in gate._inner.routes
        for route in (each.original_router.routes if hasattr(each, "original_router") else [each])
    ]
    return [each for each in every if isinstance(each, APIRoute) and each.path.startswith("/v1/")]


def test_every_route_is_by_account_or_refuses_limited_tokens(database: Database, fleet: Fleet) -> None:
    found = routes(database)
    assert {each.path for each in found if is_by_account(each)} == BY_ACCOUNT
    refused = {(method, each.path) for each in found for method in each.methods or () if not is_by_account(each)}
    assert {each for each in refused if each[0] == "GET"} == OF_FLEET
    for method, path in refused:
        values = {"pool_id": 1, "job_id": 100, "account_id": OURS, "name": "resume"}
        url = "/api" + path.format_map(values)
        answer = fleet.stage.client.call(method, url, token=fleet.token, json=None if method == "GET" else {})
        assert answer.status_code == 403, (method, path)
        whole = fleet.stage.reader if method == "GET" else fleet.stage.writer
        other = fleet.stage.client.call(method, url, token=whole, json=None if method == "GET" else {})
        assert other.status_code != 403, (method, path)


def test_every_route_by_account_hides_another_account(database: Database, fleet: Fleet) -> None:
    of_theirs = {"account_id": THEIRS, "claim_id": fleet.their_claim, "job_id": 200, "pod": "theirs"}
    for route in routes(database):
        if not is_by_account(route):
            continue
        answer = fleet.stage.client.call("GET", "/api" + route.path.format(**of_theirs), token=fleet.token)
        if "{" in route.path:
            assert answer.status_code == 404, route.path
        else:
            assert "globex" not in answer.text, route.path
