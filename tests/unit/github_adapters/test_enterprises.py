"""An App that is also installed at an enterprise: this installation is skipped and breaks nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from github_adapters.client import GitHub
from github_adapters.fields import Malformed
from github_adapters.webhooks import MalformedPayload, parse_installation
from ostler.errors import Retryable
from tests.unit.github_adapters.upstream import Reply, Upstream

ENTERPRISE = {
    "id": 7,
    "target_type": "Enterprise",
    "account": {"id": 9, "slug": "octo-corp", "name": "Octo Corp"},
    "permissions": {},
    "events": [],
}
ORGANIZATION = {
    "id": 8,
    "target_type": "Organization",
    "account": {"id": 10, "login": "acme", "type": "Organization"},
    "permissions": {"metadata": "read"},
    "events": ["workflow_job"],
}


def test_enterprise_is_left_out_of_the_list_of_installations_with_a_log_line(
    upstream: Upstream, github: GitHub
) -> None:
    upstream.answer = lambda _: Reply(body=[ENTERPRISE, ORGANIZATION])

    with capture_logs() as logs:
        found = github.list_installations()

    assert [each.login for each in found] == ["acme"]
    skipped = [each for each in logs if each["event"] == "installation.skipped"]
    assert [each["installation"] for each in skipped] == [7]


def test_other_installation_without_a_login_is_no_answer(upstream: Upstream, github: GitHub) -> None:
    upstream.answer = lambda _: Reply(body=[{**ORGANIZATION, "account": {"id": 10, "slug": "acme"}}])
    with pytest.raises(Retryable):
        github.list_installations()


def body(installation: dict[str, Any]) -> bytes:
    return json.dumps({"action": "created", "installation": installation}).encode()


def test_webhook_about_an_enterprise_is_accepted_and_used_for_nothing() -> None:
    assert parse_installation(body(ENTERPRISE)) is None
    found = parse_installation(body(ORGANIZATION))
    assert found is not None
    assert found.owner_login == "acme"
    with pytest.raises((MalformedPayload, Malformed)):
        parse_installation(body({**ENTERPRISE, "target_type": "Organization"}))
