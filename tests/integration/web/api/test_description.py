"""The API's description is valid OpenAPI, every reference resolves, and the API's answers agree with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import Case, GenerationMode
from schemathesis.checks import negative_data_rejection, positive_data_acceptance
from schemathesis.core.result import Ok

from tests.integration.web.api.conftest import Stage


def references(node: Any) -> Iterator[str]:
    """Yield every `$ref` below `node`."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def resolves(reference: str, root: dict[str, Any]) -> bool:
    """Return whether a reference names a part of the description itself."""
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return reference.startswith("#/")


def test_description_is_valid_openapi(stage: Stage) -> None:
    description = stage.client.call("GET", "/api/openapi.json").json()
    assert [error.message for error in OpenAPIV31SpecValidator(description).iter_errors()] == []


def test_every_reference_of_description_resolves(stage: Stage) -> None:
    description = stage.client.call("GET", "/api/openapi.json").json()
    found = list(references(description))
    assert len(found) > 50
    assert [each for each in found if not resolves(each, description)] == []


def agree(stage: Stage, *, examples: int) -> None:
    """Send each operation `examples` valid and as many invalid requests, and compare the answers with the description.

    The checks are of the status, the media type, the schema, the headers, the rejection of invalid data and of other
    methods, and the need of a token.
    """
    stage.account()
    pool = stage.pool()
    stage.job(11, pool_id=pool)
    stage.job(7, hold_reason="no_pool")
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", stage.app)
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) >= 10
    statuses: set[int] = set()
    for operation in operations:
        for mode in GenerationMode:

            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def story(case: Case[Any]) -> None:
                token = stage.reader if case.method.upper() == "GET" else stage.writer
                query = case.query or {}
                skipped = []
                if "cursor" in query:  # valid are only those that the API has given out
                    skipped.append(positive_data_acceptance)
                # A percent sign is sent as it is, so that what arrives is another value, or no UTF-8.
                if any("%" in str(value) for value in (case.path_parameters or {}).values()):
                    skipped.append(positive_data_acceptance)
                # A list is sent as its items and may look like a valid value, an empty one is not sent at all.
                if any(isinstance(value, list | dict) for value in query.values()):
                    skipped.append(negative_data_rejection)
                answer = case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, excluded_checks=skipped)
                statuses.add(answer.status_code)

            story()
    assert {200, 404, 422} <= statuses


def test_answers_agree_with_description(stage: Stage) -> None:
    agree(stage, examples=5)


@pytest.mark.slow
def test_answers_agree_with_description_over_many_requests(stage: Stage) -> None:
    agree(stage, examples=100)


def test_every_parameter_is_described_and_none_can_be_null(stage: Stage) -> None:
    description = stage.client.call("GET", "/api/openapi.json").json()
    parameters = [
        each
        for path in description["paths"].values()
        for operation in path.values()
        for each in operation.get("parameters", ())
    ]
    assert len(parameters) > 30
    assert [each["name"] for each in parameters if not each.get("description")] == []
    assert [each["name"] for each in parameters if "null" in str(each["schema"].get("anyOf", each["schema"]))] == []
