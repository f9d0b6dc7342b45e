"""The table of changes in the API: the author of each change, both values, and no secret."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest

from models import api_tokens
from models.db.engine import transaction
from models.routing import accounts
from models.upstream import gates
from ostler.clock import utcnow
from ostler.upstreams import Upstream
from rules.changes import ChangeKind
from rules.routing.access import Access
from rules.token_scopes import TokenScope
from rules.upstream.gates import GateRule
from tests.integration.web.api.conftest import Stage
from tests.rows import author


def changes(stage: Stage, **query: Any) -> list[dict[str, Any]]:
    answer = stage.get("/changes", **query)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def test_change_of_an_account_has_its_author_and_both_values(stage: Stage) -> None:
    stage.account()
    stage.put("/accounts/7/budget", {"count": 3, "vcpu": 80, "memory_gib": 80})
    stage.put("/accounts/7/weight", {"weight": 2})
    weight, budget = changes(stage, kind="account")
    assert (budget["old"], budget["new"]) == ({"budget_count": 10}, {"budget_count": 3})
    assert (weight["old"], weight["new"]) == ({"weight": 1}, {"weight": 2})
    assert (budget["name"], budget["object_id"], budget["who"], budget["via"]) == ("acme", 7, "writer", "API")
    assert budget["database_user"]


def test_account_is_held_and_allowed(stage: Stage) -> None:
    stage.account()
    for access in ("held", "allowed"):
        assert stage.put("/accounts/7/access", {"access": access}).json()["access"] == access
    assert stage.put("/accounts/7/access", {"access": "unknown"}).status_code == 422
    assert [each["new"]["access"] for each in changes(stage, kind="account")] == ["allowed", "held"]
    assert {name for name, _ in stage.outbox.sent} == {"ostler.rematch"}


def test_request_that_changes_nothing_is_not_recorded(stage: Stage) -> None:
    stage.account()
    stage.put("/accounts/7/access", {"access": "allowed"})
    stage.put("/sweeps/rematch", {"paused": False})
    for _ in range(2):
        stage.put("/sweeps/rematch", {"paused": True, "why": "we restore Postgres"})
    (paused,) = [each for each in changes(stage) if each["kind"] != "token"]
    assert (paused["name"], paused["why"], paused["new"]) == ("rematch", "we restore Postgres", {"paused": True})


def test_change_and_its_row_are_committed_together(stage: Stage) -> None:
    stage.account()

    def fails(db: Any) -> None:
        accounts.set_access(db, 7, Access.HELD, by=author())
        raise KeyError

    with pytest.raises(KeyError):
        transaction(stage.engine, fails)
    assert changes(stage, kind="account") == []


def test_gate_that_closes_is_a_change_of_ostler(stage: Stage) -> None:
    rule = GateRule()
    stage.execute("INSERT INTO upstream_calls VALUES ('github', now(), 10, 10)")

    def evaluate(db: Any) -> None:
        gates.evaluate(db, Upstream.GITHUB, rule=rule, window=60, apart=0, roll=0, now=utcnow() + timedelta(seconds=1))

    transaction(stage.engine, evaluate)
    (closed,) = changes(stage, kind="gate")
    assert (closed["name"], closed["via"], closed["new"]) == ("github", "Ostler", {"state": "tripped"})
    assert "10" in closed["why"]


def test_owner_of_the_app_is_allowed_by_ostler(stage: Stage) -> None:
    stage.account()
    stage.execute("UPDATE accounts SET access = 'held'")
    transaction(stage.engine, lambda db: accounts.record_owner(db, [7], owner_id=7, now=utcnow()))
    (allowed,) = changes(stage, kind="account")
    assert (allowed["who"], allowed["new"]) == ("ask_owner", {"access": "allowed"})


def test_changes_contain_no_secret(stage: Stage) -> None:
    stage.account()
    tokens = [stage.token(TokenScope.READ, name="limited", accounts=[7]), stage.reader, stage.writer]
    ids = {row.name: row.id for row in stage.execute("SELECT id, name FROM api_tokens")}
    for _ in range(2):
        assert transaction(stage.engine, lambda db: api_tokens.revoke(db, ids["limited"], by=author()))
    found = changes(stage, kind="token", object="limited")
    assert [each["new"] for each in found] == [
        {"revoked": True},
        {"scopes": ["read"], "accounts": [7]},
    ]
    (rows,) = stage.execute("SELECT string_agg(c::text, ' ') AS words FROM changes c")
    for token in tokens:
        _, key_id, secret = token.split("_", 2)
        for each in (secret, key_id, hashlib.sha256(secret.encode()).hexdigest()):
            assert each not in rows.words


def test_changes_are_filtered(stage: Stage) -> None:
    stage.account(7, "acme")
    stage.account(8, "globex")
    for each in (7, 8):
        stage.put(f"/accounts/{each}/weight", {"weight": 3})
    assert [each["name"] for each in changes(stage, object="8")] == ["globex"]
    assert [each["name"] for each in changes(stage, object="acme")] == ["acme"]
    assert {each["kind"] for each in changes(stage)} == {ChangeKind.ACCOUNT, ChangeKind.TOKEN}
    assert changes(stage, since=(utcnow() + timedelta(minutes=1)).isoformat()) == []
    stage.execute("UPDATE changes SET at = now() - interval '2 days' WHERE object_id = 7")
    assert [
        each["name"] for each in changes(stage, kind="account", since=(utcnow() - timedelta(days=1)).isoformat())
    ] == ["globex"]
