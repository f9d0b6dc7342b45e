from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from github_adapters.fields import BIGINT_MAX
from github_adapters.webhooks import MalformedPayload, parse_installation, parse_workflow_job, verify_signature
from ostler.secrets import Secret
from rules.intake.events import WorkflowJobEvent


def payload(**job: Any) -> dict[str, Any]:
    """Return a `queued` webhook as GitHub sends it. `job` changes fields of the job."""
    return {
        "action": "queued",
        "workflow_job": {
            "id": 31,
            "run_id": 41,
            "run_attempt": 2,
            "name": "build",
            "workflow_name": "CI",
            "status": "queued",
            "conclusion": None,
            "labels": ["self-hosted", "Linux"],
            "runner_id": None,
            "runner_name": None,
            "created_at": "2026-03-01T10:00:00Z",
            "started_at": "2026-03-01T10:00:00Z",
            "completed_at": None,
            "head_branch": "main",
            **job,
        },
        "repository": {
            "id": 51,
            "full_name": "acme/app",
            "owner": {"id": 61, "login": "acme", "type": "Organization"},
        },
        "installation": {"id": 71},
        "sender": {"login": "ada"},
    }


def parse(content: Any) -> WorkflowJobEvent:
    return parse_workflow_job(json.dumps(content).encode())


def test_the_documented_signature_is_right() -> None:
    secret = Secret("It's a Secret to Everybody")
    header = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"

    assert verify_signature([secret], b"Hello, World!", header)
    assert not verify_signature([secret], b"Hello, World?", header)


@pytest.mark.parametrize(
    "header", [None, "", "sha256=", "sha1=757107ea", "757107ea", "sha256=é\udc80", "sha256=" + "0" * 64]
)
def test_a_wrong_or_missing_signature_is_not(header: str | None) -> None:
    assert not verify_signature([Secret("s")], b"body", header)


def test_either_secret_is_right_while_they_rotate() -> None:
    header = "sha256=" + hmac.new(b"old", b"body", hashlib.sha256).hexdigest()

    assert verify_signature([Secret("new"), Secret("old")], b"body", header)
    assert verify_signature([Secret("old"), Secret("new")], b"body", header)
    assert not verify_signature([Secret("new")], b"body", header)
    assert not verify_signature([], b"body", header)


def test_nobody_signs_with_an_empty_secret() -> None:
    header = "sha256=" + hmac.new(b"", b"body", hashlib.sha256).hexdigest()

    assert not verify_signature([Secret("")], b"body", header)


def test_a_queued_job_is_read() -> None:
    assert parse(payload()) == WorkflowJobEvent(
        action="queued",
        job_id=31,
        run_id=41,
        run_attempt=2,
        name="build",
        workflow_name="CI",
        status="queued",
        conclusion=None,
        labels=("self-hosted", "Linux"),
        runner_name=None,
        runner_id=None,
        created_at=datetime(2026, 3, 1, 10, tzinfo=UTC),
        started_at=datetime(2026, 3, 1, 10, tzinfo=UTC),
        completed_at=None,
        head_branch="main",
        repository="acme/app",
        repository_id=51,
        owner_id=61,
        owner_login="acme",
        owner_type="Organization",
        installation_id=71,
        public=True,
    )


@pytest.mark.parametrize(("private", "public"), [(True, False), (False, True), (None, True), ("yes", True)])
def test_a_repository_is_public_unless_it_is_said_to_be_private(private: object, public: bool) -> None:
    body = payload()
    body["repository"]["private"] = private
    assert parse(body).public is public


def test_queued_may_say_waiting() -> None:
    assert parse(payload(status="waiting")).status == "waiting"


@pytest.mark.parametrize(("runner_id", "runner_name"), [(0, ""), (None, None), (0, None), (None, "")])
def test_no_runner_is_none_however_it_is_written(runner_id: int | None, runner_name: str | None) -> None:
    event = parse(payload(runner_id=runner_id, runner_name=runner_name))

    assert (event.runner_id, event.runner_name) == (None, None)


def test_words_that_github_invents_are_kept() -> None:
    event = parse(payload(status="pending", conclusion="startup_failure"))

    assert (event.status, event.conclusion) == ("pending", "startup_failure")


@pytest.mark.parametrize(
    "text", ["2026-03-01T10:00:00.250Z", "2026-03-01T12:00:00.250+02:00", "2026-03-01T10:00:00.25"]
)
def test_times_may_have_milliseconds_and_zones(text: str) -> None:
    assert parse(payload(created_at=text)).created_at == datetime(2026, 3, 1, 10, 0, 0, 250_000, tzinfo=UTC)


def test_what_is_optional_may_be_missing() -> None:
    content = payload()
    for key in (
        "run_attempt",
        "name",
        "workflow_name",
        "conclusion",
        "labels",
        "runner_id",
        "runner_name",
        "started_at",
        "completed_at",
        "head_branch",
    ):
        del content["workflow_job"][key]
    del content["installation"]

    event = parse(content)

    assert (event.run_attempt, event.labels, event.installation_id) == (1, (), None)


def test_unknown_fields_are_ignored() -> None:
    content = payload(invented={"by": ["github"]})
    content["deployment"] = {"id": 1}

    assert parse(content) == parse(payload())


def test_a_user_owns_repositories_too() -> None:
    content = payload()
    content["repository"]["owner"]["type"] = "User"

    assert parse(content).owner_type == "User"


def test_text_that_a_table_would_refuse_is_cleaned() -> None:
    body = json.dumps(payload(name="a\x00b", head_branch="c\ud800d")).encode()

    event = parse_workflow_job(body)

    assert event.name == "a\ufffdb"
    assert event.head_branch == "c?d"


@pytest.mark.parametrize("control", ["\x1b", "\x07", "\n", "\x9b", "\x7f", "\u202e", "\u2066", "\u200f", "\u2028"])
def test_characters_that_a_terminal_obeys_are_replaced(control: str) -> None:
    event = parse(payload(name=f"a{control}[31mb", labels=[f"linux{control}"], workflow_name=f"ü{control}"))

    assert event.name == "a\ufffd[31mb"
    assert event.labels == ("linux\ufffd",)
    assert event.workflow_name == "ü\ufffd"


@pytest.mark.parametrize("action", ["in_progress", "completed"])
def test_a_later_event_without_a_time_of_creation_is_taken_by_its_start(action: str) -> None:
    later = payload(created_at=None, started_at="2026-03-01T10:00:05Z") | {"action": action}

    assert parse(later).created_at == datetime(2026, 3, 1, 10, 0, 5, tzinfo=UTC)
    with pytest.raises(MalformedPayload, match="created_at"):
        parse(payload(created_at=None, started_at=None) | {"action": action})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": None}, "id"),
        ({"id": "31"}, "id"),
        ({"id": True}, "id"),
        ({"id": 0}, "id"),
        ({"id": -1}, "id"),
        ({"id": 3.0}, "id"),
        ({"id": BIGINT_MAX + 1}, "id"),
        ({"run_id": 10**400}, "run_id"),
        ({"run_attempt": 2**31}, "run_attempt"),
        ({"runner_id": 2**63}, "runner_id"),
        ({"runner_id": []}, "runner_id"),
        ({"status": None}, "status"),
        ({"status": "queued\x00"}, "status"),
        ({"status": "q" * 65}, "status"),
        ({"conclusion": ["success"]}, "conclusion"),
        ({"labels": "linux"}, "labels"),
        ({"labels": ["l"] * 101}, "labels"),
        ({"labels": ["l" * 257]}, "labels"),
        ({"labels": [""]}, "labels"),
        ({"labels": [1]}, "labels"),
        ({"labels": ["a\x00"]}, "labels"),
        ({"labels": ["\udfff"]}, "labels"),
        ({"created_at": None}, "created_at"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"created_at": "0001-01-01T00:00:00+23:00"}, "created_at"),
        ({"completed_at": {}}, "completed_at"),
    ],
)
def test_what_cannot_be_stored_is_malformed_and_its_field_is_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedPayload) as malformed:
        parse(payload(**change))

    assert malformed.value.reason.startswith(reason)


@pytest.mark.parametrize(
    "name", ["app", "acme/", "a b/c", "acme/app\x00", "acme/a/b", "../app", "ada/.", "ada/..", None, 5]
)
def test_a_repository_has_an_owner_and_a_name(name: Any) -> None:
    content = payload()
    content["repository"]["full_name"] = name

    with pytest.raises(MalformedPayload, match="full_name"):
        parse(content)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"\xff", b'{"action":', b"[" * 100_000, b'{"workflow_job": ' + b"9" * 5000 + b"}"],
    ids=["empty", "null", "list", "no utf-8", "half", "deep", "long number"],
)
def test_a_body_that_is_no_webhook_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedPayload):
        parse_workflow_job(body)


def test_a_reason_never_quotes_the_payload() -> None:
    with pytest.raises(MalformedPayload) as malformed:
        parse(payload(status="ghs_leaked\x00"))

    assert "ghs_leaked" not in str(malformed.value)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters(codec=None))
    | st.sampled_from(["\x00", "\ud800", "", "2026-03-01T10:00:00Z", "acme/app"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)


def storable(text: str | None) -> bool:
    if text is None:
        return True
    text.encode()
    return "\x00" not in text


@given(st.data())
def test_whatever_stands_in_a_field_the_event_is_storable_or_malformed(data: st.DataObject) -> None:
    content = payload()
    sections = [content, content["workflow_job"], content["repository"], content["repository"]["owner"]]
    for _ in range(data.draw(st.integers(1, 3))):
        section = data.draw(st.sampled_from(sections))
        section[data.draw(st.sampled_from(sorted(section)))] = data.draw(ANYTHING)
    try:
        event = parse(content)
    except MalformedPayload:
        return
    numbers = [event.job_id, event.run_id, event.repository_id, event.owner_id, event.runner_id, event.installation_id]
    assert all(number is None or 0 < number <= BIGINT_MAX for number in numbers)
    texts = [event.action, event.name, event.workflow_name, event.status, event.conclusion, event.head_branch]
    assert all(storable(text) for text in [*texts, event.runner_name, event.repository, *event.labels])
    assert len(event.labels) <= 100
    assert event.created_at.tzinfo is UTC


@given(st.binary(max_size=200))
def test_noise_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedPayload):
        parse_workflow_job(body)


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2026-03-01T10:00:00Z", datetime(2026, 3, 1, 10, tzinfo=UTC)),
        (1_772_359_200, datetime(2026, 3, 1, 10, tzinfo=UTC)),
        (None, None),
        ("soon", None),
        (True, None),
        (-1, None),
        (10**18, None),
    ],
)
def test_installation_event_tells_when_it_was(written: object, at: datetime | None) -> None:
    installation = {"id": 3, "account": {"id": 77, "login": "acme"}, "updated_at": written}

    found = parse_installation(json.dumps({"action": "created", "installation": installation}).encode())

    assert found is not None
    assert found.at == at
