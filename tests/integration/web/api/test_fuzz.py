"""Fuzzing of every operation of the description: no failure of the server, and every error is a problem document.

Values come from the description's own schemas, from their limits, and from outside of them.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.web.api.conftest import Stage

WILD = st.one_of(
    st.text(max_size=60),
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "1e3",
            "NaN",
            "null",
            "true",
            "[]",
            "{}",
            "\0",
            "\ud7ff",
            "%00",
            "'; --",
            "../..",
            "A" * 300,
            "9" * 5000,
        ]
    ),
)
WILD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
METHODS = ("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS")


def resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references and without the alternative null."""
    while "$ref" in schema:
        found = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    options = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    return resolved(options[0], root) if options else schema


def fitting(schema: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that fit a schema."""
    schema = resolved(schema, root)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    least = schema.get("minimum", 0) or schema.get("exclusiveMinimum", 0)
    kinds: dict[str | None, st.SearchStrategy[Any]] = {
        "integer": st.integers(int(least), int(schema.get("maximum", 2**63 - 1))),
        "number": st.floats(least, schema.get("maximum", 1e6), allow_nan=False),
        "boolean": st.booleans(),
        "string": st.sampled_from(["acme", "acme/shop", "small", "QUJD" * 8]),
    }
    if schema.get("type") == "object":
        return st.fixed_dictionaries({name: fitting(each, root) for name, each in schema["properties"].items()})
    return kinds[schema.get("type")]


@st.composite
def calls(draw: st.DrawFn, root: dict[str, Any]) -> tuple[str, str, Any]:
    """Return a method, a path with its query, and a body or None."""
    path, operations = draw(st.sampled_from(sorted(root["paths"].items())))
    method, operation = draw(st.sampled_from(sorted(operations.items())))
    query: dict[str, str] = {}
    for parameter in operation.get("parameters", []):
        value = draw(st.one_of(fitting(parameter["schema"], root), WILD, st.sampled_from([1, 7, 11])))
        sent = str(value).lower() if isinstance(value, bool) else str(value)
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", quote(sent, safe=""))
        elif draw(st.integers(0, 3)) == 0:
            query[parameter["name"]] = sent
    if draw(st.integers(0, 9)) == 0:
        query[draw(st.text(max_size=5))] = draw(WILD)
    body = None
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        value = draw(st.one_of(fitting(schema, root), WILD_JSON))
        body = draw(st.sampled_from([json.dumps(value).encode(), json.dumps(value).encode()[:-1], b"\xff\x00"]))
    if draw(st.integers(0, 9)) == 0:
        method = draw(st.sampled_from(METHODS))
    return method.upper(), f"/api{path}?{urlencode(query)}", body


def test_no_request_makes_it_fail_and_every_error_is_a_problem(stage: Stage) -> None:
    stage.account()
    pool = stage.pool()
    stage.job(11, pool_id=pool)
    stage.job(7, hold_reason="no_pool")
    root = stage.client.call("GET", "/api/openapi.json").json()
    seen: dict[int, int] = {}

    @settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(call=calls(root))
    def fuzz(call: tuple[str, str, Any]) -> None:
        method, path, body = call
        token = stage.reader if method in {"GET", "HEAD", "OPTIONS"} else stage.writer
        answer = stage.client.call(
            method, path, token=token, content=body, headers={"content-type": "application/json"} if body else {}
        )
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, (method, path, body, answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            if method != "HEAD":
                problem = answer.json()
                assert problem["status"] == answer.status_code
                assert problem["title"]
        else:
            assert answer.status_code in {200, 204}

    fuzz()
    assert {200, 404, 422} <= seen.keys(), seen
    assert seen[200] > 50, seen
