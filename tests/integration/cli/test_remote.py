"""Commands that ask the REST API print the same as with access to Postgres, as far as the token allows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ostler.clock import utcnow
from rules.token_scopes import TokenScope
from tests.integration.cli.test_operator import Done, Operator, operator, run_command
from tests.integration.web.api.conftest import Stage, serving
from tests.rows import insert_events, insert_pool, run_sql
from tests.served import served

__all__ = ["operator"]


@dataclass
class Developer:
    """A developer with a token and without access to Postgres."""

    operator: Operator
    stage: Stage
    url: str

    def run(self, *arguments: str, token: str | None = None, **changes: str) -> Done:
        env = self.operator.environment() | {"OSTLER_API_URL": self.url, "NO_PROXY": "*"}
        del env["OSTLER_DATABASE_URL"]
        return run_command(env | {"OSTLER_API_TOKEN": token or self.stage.reader} | changes, *arguments)

    def json(self, *arguments: str, **how: str) -> Any:
        done = self.run(*arguments, "--json", **how)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def developer(operator: Operator) -> Iterator[Developer]:
    with serving(operator.database) as stage, served(stage.app) as url:
        yield Developer(operator, stage, url)


@pytest.mark.parametrize(
    "command",
    [
        ("jobs",),
        ("jobs", "--held", "-o", "name"),
        ("jobs", "--account", "globex", "--state", "queued"),
        ("jobs", "--pool", "POOL", "--limit", "1"),
        ("jobs", "--since", "9d", "--sort", "oldest"),
        ("jobs", "--label", "GPU"),
        ("jobs", "--failed"),
        ("pods", "--since", "9d", "--sort", "oldest"),
        ("pods", "--failed", "--all"),
        ("job", "11"),
        ("job", "12", "--wide"),
        ("job", "13"),
        ("pods", "--pool", "POOL"),
        ("pod", "POD"),
        ("pool", "show", "POOL"),
    ],
    ids=" ".join,
)
def test_the_api_tells_a_developer_what_postgres_tells_an_operator(
    developer: Developer, command: tuple[str, ...]
) -> None:
    (names,) = run_sql(
        developer.operator.database.engine, "SELECT p.name AS pod, l.name AS pool FROM runner_pods p, pools l"
    )
    command = tuple({"POD": names.pod, "POOL": names.pool}.get(word, word) for word in command)
    run_sql(developer.operator.database.engine, "UPDATE jobs SET queued_at = now() - interval '3 days 90 minutes'")
    local, remote = developer.operator.run(*command), developer.run(*command)
    assert (remote.returncode, remote.stderr) == (0, local.stderr)
    assert remote.stdout == local.stdout


def test_account_show_asks_the_api_for_all_but_the_waits(developer: Developer) -> None:
    local, remote = (each.run("account", "show", "acme") for each in (developer.operator, developer))
    assert (remote.returncode, remote.stderr) == (0, "")
    assert local.stdout.startswith(remote.stdout)
    assert set(developer.operator.json("account", "show", "acme")) - set(developer.json("account", "show", "77")) == {
        "waits_of_last_day"
    }
    assert developer.run("account", "show", "nobody").returncode == 1


def test_json_of_the_command_has_every_field_of_the_api(developer: Developer) -> None:
    remote, local = developer.json("job", "12"), developer.operator.json("job", "12")
    assert set(remote) <= set(local)
    assert remote["why"]["checks"] == local["why"]["checks"]
    assert [each["step"] for each in remote["why"]["checks"]][:2] == ["environment", "records"]
    assert [each["what"] for each in developer.json("job", "11")["timeline"]] == [
        each["what"] for each in developer.operator.json("job", "11")["timeline"]
    ]


def test_timeline_names_the_webhook_and_the_task_of_a_transition(developer: Developer) -> None:
    (claim,) = developer.operator.execute("SELECT id FROM claims WHERE job_id = 11")
    insert_events(developer.operator.database.engine, job_id=11, claim_id=claim.id)
    shown = developer.run("job", "11").stdout
    assert re.search(r"^.* job +- +queued +webhook +queued +- +guid-1$", shown, re.MULTILINE)
    assert re.search(r"^.* minted +mint +minted +- +task-1 \(attempt 2\)$", shown, re.MULTILINE)
    told = {each["transition"]: each for each in developer.json("job", "11")["timeline"]}
    assert told["job_add"]["delivery"] == "guid-1"
    assert (told["mint"]["task_id"], told["mint"]["attempt"]) == ("task-1", 2)


def test_lists_longer_than_a_page_of_the_api_are_read_to_the_limit(developer: Developer) -> None:
    run_sql(
        developer.operator.database.engine,
        "INSERT INTO jobs SELECT (jsonb_populate_record(j, jsonb_build_object('id', 1000 + n))).* "
        "FROM jobs j, generate_series(1, 250) n WHERE j.id = 13 RETURNING id",
    )
    done = developer.run("jobs", "--limit", "230", "-o", "name")
    assert len(done.stdout.split()) == 230
    assert "more rows exist than the 230 shown" in developer.run("jobs", "--limit", "230").stderr
    assert len(developer.run("jobs", "--limit", "1000", "-o", "name").stdout.split()) == 253


def test_a_limited_token_shows_only_its_accounts(developer: Developer) -> None:
    token = developer.stage.token(TokenScope.READ, accounts=(88,))
    assert [job["id"] for job in developer.json("jobs", token=token)] == [13]
    missing = developer.run("job", "11", token=token)
    assert (missing.returncode, "there is no job 11" in missing.stderr) == (1, True)
    refused = developer.run("jobs", "--pool", "any", token=token)
    assert refused.returncode == 2
    assert "This token is limited to some accounts" in refused.stderr


def test_a_wrong_address_or_token_is_one_line_with_the_cure(developer: Developer) -> None:
    refused = developer.run("jobs", token="ostler_wrong")
    assert (refused.returncode, "OSTLER_API_TOKEN" in refused.stderr) == (2, True)
    away = developer.run("jobs", OSTLER_API_URL="http://127.0.0.1:9")
    assert (away.returncode, "Check OSTLER_API_URL" in away.stderr) == (3, True)
    other = developer.run("jobs", OSTLER_API_URL=f"{developer.url}/elsewhere")
    assert (other.returncode, "answered 404" in other.stderr) == (3, True)
    for done in (refused, away, other):
        assert done.stderr.count("\n") == 1
    mistyped = developer.run("jobs", OSTLER_API_URL="ostler.example.com")
    assert (mistyped.returncode, "must begin with http:// or https://" in mistyped.stderr) == (2, True)
    alone = developer.run("jobs", OSTLER_API_TOKEN="")
    assert (alone.returncode, "OSTLER_API_TOKEN: it is not set; must be set together" in alone.stderr) == (2, True)
    assert developer.stage.reader not in refused.stdout + refused.stderr + away.stderr + other.stderr


def test_pool_is_paused_over_the_api_with_a_token_that_may_write(developer: Developer) -> None:
    engine = developer.operator.database.engine
    (pool,) = run_sql(engine, "SELECT id, name FROM pools")
    deleted = insert_pool(engine, pool.name, uid="deleted", deleted_at=utcnow())
    token = developer.stage.token(TokenScope.READ, TokenScope.WRITE, name="alice")
    refused = developer.run("pool", "pause", pool.name)
    assert (refused.returncode, refused.stdout) == (2, "")
    done = developer.run("pool", "pause", pool.name, token=token)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"a worker pauses {pool.name} within seconds" in done.stdout
    assert "alice (API) asked" in developer.run("pool", "show", pool.name).stdout  # not the deleted pool of the name
    assert [developer.run(each, "--pool", pool.name).returncode for each in ("jobs", "pods")] == [0, 0]
    assert "to pause it; no worker has done it yet" in developer.operator.run("pool", "show", str(pool.id)).stdout
    asked = developer.json("pool", "resume", str(pool.id), token=token)
    assert asked["pause_request"]["paused"] is False
    assert "to resume it" in developer.run("pool", "show", str(pool.id)).stdout
    assert f"a worker resumes {pool.name}" in developer.run("pool", "resume", pool.name, token=token).stdout
    for gone in ("99", str(deleted)):
        missing = developer.run("pool", "pause", gone, token=token)
        assert (missing.returncode, f"there is no pool '{gone}'" in missing.stderr) == (1, True)
    run_sql(engine, "UPDATE pools SET draining = true")
    refused = developer.run("pool", "pause", pool.name, token=token)
    assert (refused.returncode, "cannot be paused" in refused.stderr) == (1, True)
