"""The parts of `ostler setup github`: its page believes nobody, its list of permissions follows the calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import pytest

from cli.setup.page import Page
from cli.setup.ping import meaning, see_ping
from cli.setup.store import store_of
from github_adapters import manifest as flow
from github_adapters import permissions
from github_adapters.endpoints.deliveries import DeliveryPage, DeliverySeen
from ostler import telemetry
from ostler.errors import ConfigurationError, Forbidden, Invalid, Retryable
from ostler.github_urls import api_url_of
from rules.upstream.retry import RetryPolicy


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page(port=0)
    page.serve(manifest='{"name": "<a>\'\\"b"}', target="https://github.com/settings/apps/new?state=x")
    yield page
    page._server.server_close()


def host(page: Page) -> str:
    return page.url.removeprefix("http://").rstrip("/")


def back(page: Page, **query: str) -> HTTPStatus:
    path = "/callback?" + "&".join(f"{name}={value}" for name, value in query.items())
    return page.answer(path, host(page))[0]


def test_the_page_shows_the_manifest_as_text(page: Page) -> None:
    status, content = page.answer("/", host(page))
    assert status == HTTPStatus.OK
    assert "<a>" not in content
    assert "&lt;a&gt;" in content
    assert "form-action https://github.com" in page.policy()


@pytest.mark.parametrize("state", ["", "x", "é"])
def test_a_code_without_our_state_is_not_believed(page: Page, state: str) -> None:
    assert back(page, code="c0de", state=state) == HTTPStatus.BAD_REQUEST
    assert page.wait(0) is None


def test_a_code_is_taken_once(page: Page) -> None:
    assert back(page, code="", state=page.state) == HTTPStatus.BAD_REQUEST
    assert back(page, code="first", state=page.state) == HTTPStatus.OK
    assert back(page, code="second", state=page.state) == HTTPStatus.BAD_REQUEST
    assert page.wait(0) == "first"


@pytest.mark.parametrize("name", ["evil.example", None, "127.0.0.1", "localhost:1"])
def test_nobody_gets_it_under_another_name(page: Page, name: str | None) -> None:
    assert page.answer("/", name)[0] == HTTPStatus.MISDIRECTED_REQUEST
    assert page.answer(f"/callback?code=c&state={page.state}", name)[0] == HTTPStatus.MISDIRECTED_REQUEST
    assert page.wait(0) is None


def test_two_pages_have_two_states() -> None:
    one, other = Page(port=0), Page(port=0)
    assert one.state != other.state
    assert len(one.state) >= 40
    one._server.server_close()
    other._server.server_close()


def test_every_endpoint_that_is_called_has_its_permission() -> None:
    assert set(permissions.ENDPOINTS) == {name for _, _, name in telemetry._ENDPOINTS}


def test_no_event_is_asked_for_that_a_manifest_may_not_name() -> None:
    needs = {"workflow_job": "actions", "repository": "metadata"}
    for organization in (True, False):
        assert all(needs[event] in permissions.wanted(organization=organization) for event in permissions.WANTED_EVENTS)


def test_what_is_lacking_and_what_is_too_much_is_told() -> None:
    granted = {"actions": "write", "metadata": "read", "contents": "read", "organization_self_hosted_runners": "read"}
    assert permissions.lacking(granted, organization=True) == ["organization_self_hosted_runners: write"]
    assert permissions.needless(granted, organizations={True}) == ["actions: write", "contents: read"]
    assert permissions.lacking({**permissions.USER}, organization=False) == []
    assert permissions.silent(["push"]) == ["workflow_job"]


def made(**changes: str) -> dict[str, Any]:
    about = {
        "name": "ostler-acme",
        "homepage": "https://acme.example",
        "webhook_url": "https://acme.example/hook",
        "redirect_url": "http://127.0.0.1:1/callback",
    }
    found: dict[str, Any] = json.loads(flow.manifest(**{**about, **changes}, organization=True))
    return found


def test_a_manifest_is_private_and_asks_for_exactly_what_is_used() -> None:
    content = made()
    assert content["public"] is False
    assert content["default_permissions"] == dict(permissions.ORGANIZATION)
    assert content["hook_attributes"] == {"url": "https://acme.example/hook", "active": True}
    assert "installation" not in content["default_events"]


@pytest.mark.parametrize("changes", [{"name": ""}, {"name": "x" * 35}, {"webhook_url": "acme.example/hook"}])
def test_what_github_would_refuse_is_refused_here(changes: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        made(**changes)


def test_addresses_are_those_of_github_and_of_an_enterprise_server() -> None:
    assert api_url_of("https://github.com/") == "https://api.github.com"
    assert api_url_of("https://ghe.example") == "https://ghe.example/api/v3"
    assert api_url_of("https://octocorp.ghe.com/") == "https://api.octocorp.ghe.com"
    found = flow.registration_url("https://ghe.example/", organization="acme", state="a b")
    assert found == "https://ghe.example/organizations/acme/settings/apps/new?state=a%20b"
    with pytest.raises(Invalid):
        flow.registration_url("https://github.com", organization="../x", state="s")
    with pytest.raises(Invalid):
        flow.exchange(api_url="http://127.0.0.1:1", code="../../x")


def test_one_place_is_named_for_the_secrets() -> None:
    with pytest.raises(ConfigurationError):
        store_of(namespace=None, secret="s", kubeconfig=None, env_file=None, replace=False)


class Deliveries:
    """A GitHub whose list of deliveries is a script; each redelivery goes on to the next page."""

    def __init__(self, *pages: list[DeliverySeen] | Exception) -> None:
        self.pages = list(pages)
        self.sent: list[int] = []
        self.deadlines: list[float | None] = []

    def list_deliveries(self, *, policy: RetryPolicy) -> DeliveryPage:
        self.deadlines.append(policy.deadline)
        page = self.pages[0] if len(self.pages) == 1 else self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return DeliveryPage(deliveries=tuple(page), next_cursor=None, malformed=0)

    def redeliver(self, *, delivery_id: int, **_: Any) -> None:
        self.sent.append(delivery_id)


def delivery(number: int, status: int, event: str = "ping") -> DeliverySeen:
    return DeliverySeen(
        id=number,
        guid="g",
        delivered_at=datetime.now(UTC),
        accepted=200 <= status < 300,
        event=event,
        action=None,
        status_code=status,
    )


def looked(github: Deliveries, *, within: float = 60) -> tuple[str | None, list[str]]:
    said: list[str] = []
    time = [0.0]
    problem = see_ping(
        github,  # type: ignore[arg-type]
        within=within,
        say=said.append,
        clock=lambda: time[0],
        sleep=lambda s: time.__setitem__(0, time[0] + s),
    )
    return problem, said


def test_a_ping_is_sent_again_until_it_is_answered() -> None:
    github = Deliveries([delivery(1, 401)], [delivery(1, 401)], [delivery(2, 202), delivery(1, 401)])
    problem, said = looked(github)
    assert problem is None
    assert github.sent == [1]
    assert len(said) == 1


def test_a_webhook_that_never_arrives_is_told_with_its_cause() -> None:
    problem, _ = looked(Deliveries([delivery(1, 0)]), within=30)
    assert problem is not None
    assert "cannot reach" in problem


def test_refused_key_is_told() -> None:
    problem, _ = looked(Deliveries(Forbidden("401")), within=5)
    assert problem is not None
    assert "id and key" in problem


def test_unresponsive_github_is_no_missing_webhook_and_is_awaited_until_the_timeout() -> None:
    github = Deliveries(Retryable("down"))
    with pytest.raises(Retryable, match=r"within 13 s: GitHub does not answer: down\. Check OSTLER_GITHUB_API_URL"):
        looked(github, within=13)
    assert github.deadlines == [10.0, 10.0, 9.0, 7.0, 5.0, 3.0, 2.0, 2.0]


@pytest.mark.parametrize("status", [0, 401, 404, 503, 500])
def test_every_answer_to_a_webhook_has_words(status: int) -> None:
    assert meaning(status)
