"""Access to the API: tokens, scopes, and the answer to a caller without a token, which reveals nothing."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from models import api_tokens
from models.api_tokens import Holder
from models.db.engine import transaction
from ostler.clock import utcnow
from ostler.secrets import Secret
from rules.token_scopes import TokenScope
from tests.database import Database
from tests.integration.web.api.conftest import Client, Stage, make_settings
from tests.outbox import PublisherOutbox
from tests.rows import author
from web.api.app import build_api, mount_api
from web.api.gate import LARGEST_BODY, OPEN


def paths(stage: Stage) -> list[tuple[str, str]]:
    """Return every operation of the API, with ids filled in."""
    description = stage.client.call("GET", "/api/openapi.json").json()
    return [
        (
            method.upper(),
            f"/api{path.replace('{', '').replace('}', '').replace('job_id', '1').replace('claim_id', '1')}",
        )
        for path, methods in description["paths"].items()
        for method in methods
    ]


def test_nothing_answers_without_a_token_and_what_does_not_exist_answers_the_same(stage: Stage) -> None:
    operations = paths(stage)
    assert len(operations) >= 10
    answers = {
        stage.client.call(method, path).text
        for method, path in (
            *operations,
            ("GET", "/api/v1/nothing"),
            ("GET", "/api/"),
            ("DELETE", "/api/x"),
            ("GET", "/api/v1/jobs/%0A"),
        )
    }
    assert len(answers) == 1
    answer = stage.client.call("GET", "/api/v1/jobs")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"


def test_only_the_description_and_its_pages_are_open(stage: Stage) -> None:
    for path in OPEN:
        assert stage.client.call("GET", f"/api{path}").status_code == 200
    assert stage.client.call("GET", "/api/docs/../v1/jobs").status_code == 401
    assert stage.client.call("GET", "/api/docs/").status_code == 401


@pytest.mark.parametrize("kind", ["unknown key", "wrong secret", "no form", "basic", "empty", "huge", "not ascii"])
def test_every_bad_token_gets_the_same_answer(stage: Stage, kind: str) -> None:
    good = stage.reader
    header = {
        "unknown key": f"Bearer ostler_{'0' * 16}_{good[-43:]}",
        "wrong secret": f"Bearer {good[:-1]}{'A' if good[-1] != 'A' else 'B'}",
        "no form": "Bearer x",
        "basic": "Basic dXNlcjpwYXNz",
        "empty": "Bearer ",
        "huge": "Bearer " + "x" * 20_000,
        "not ascii": "Bearer \u00e9",
    }[kind]
    answer = stage.client.call("GET", "/api/v1/jobs", headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.text == stage.client.call("GET", "/api/v1/jobs").text


def test_a_token_without_the_scope_is_told_which_it_lacks(stage: Stage) -> None:
    stage.account()
    body = {"count": 1, "vcpu": 1, "memory_gib": 1}
    answer = stage.client.call("PUT", "/api/v1/accounts/7/budget", token=stage.reader, json=body)
    assert answer.status_code == 403
    assert "scope write" in answer.json()["title"]
    assert stage.client.call("GET", "/api/v1/jobs", token=stage.writer).status_code == 403
    both = stage.token(TokenScope.READ, TokenScope.WRITE)
    assert stage.client.call("GET", "/api/v1/jobs", token=both).status_code == 200
    assert stage.client.call("PUT", "/api/v1/accounts/7/budget", token=both, json=body).status_code == 200


def test_a_token_that_was_revoked_or_ran_out_is_nobodys(stage: Stage) -> None:
    late = stage.token(TokenScope.READ, expires_at=utcnow() - timedelta(seconds=1))
    soon = stage.token(TokenScope.READ, expires_at=utcnow() + timedelta(minutes=1))
    assert stage.client.call("GET", "/api/v1/jobs", token=late).status_code == 401
    assert stage.client.call("GET", "/api/v1/jobs", token=soon).status_code == 200
    (row,) = stage.execute("SELECT id FROM api_tokens WHERE name = 'reader'")
    assert transaction(stage.engine, lambda db: api_tokens.revoke(db, row.id, by=author()))
    assert stage.get("/jobs").status_code == 401


def test_a_token_is_stored_as_a_digest_only(stage: Stage) -> None:
    secret = stage.reader.split("_", 2)[2]  # it may have that character, too
    rows = stage.execute("SELECT t::text AS row FROM api_tokens t")
    assert rows
    assert all(secret not in row.row for row in rows)


def test_the_last_use_is_written_at_most_once_a_minute(stage: Stage) -> None:
    def used(now: Any) -> Any:
        token = Secret(stage.reader)
        transaction(stage.engine, lambda db: api_tokens.verify(db, token, now=now))
        return stage.execute("SELECT last_used_at FROM api_tokens WHERE name = 'reader'")[0][0]

    begin = utcnow()
    assert used(begin) == begin
    assert used(begin + timedelta(seconds=59)) == begin
    assert used(begin + timedelta(seconds=60)) == begin + timedelta(seconds=60)


def test_refused_tokens_are_logged_without_them_and_not_once_each(stage: Stage) -> None:
    with capture_logs() as logs:
        for _ in range(20):
            stage.client.call("GET", "/api/v1/jobs", token=stage.reader[:-1] + "!")
    lines = [line for line in logs if line["event"] == "api.unauthorized"]
    assert 1 <= len(lines) <= 3
    assert stage.reader[7:-1] not in str(logs)


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/jobs/999999", "/api/v1/nothing", "/api/openapi.json"])
def test_every_answer_is_kept_out_of_caches_and_is_what_it_says(stage: Stage, path: str) -> None:
    for token in (stage.reader, None):
        headers = stage.client.call("GET", path, token=token).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


def test_path_with_a_slash_too_many_is_not_redirected(stage: Stage) -> None:
    for path in ("/runners/v1/dispatch/", "/webhooks/github/", "/healthz/"):
        assert stage.client.call("GET", path).status_code == 404


class Failing:
    """A database that fails in a given way."""

    def __init__(self, error: Exception, *, after: int = 0) -> None:
        self.error = error
        self.good = after

    async def run(self, body: Any) -> Any:
        del body
        self.good -= 1
        if self.good >= 0:
            return Holder(1, "test", frozenset(TokenScope))
        raise self.error


@pytest.mark.parametrize("after", [0, 1], ids=["while the token is looked up", "while it is answered"])
@pytest.mark.parametrize(
    ("error", "status"), [(OperationalError("SELECT 1", None, Exception("secret row")), 503), (KeyError("secret"), 500)]
)
def test_what_fails_within_is_a_problem_that_tells_nothing(
    database: Database, error: Exception, status: int, after: int
) -> None:
    failing: Any = Failing(error, after=after)
    app = FastAPI()
    mount_api(app, build_api(make_settings(database), database=lambda: failing, publisher=PublisherOutbox))
    client = Client(app)
    answer = client.call("GET", "/api/v1/jobs", token=f"ostler_{'0' * 16}_{'A' * 43}")
    client.close()
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text


def test_description_and_pages_need_no_database(database: Database) -> None:
    failing: Any = Failing(AssertionError("a row was read"))
    app = FastAPI()
    mount_api(app, build_api(make_settings(database), database=lambda: failing, publisher=PublisherOutbox))
    client = Client(app)
    assert [client.call("GET", f"/api{path}").status_code for path in sorted(OPEN)] == [200] * len(OPEN)
    client.close()


def test_secret_of_a_token_has_256_bits(stage: Stage) -> None:
    secrets = [token.split("_", 2)[2] for token in (stage.reader, stage.writer)]
    assert [len(base64.urlsafe_b64decode(f"{secret}=")) for secret in secrets] == [32, 32]
    assert len(set(secrets)) == 2


def test_a_body_is_read_to_a_limit_only(stage: Stage) -> None:
    stage.account()
    answer = stage.client.call(
        "PUT",
        "/api/v1/accounts/7/budget",
        token=stage.writer,
        content=b" " * (LARGEST_BODY + 1),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


def test_head_and_options_answer_sanely(stage: Stage) -> None:
    head = stage.client.call("HEAD", "/api/v1/jobs", token=stage.reader)
    assert (head.status_code, head.content) == (200, b"")
    options = stage.client.call("OPTIONS", "/api/v1/jobs", token=stage.reader)
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    wrong = stage.client.call("POST", "/api/v1/jobs", token=stage.writer)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert wrong.headers["content-type"] == "application/problem+json"
    assert stage.client.call("OPTIONS", "/api/v1/jobs").status_code == 401
    missing = stage.client.call("GET", "/api/v1/jobs/", token=stage.reader)
    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/problem+json"


def test_the_pages_need_no_other_host(stage: Stage) -> None:
    page = stage.client.call("GET", "/api/docs")
    assert "://" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "SwaggerUIBundle" in stage.client.call("GET", "/api/docs/swagger-ui-bundle.js").text


def test_every_operation_says_that_it_needs_a_token_and_how_it_fails(stage: Stage) -> None:
    description = stage.client.call("GET", "/api/openapi.json").json()
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            assert operation["security"], (path, method)
            assert {"401", "403", "422", "503"} <= operation["responses"].keys()
            assert operation["summary"]
            for status, response in operation["responses"].items():
                if status != "200":
                    assert set(response["content"]) == {"application/problem+json"}, (path, method, status)


def test_no_answer_about_rows_is_stored_or_sniffed(stage: Stage) -> None:
    stage.account()
    token = stage.reader
    for path in ("/api/v1/jobs", "/api/v1/accounts/7", "/api/v1/accounts/8", "/api/v1/nothing", "/api/openapi.json"):
        headers = stage.client.call("GET", path, token=token).headers
        assert headers.get_list("cache-control") == ["no-store"], path
        assert headers.get_list("x-content-type-options") == ["nosniff"], path
    kept = stage.client.call("GET", "/api/docs/swagger-ui-bundle.js").headers
    assert kept.get_list("cache-control") == ["max-age=3600"]
    assert kept.get_list("x-content-type-options") == ["nosniff"]
