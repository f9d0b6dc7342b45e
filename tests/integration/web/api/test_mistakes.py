"""Mistakes of a script that calls the API: each answer is a problem document with the error and a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.cli.test_mistakes import SILLY
from tests.integration.web.api.conftest import Stage

BUDGET = {"count": 1, "vcpu": 1, "memory_gib": 1}

# Method, path, token, how it is sent, status, words that are said.
MISTAKES: tuple[tuple[str, str, str | None, dict[str, Any], int, tuple[str, ...]], ...] = (
    ("GET", "/jobs", None, {}, 401, ("ostler token create",)),
    ("GET", "/jobs", "nonsense", {}, 401, ("ostler token create",)),
    ("PUT", "/accounts/7/budget", "reader", {"json": BUDGET}, 403, ("scope write",)),
    ("GET", "/nope", "reader", {}, 404, ("This path does not exist", "/api/docs")),
    ("DELETE", "/jobs", "writer", {}, 405, ("DELETE is not allowed on this path", "GET")),
    ("GET", "/jobs/99", "reader", {}, 404, ("There is no job with this id", "GET /api/v1/jobs lists")),
    ("GET", "/pools/99", "reader", {}, 404, ("There is no pool with this id", "GET /api/v1/pools lists")),
    ("PUT", "/accounts/99/budget", "writer", {"json": BUDGET}, 404, ("There is no account with this id",)),
    ("GET", "/jobs?limit=0", "reader", {}, 422, ("limit: ", "greater than or equal to 1")),
    ("GET", "/jobs?state=bogus", "reader", {}, 422, ("state: ", "'queued'")),
    ("GET", "/jobs?colour=red", "reader", {}, 422, ("colour: The API has no field",)),
    ("GET", "/jobs?cursor=x", "reader", {}, 422, ("cursor",)),
    ("GET", "/jobs/abc", "reader", {}, 422, ("job_id: ", "integer")),
    ("PUT", "/accounts/7/budget", "writer", {"json": {**BUDGET, "cpu": 1}}, 422, ("cpu: The API has no field",)),
    ("PUT", "/accounts/7/budget", "writer", {"json": {"count": 1}}, 422, ("vcpu: Field required",)),
    ("PUT", "/accounts/7/budget", "writer", {"json": {**BUDGET, "count": -1}}, 422, ("count: ", "greater")),
    (
        "PUT",
        "/accounts/7/budget",
        "writer",
        {"content": b"{", "headers": {"Content-Type": "application/json"}},
        422,
        ("JSON",),
    ),
)


def test_mistake_of_a_script_is_a_problem_with_its_cure(stage: Stage) -> None:
    stage.account()
    tokens = {"reader": stage.reader, "writer": stage.writer}
    wrong = []
    for method, path, token, how, status, said in MISTAKES:
        answer = stage.client.call(method, f"/api/v1{path}", token=tokens.get(token or "", token), **how)
        good = answer.status_code == status and answer.headers["content-type"] == "application/problem+json"
        if not good or SILLY.search(answer.text) or not all(each in answer.text for each in said):
            wrong.append((method, path, answer.status_code, answer.text))
    assert wrong == []


VALUE = "hunter2"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/jobs?limit={VALUE}", None),
        ("GET", f"/jobs?state={VALUE}", None),
        ("GET", f"/jobs?cursor={VALUE}", None),
        ("GET", f"/jobs?colour={VALUE}", None),
        ("GET", f"/jobs/{VALUE}", None),
        ("GET", f"/{VALUE}", None),
        ("PUT", "/accounts/7/budget", {**BUDGET, "count": VALUE}),
        ("PUT", "/accounts/7/budget", {**BUDGET, "more": VALUE}),
        ("PUT", "/accounts/7/budget", VALUE),
        ("PUT", "/accounts/7/access", {"access": VALUE}),
    ],
)
def test_error_does_not_repeat_the_value(stage: Stage, method: str, path: str, body: object) -> None:
    stage.account()
    token = stage.writer if method == "PUT" else stage.reader
    answer = stage.client.call(method, f"/api/v1{path}", token=token, **({} if body is None else {"json": body}))
    assert answer.status_code in {404, 422}
    assert VALUE not in answer.text
