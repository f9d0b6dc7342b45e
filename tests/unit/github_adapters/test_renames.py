"""Webhooks about new names: those that are read, those that do not concern Ostler, and invalid ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from github_adapters.webhooks import MalformedPayload, parse_owner, parse_repository

OWNER: dict[str, Any] = {
    "action": "renamed",
    "changes": {"login": {"from": "acme"}},
    "organization": {"id": 7, "login": "apex"},
}
REPOSITORY: dict[str, Any] = {
    "action": "renamed",
    "changes": {"repository": {"name": {"from": "app"}}},
    "repository": {"id": 5, "full_name": "acme/tool", "owner": {"id": 7}, "updated_at": "2026-11-20T12:00:00Z"},
}


def encoded(body: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps(body | changes).encode()


def test_a_new_login_is_read_from_either_event() -> None:
    target = OWNER | {"account": {"id": 8, "login": "zenith"}}
    read = [parse_owner(encoded(OWNER)), parse_owner(encoded(target))]
    assert [(each.owner_id, each.former, each.login) for each in read if each] == [
        (7, "acme", "apex"),
        (8, "acme", "zenith"),
    ]


def test_a_new_name_of_a_repository_is_read_with_its_time_if_it_says_one() -> None:
    read = parse_repository(encoded(REPOSITORY))
    assert read is not None
    assert (read.owner_id, read.repository_id, read.former, read.full_name) == (7, 5, "acme/app", "acme/tool")
    assert read.at == datetime(2026, 11, 20, 12, tzinfo=UTC)
    timeless = parse_repository(encoded(REPOSITORY, repository={"id": 5, "full_name": "acme/tool", "owner": {"id": 7}}))
    assert timeless is not None
    assert timeless.at is None


@pytest.mark.parametrize("changes", [{"action": "member_added"}, {"changes": {"slug": {"from": "x"}}}, {"changes": 1}])
def test_what_tells_no_new_login_is_none_of_ours(changes: dict[str, Any]) -> None:
    assert parse_owner(encoded(OWNER, **changes)) is None


def test_what_else_happens_to_a_repository_is_none_of_ours() -> None:
    assert parse_repository(b'{"action": "archived"}') is None


@pytest.mark.parametrize(
    "changes",
    [
        {"action": 7},
        {"changes": {"login": {"from": "a/b"}}},
        {"changes": {"login": "acme"}},
        {"organization": {"id": 0, "login": "apex"}},
        {"organization": {"id": 7, "login": "no login"}},
        {"organization": None},
    ],
)
def test_a_new_login_that_makes_no_sense_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedPayload):
        parse_owner(encoded(OWNER, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"changes": {"repository": {"name": {"from": "a/b"}}}},
        {"changes": {"repository": {"name": {}}}},
        {"changes": {}},
        {"repository": REPOSITORY["repository"] | {"full_name": "tool"}},
        {"repository": REPOSITORY["repository"] | {"owner": {"id": "7"}}},
        {"repository": REPOSITORY["repository"] | {"id": None}},
        {"repository": REPOSITORY["repository"] | {"updated_at": "yesterday"}},
    ],
)
def test_a_new_name_that_makes_no_sense_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedPayload):
        parse_repository(encoded(REPOSITORY, **changes))
