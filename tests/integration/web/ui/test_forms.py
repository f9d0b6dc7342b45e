"""Changes from the dashboard: the confirmation, who may make them, and forms of others."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from rules.token_scopes import TokenScope
from tests.integration.models.webhook_rows import add_claim
from tests.integration.web.ui.conftest import OWN, Dashboard
from tests.integration.web.ui.test_pages import HOSTILE, Parsed
from web.ui.sessions import COOKIE, Sessions

CHANGES = [
    ("requeue", "100"),
    ("hold", "7"),
    ("allow", "7"),
    ("pause", "rematch"),
    ("resume", "rematch"),
    ("pause-pool", "1"),
    ("resume-pool", "1"),
]
PAGES = ("/ui/jobs/100", "/ui/accounts/7", "/ui/pools/1", "/ui/sweeps")
"""Pages with changes. The last one has a form instead of links."""


@pytest.fixture
def writer(dashboard: Dashboard) -> str:
    """Return the cookie of a session that may change the fleet."""
    dashboard.account()
    dashboard.job(100, pool_id=dashboard.pool(), hold_reason="set_aside")
    return dashboard.log_in(dashboard.token(TokenScope.READ, TokenScope.WRITE, name="alice"))


def confirmation(dashboard: Dashboard, what: str, given: str, cookie: str) -> dict[str, str]:
    """Return the fields of the form on the page of a confirmation."""
    answer = dashboard.see(f"/ui/change?what={what}&object={given}", cookie=cookie)
    assert answer.status_code == 200, answer.text
    fields = [each for tag, each in Parsed(answer.text).elements if tag == "input" and each.get("type") == "hidden"]
    return {str(each["name"]): str(each["value"]) for each in fields}


def send(dashboard: Dashboard, form: dict[str, str], cookie: str, **how: Any) -> httpx.Response:
    return dashboard.call("POST", "/ui/change", cookie=cookie, headers=how.pop("headers", OWN), data=form)


def value_of_forms(dashboard: Dashboard, cookie: str) -> str:
    """Return the value that the forms of a session contain, also of a session that is shown no form."""
    scope = {"type": "http", "headers": [(b"cookie", f"{COOKIE}={cookie}".encode())]}
    return Sessions(dashboard.settings.encryption_keys).form_token(Request(scope))


def recorded(dashboard: Dashboard) -> list[Any]:
    return list(dashboard.execute("SELECT kind, who, via, new, why FROM changes WHERE kind <> 'token' ORDER BY id"))


def test_each_change_is_made_after_its_confirmation_and_recorded(dashboard: Dashboard, writer: str) -> None:
    for what, given in CHANGES:
        form = confirmation(dashboard, what, given, writer)
        before = recorded(dashboard)
        assert send(dashboard, form | {"why": "we restore Postgres"}, writer).status_code == 303
        assert len(recorded(dashboard)) == len(before) + 1, what
    found = recorded(dashboard)
    assert {(each.who, each.via) for each in found} == {("alice", "dashboard")}
    assert [(each.kind, each.new) for each in found][1:] == [
        ("account", {"access": "held"}),
        ("account", {"access": "allowed"}),
        ("sweep", {"paused": True}),
        ("sweep", {"paused": False}),
        ("pool", {"asked_paused": True}),
        ("pool", {"asked_paused": False}),
    ]
    assert found[3].why == "we restore Postgres"
    sent = dashboard.outbox.sent
    assert "ostler.rematch" in {name for name, _ in sent}
    assert sent[-1] == ("ostler.pool_changed", {"namespace": "runners", "pool": "small"})


def test_page_of_a_pool_shows_a_request_until_a_worker_has_carried_it_out(dashboard: Dashboard, writer: str) -> None:
    form = confirmation(dashboard, "pause-pool", "1", writer)
    assert send(dashboard, form, writer).headers["location"] == "/ui/pools/1"
    shown = Parsed(dashboard.see("/ui/pools/1").text).text
    assert "alice (dashboard) asked" in shown
    assert "to pause the pool" in shown
    dashboard.execute("UPDATE pools SET pause_request = NULL, paused = true")
    assert "asked" not in Parsed(dashboard.see("/ui/pools/1").text).text


def test_each_button_of_a_pool_leads_to_the_confirmation_with_its_words(dashboard: Dashboard, writer: str) -> None:
    page = Parsed(dashboard.see("/ui/pools/1", cookie=writer).text)
    buttons = {str(each["id"]): str(each["href"]) for tag, each in page.elements if tag == "a" and "id" in each}
    for word, effect in (("Pause", "creates no Pods"), ("Resume", "creates and retires Pods again")):
        assert word in page.words
        shown = Parsed(dashboard.see(buttons[word.lower()], cookie=writer).text).text
        assert f"{word} the pool small (pool 1)" in shown
        assert effect in shown


def test_pool_that_drains_is_not_paused_and_one_that_is_gone_has_no_buttons(dashboard: Dashboard, writer: str) -> None:
    form = confirmation(dashboard, "pause-pool", "1", writer)
    dashboard.execute("UPDATE pools SET draining = true")
    answer = send(dashboard, form, writer)
    assert (answer.status_code, "cannot be paused" in answer.text) == (409, True)
    dashboard.execute("UPDATE pools SET deleted_at = now()")
    assert send(dashboard, form, writer).status_code == 404
    assert "/ui/change?" not in dashboard.see("/ui/pools/1", cookie=writer).text
    assert recorded(dashboard) == []


def test_claimed_job_begins_its_release_and_a_running_job_is_refused(dashboard: Dashboard, writer: str) -> None:
    ((pool,),) = dashboard.execute("SELECT id FROM pools")
    add_claim(dashboard.engine, pool, 100, account_id=7)
    dashboard.execute("UPDATE jobs SET state = 'claimed', hold_reason = NULL")
    dashboard.execute("UPDATE claims SET state = 'minted'")
    form = confirmation(dashboard, "requeue", "100", writer)
    assert send(dashboard, form, writer).headers["location"] == "/ui/jobs/100"
    assert dashboard.execute("SELECT state, ended_at FROM claims") == [("releasing", None)]
    assert [name for name, _ in dashboard.outbox.sent] == ["ostler.release"]
    dashboard.execute("UPDATE jobs SET state = 'running'")
    answer = send(dashboard, form, writer)
    assert (answer.status_code, "A runner executes the job" in answer.text) == (409, True)


@pytest.mark.parametrize("given", ["", "x", "é", "0" * 64, None])
def test_form_without_the_value_of_its_session_changes_nothing(
    dashboard: Dashboard, writer: str, given: str | None
) -> None:
    form = confirmation(dashboard, "hold", "7", writer)
    del form["csrf"]
    answer = send(dashboard, form if given is None else form | {"csrf": given}, writer)
    assert (answer.status_code, recorded(dashboard)) == (403, [])


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-site"}])
def test_form_of_another_site_changes_nothing(dashboard: Dashboard, writer: str, headers: dict[str, str]) -> None:
    form = confirmation(dashboard, "hold", "7", writer)
    answer = send(dashboard, form, writer, headers=headers)
    assert (answer.status_code, recorded(dashboard)) == (403, [])


def test_form_of_another_session_changes_nothing(dashboard: Dashboard, writer: str) -> None:
    token = dashboard.token(TokenScope.READ, TokenScope.WRITE, name="bob")
    first, second = (dashboard.log_in(token) for _ in range(2))  # two sessions of one token
    form = confirmation(dashboard, "hold", "7", first)
    assert [send(dashboard, form, each).status_code for each in (second, writer, first)] == [403, 403, 303]
    assert [each.who for each in recorded(dashboard)] == ["bob"]


def test_login_replaces_a_cookie_that_somebody_else_has_set(dashboard: Dashboard, writer: str) -> None:
    token = dashboard.token(TokenScope.READ, TokenScope.WRITE, name="victim")
    for fixed in ("fixed", dashboard.cookie):
        answer = dashboard.call("POST", "/ui/login", cookie=fixed, headers=OWN, data={"token": token})
        given = answer.headers["set-cookie"].split(";")[0].partition("=")[2]
        assert given not in {fixed, writer}
        assert dashboard.see("/ui/change?what=hold&object=7", cookie=fixed).status_code in {303, 403}


def test_token_without_write_sees_no_buttons_and_gets_403(dashboard: Dashboard, writer: str) -> None:
    limited = dashboard.log_in(dashboard.token(TokenScope.READ, accounts=[7]))
    assert ["/ui/change?" in dashboard.see(path, cookie=writer).text for path in PAGES] == [True, True, True, False]
    assert 'action="/ui/change"' in dashboard.see("/ui/sweeps", cookie=writer).text
    stolen = confirmation(dashboard, "hold", "7", writer)
    for cookie in (dashboard.cookie, limited):
        own = {"csrf": value_of_forms(dashboard, cookie)}
        for path in PAGES:
            text = dashboard.see(path, cookie=cookie).text
            assert "/ui/change?" not in text
            assert 'action="/ui/change"' not in text
        for what, given in CHANGES:
            answer = dashboard.see(f"/ui/change?what={what}&object={given}", cookie=cookie)
            assert answer.status_code == 403
            form = stolen | {"what": what, "object": given}
            assert [send(dashboard, each, cookie).status_code for each in (form, form | own)] == [403, 403]
    assert recorded(dashboard) == []


def test_stream_of_a_page_has_no_buttons(dashboard: Dashboard, writer: str) -> None:
    # Readers with other rights share the stream.
    for path in PAGES:
        live = dashboard.see(path, cookie=writer).text.partition('<div id="live"')[2]
        assert live
        assert "/ui/change?" not in live, path
        assert 'action="/ui/change"' not in live, path


@pytest.mark.parametrize(
    "query",
    [
        "",
        "what=drop&object=7",
        "what=hold&object=8",
        "what=hold&object=x",
        "what=pause&object=broom",
        "what=pause-pool&object=9",
        "what=resume-pool&object=x",
        "what=requeue&object=99",
        "what=requeue&object=99999999999999999999",
    ],
)
def test_change_of_what_does_not_exist_is_not_found(dashboard: Dashboard, writer: str, query: str) -> None:
    assert dashboard.see(f"/ui/change?{query}", cookie=writer).status_code == 404
    csrf = confirmation(dashboard, "hold", "7", writer)["csrf"]
    form = dict(part.split("=") for part in query.split("&") if part)
    assert send(dashboard, form | {"csrf": csrf}, writer).status_code == 404
    assert recorded(dashboard) == []


def test_hostile_names_are_text_in_a_confirmation(dashboard: Dashboard, writer: str) -> None:
    dashboard.execute("UPDATE jobs SET name = :name", name=HOSTILE)
    dashboard.execute("UPDATE accounts SET login = :name", name=HOSTILE)
    for what, given in CHANGES[:2]:
        answer = dashboard.see(f"/ui/change?what={what}&object={given}", cookie=writer).text
        page = Parsed(answer)
        assert all(each.startswith("/ui/static/") for each in page.values("src"))
        assert not re.search("[\u202e\u2066\x07]", answer)
        assert "alert(1)" in page.text


def test_change_without_a_session_leads_to_the_login(dashboard: Dashboard) -> None:
    for method in ("GET", "POST"):
        answer = dashboard.call(method, "/ui/change", cookie="", headers=OWN)
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/ui/login")
