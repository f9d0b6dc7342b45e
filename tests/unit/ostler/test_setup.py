"""The parts of `ostler setup github`: its page trusts no request, and its list of rights follows the calls."""

from __future__ import annotations

import json
import os
import stat
import webbrowser
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import typer

from cli import setup
from cli.setup.page import Page
from cli.setup.ping import meaning, see_ping
from cli.setup.reach import open_browser, way_from_elsewhere
from cli.setup.store import EnvFile, store_of
from github_adapters import manifest as flow
from github_adapters import permissions
from github_adapters.endpoints.deliveries import DeliveryPage, DeliverySeen
from ostler import telemetry
from ostler.errors import ConfigurationError, Conflict, Forbidden, Invalid, Retryable
from ostler.github_urls import api_url_of
from ostler.secrets import Secret
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


def test_check_runs_need_their_permission_only_when_they_are_on() -> None:
    granted = {**permissions.ORGANIZATION}
    assert permissions.lacking(granted, organization=True, check_runs=True) == ["checks: write"]
    assert permissions.lacking({**granted, **permissions.CHECKS}, organization=True, check_runs=True) == []
    assert permissions.needless({**granted, **permissions.CHECKS}, organizations={True}) == ["checks: write"]
    assert json.loads(
        flow.manifest(
            name="o",
            homepage="https://a.example",
            webhook_url="https://a.example/hook",
            redirect_url="http://127.0.0.1:1/c",
            organization=True,
            check_runs=True,
        )
    )["default_permissions"] == {**permissions.ORGANIZATION, **permissions.CHECKS}


def made(**changes: str) -> dict[str, Any]:
    about = {
        "name": "ostler-acme",
        "homepage": "https://acme.example",
        "webhook_url": "https://acme.example/hook",
        "redirect_url": "http://127.0.0.1:1/callback",
    }
    found: dict[str, Any] = json.loads(flow.manifest(**{**about, **changes}, organization=True))  # type: ignore[arg-type]
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
    """A GitHub whose list of deliveries is a script. Each redelivery advances to the next page."""

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


EXAMPLE = Path(__file__).parents[3] / "compose" / ".env.example"
KEPT = {
    "OSTLER_GITHUB_APP_ID": Secret("Iv1"),
    "OSTLER_GITHUB_PRIVATE_KEY": Secret("pem\nof two lines"),
    "OSTLER_WEBHOOK_SECRETS": Secret("webhook"),
}


def test_env_file_fills_in_the_empty_lines_of_a_copied_example(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    before = EXAMPLE.read_text()
    file.write_text(before)

    store = EnvFile(file, replace=False)
    store.check()
    store.write(KEPT, api_url="https://api.github.com")

    filled = before.replace("OSTLER_GITHUB_APP_ID=\n", "OSTLER_GITHUB_APP_ID='Iv1'\n")
    filled = filled.replace("OSTLER_GITHUB_PRIVATE_KEY=\n", "OSTLER_GITHUB_PRIVATE_KEY='pem\\nof two lines'\n")
    filled = filled.replace("OSTLER_WEBHOOK_SECRETS=\n", "OSTLER_WEBHOOK_SECRETS='webhook'\n")
    assert file.read_text() == filled
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("empty", ["", '""', "''", "  # from the App's page"])
def test_env_file_takes_an_empty_value_for_none(tmp_path: Path, empty: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"OSTLER_GITHUB_APP_ID={empty}\n")

    EnvFile(file, replace=False).check()

    file.write_text("OSTLER_GITHUB_APP_ID=#7\nOSTLER_WEBHOOK_SECRETS=a#b\n")
    with pytest.raises(Conflict, match="already has OSTLER_WEBHOOK_SECRETS; use --replace"):
        EnvFile(file, replace=False).check()


def test_env_file_replaces_the_address_of_another_github(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("OSTLER_GITHUB_API_URL=https://ghe.example/api/v3\n")

    EnvFile(file, replace=False).write(KEPT, api_url="https://api.github.com")

    assert "OSTLER_GITHUB_API_URL='https://api.github.com'" in file.read_text().splitlines()


def test_env_file_in_a_folder_that_cannot_be_written_is_refused_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write to any folder

    with pytest.raises(Conflict, match="cannot write files in the folder"):
        EnvFile(tmp_path / ".env", replace=False).check()


class Refusing:
    """A store that was writable at its check, and is not any more when the App was created."""

    where, ping = "Secret ostler/ostler", "ostler setup ping"

    def check(self) -> None:
        """Find no problem."""

    def write(self, values: object, *, api_url: str) -> None:
        """Refuse."""
        del values, api_url
        raise Forbidden("not any more")

    def further(self, api_url: str) -> str | None:
        """Return None."""


APP = flow.AppMade(
    client_id="Iv1",
    slug="ostler-acme",
    name="ostler-acme",
    owner="acme",
    html_url="https://github.com/apps/ostler-acme",
    private_key=Secret("pem"),
    webhook_secret=Secret("webhook"),
)


def test_secrets_are_rescued_into_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(typer.Exit):
        setup.keep(Refusing(), APP, api_url="https://api.github.com")

    (file,) = tmp_path.iterdir()
    assert str(file) in capsys.readouterr().err
    assert "OSTLER_GITHUB_PRIVATE_KEY='pem'" in file.read_text()


def test_secrets_are_rescued_into_a_temporary_folder_when_here_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, temporary = tmp_path / "here", tmp_path / "tmp"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(temporary))

    with pytest.raises(typer.Exit):
        setup.keep(Refusing(), APP, api_url="https://api.github.com")

    (file,) = temporary.iterdir()
    assert str(file) in capsys.readouterr().err


def test_lost_secrets_are_told_when_no_file_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EnvFile, "check", lambda _self: Refusing().write({}, api_url=""))

    with pytest.raises(typer.Exit):
        setup.keep(Refusing(), APP, api_url="https://api.github.com")

    assert "delete the App on GitHub and begin again" in capsys.readouterr().err


def test_browser_is_opened_only_where_there_are_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("sys.platform", "linux")

    def opens(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", opens)

    assert not open_browser("http://127.0.0.1:1/", {"TERM": "xterm"})
    assert opened == []
    assert open_browser("http://127.0.0.1:1/", {"WAYLAND_DISPLAY": "wayland-0"})
    assert opened == ["http://127.0.0.1:1/"]


def test_way_from_another_machine_is_a_tunnel_or_a_port_forward(tmp_path: Path) -> None:
    assert way_from_elsewhere(8400, {"HOSTNAME": "builder"}) == "ssh -N -L 8400:127.0.0.1:8400 builder"
    pod = {"HOSTNAME": "setup", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    file = tmp_path / "namespace"
    assert way_from_elsewhere(8400, pod, namespace=file) == "kubectl port-forward pod/setup 8400"
    file.write_text("ostler")
    assert way_from_elsewhere(8400, pod, namespace=file) == "kubectl port-forward --namespace ostler pod/setup 8400"
