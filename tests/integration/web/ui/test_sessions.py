"""Sessions of the dashboard: the login, the end of a session, and forms from other sites."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from fastapi import FastAPI
from starlette.requests import Request
from structlog.testing import capture_logs

from models import api_tokens
from models.db.engine import transaction
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.secrets import Secret
from rules.token_scopes import TokenScope
from tests.integration.web.api.conftest import Client
from tests.integration.web.ui.conftest import OWN, Dashboard
from tests.outbox import PublisherOutbox
from web.api.database import Database as ApiDatabase
from web.ui import sessions
from web.ui.app import OPEN, mount_ui
from web.ui.forms import LARGEST
from web.ui.sessions import Sessions, still_valid
from web.ui.streams import RELOAD


def test_login_with_a_token_begins_a_session_of_twelve_hours(dashboard: Dashboard) -> None:
    answer = dashboard.send_login(dashboard.reader, data={"next": "/ui/jobs?state=queued"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs?state=queued")
    cookie = answer.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/ui", "max-age=43200"} <= {each.strip() for each in cookie.split(";")}
    assert "secure" not in cookie
    assert dashboard.reader not in answer.headers["set-cookie"]
    assert dashboard.see().status_code == 200


def test_cookie_is_secure_when_the_browser_uses_https(dashboard: Dashboard) -> None:
    answer = dashboard.send_login(dashboard.reader, headers={"Origin": "https://ostler"})
    assert "; Secure" in answer.headers["set-cookie"]


def test_login_with_a_bad_token_begins_no_session(dashboard: Dashboard) -> None:
    expired = dashboard.token(TokenScope.READ, expires_at=utcnow() - timedelta(seconds=1))
    revoked = dashboard.token(TokenScope.READ, name="revoked")
    dashboard.execute("UPDATE api_tokens SET revoked_at = now() WHERE name = 'revoked'")
    unknown = dashboard.reader[:-4] + "AAAA"
    answers = [dashboard.send_login(each) for each in ("", "no token", unknown, expired, revoked)]
    assert {each.status_code for each in answers} == {403}
    assert {"set-cookie" in each.headers for each in answers} == {False}
    assert len({each.text for each in answers}) == 1
    assert "This token is not valid" in answers[0].text


def test_login_needs_the_scope_read(dashboard: Dashboard) -> None:
    answer = dashboard.send_login(dashboard.writer)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert "lacks the scope read" in answer.text


def test_refused_login_is_logged_without_the_token(dashboard: Dashboard) -> None:
    with capture_logs() as lines:
        dashboard.send_login(dashboard.reader[:-4] + "AAAA")
    assert [each["event"] for each in lines] == ["ui.login_refused"]
    assert lines[0]["why"] == "unknown"
    assert dashboard.reader[8:24] not in str(lines)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE api_tokens SET revoked_at = now()",
        "UPDATE api_tokens SET expires_at = now() - interval '1 second'",
        "UPDATE api_tokens SET accounts = '{7}'",
        "UPDATE api_tokens SET scopes = '{read,write}'",
        "UPDATE api_tokens SET key_id = 'fedcba9876543210'",
        "DELETE FROM api_tokens",
    ],
)
def test_session_ends_at_once_when_its_token_changes(dashboard: Dashboard, change: str) -> None:
    assert dashboard.see().status_code == 200
    dashboard.execute(f"{change}{' WHERE name = ' + repr('reader')}")
    answer = dashboard.see()
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login?next=%2Fui%2F")


def test_session_ends_after_twelve_hours(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    later = utcnow() + sessions.LASTS + timedelta(seconds=1)
    monkeypatch.setattr("web.ui.app.utcnow", lambda: later)
    assert dashboard.see().status_code == 303


def test_changed_cookie_is_no_session(dashboard: Dashboard) -> None:
    whole = dashboard.cookie
    middle = len(whole) // 2
    content = json.dumps({"key": dashboard.reader[7:23], "rights": "x", "until": 4102444800})
    foreign = Cipher(dashboard.settings.encryption_keys).encrypt(Secret(content)).decode()
    for cookie in (
        whole[:-2],
        whole[:middle] + ("A" if whole[middle] != "A" else "B") + whole[middle + 1 :],
        "x",
        foreign,
    ):
        assert dashboard.see(cookie=cookie).status_code == 303


def test_every_path_but_the_login_and_its_files_needs_a_session(dashboard: Dashboard) -> None:
    for path in (
        "/ui/",
        "/ui/jobs",
        "/ui/jobs/1",
        "/ui/repairs",
        "/ui/logout",
        "/ui/nothing",
        "/ui//x",
        "/ui/%0A",
        "/ui/static/x",
    ):
        for method in ("GET", "POST", "PUT"):
            answer = dashboard.call(method, path, cookie="", headers=OWN)
            assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/ui/login"), (method, path)
    assert {dashboard.see(path, cookie="").status_code for path in OPEN} == {200}


def test_first_page_is_found_from_the_root(dashboard: Dashboard) -> None:
    assert [dashboard.see(path).headers["location"] for path in ("/", "/ui")] == ["/ui/", "/ui/"]


@pytest.mark.parametrize(
    "address", ["https://evil.example/", "//evil.example", "/\\evil.example", "/ui/login", "/ui/logout", "", "ui/"]
)
def test_login_leads_only_to_pages_of_the_dashboard(dashboard: Dashboard, address: str) -> None:
    assert dashboard.send_login(dashboard.reader, data={"next": address}).headers["location"] == "/ui/"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://["},
        {"Origin": "http://ostler:81"},
        {"Origin": "http://ostler", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://ostler", "Sec-Fetch-Site": "same-site"},
    ],
)
def test_form_of_another_site_changes_nothing(dashboard: Dashboard, headers: dict[str, str]) -> None:
    for answer in (
        dashboard.call("POST", "/ui/logout", headers=headers),
        dashboard.send_login(dashboard.reader, headers=headers),
    ):
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert "The form was not sent by this site" in answer.text
    assert dashboard.see().status_code == 200


def test_logout_deletes_the_cookie(dashboard: Dashboard) -> None:
    for headers in (OWN, {"Sec-Fetch-Site": "same-origin", "Origin": "http://behind-a-proxy"}):
        answer = dashboard.call("POST", "/ui/logout", headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login")
        assert 'ostler_session=""' in answer.headers["set-cookie"]
        assert "Max-Age=0" in answer.headers["set-cookie"]
    assert dashboard.see("/ui/logout").status_code == 405


def test_login_reads_no_body_above_its_limit(dashboard: Dashboard) -> None:
    assert dashboard.send_login("x" * LARGEST).status_code == 413
    assert dashboard.send_login("x", data={str(number): "x" for number in range(20)}).status_code == 403


def test_link_from_another_site_loads_the_page_once_more(dashboard: Dashboard) -> None:
    # A browser sends no SameSite=Strict cookie with such a request.
    answer = dashboard.see("/ui/jobs?state=queued", cookie="", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert '<meta http-equiv="refresh" content="0">' in answer.text
    assert 'href="/ui/jobs?state=queued"' in answer.text


def test_stream_without_a_session_makes_the_browser_load_the_page_again(dashboard: Dashboard) -> None:
    answer = dashboard.see("/ui/jobs", cookie="", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.content) == (200, RELOAD)


def test_session_is_valid_while_the_key_that_made_it_is_set(dashboard: Dashboard) -> None:
    ours, new = dashboard.settings.encryption_keys, (Secret(Fernet.generate_key().decode()),)
    found = {}
    pool = ApiDatabase(dashboard.engine)
    for name, keys in (("added", new + ours), ("replaced", new)):
        app = FastAPI()
        settings = dashboard.settings.model_copy(update={"encryption_keys": keys})
        mount_ui(app, settings, database=lambda: pool, streams=lambda: dashboard.streams, publisher=PublisherOutbox)
        client = Client(app)
        found[name] = client.call("GET", "/ui/", headers={"Cookie": f"ostler_session={dashboard.cookie}"}).status_code
        client.close()
    pool.stop()
    assert found == {"added": 200, "replaced": 303}


def link_of(dashboard: Dashboard, *, minutes: float = 5) -> str:
    """Return the code of a login link of the token `reader`."""
    (row,) = dashboard.execute("SELECT id FROM api_tokens WHERE name = 'reader'")
    now = utcnow()
    code = transaction(
        dashboard.engine, lambda db: api_tokens.make_link(db, row.id, until=now + timedelta(minutes=minutes), now=now)
    )
    assert code is not None
    return code.reveal()


def send_link(dashboard: Dashboard, code: str, **how: Any) -> httpx.Response:
    return dashboard.call("POST", "/ui/login", cookie="", headers=how.pop("headers", OWN), data={"link": code})


def test_link_logs_in_once(dashboard: Dashboard) -> None:
    code = link_of(dashboard)
    for _ in range(2):  # a program that shows previews opens the link, too
        shown = dashboard.call("GET", f"/ui/login?link={code}&next=/ui/jobs", cookie="")
        assert (shown.status_code, "set-cookie" in shown.headers, code in shown.text) == (200, False, True)
    first, second = send_link(dashboard, code), send_link(dashboard, code)
    assert (first.status_code, first.headers["location"], second.status_code) == (303, "/ui/", 403)
    assert "works once" in second.text
    assert dashboard.see(cookie=first.headers["set-cookie"].split(";")[0].partition("=")[2]).status_code == 200


def test_link_is_used_once_even_at_the_same_time(dashboard: Dashboard) -> None:
    code = Secret(link_of(dashboard))

    def use(_: int) -> object:
        return transaction(dashboard.engine, lambda db: api_tokens.use_link(db, code, now=utcnow()))

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(use, range(8)))
    assert sum(isinstance(each, api_tokens.Holder) for each in found) == 1


def test_old_forged_and_replaced_links_are_refused(dashboard: Dashboard) -> None:
    replaced, code = link_of(dashboard), link_of(dashboard)
    assert send_link(dashboard, replaced).status_code == 403
    assert send_link(dashboard, code[:-4] + "AAAA").status_code == 403
    assert send_link(dashboard, dashboard.reader).status_code == 403  # a token is no link
    assert dashboard.send_login(code).status_code == 403  # and a link is no token
    assert send_link(dashboard, code, headers={"Origin": "http://evil.example"}).status_code == 403
    assert send_link(dashboard, link_of(dashboard, minutes=-1)).status_code == 403
    ended = link_of(dashboard)
    dashboard.execute("UPDATE api_tokens SET revoked_at = now()")
    assert send_link(dashboard, ended).status_code == 403


def test_link_stands_in_no_log(dashboard: Dashboard, capfd: pytest.CaptureFixture[str]) -> None:
    codes = [link_of(dashboard), link_of(dashboard)]
    with capture_logs() as lines:
        for code in codes:
            dashboard.call("GET", f"/ui/login?link={code}", cookie="")
            send_link(dashboard, code)
    written = str(lines) + "".join(capfd.readouterr())
    assert not [code for code in codes if code in written]


def test_check_of_many_sessions_waits_for_no_token(dashboard: Dashboard) -> None:
    read = [Sessions(dashboard.settings.encryption_keys).read(each, now=utcnow()) for each in requests(dashboard)]
    open_sessions = [each for each in read if each is not None]
    assert len(open_sessions) == 3
    dashboard.execute("UPDATE api_tokens SET last_used_at = NULL")
    dashboard.execute("UPDATE api_tokens SET scopes = ARRAY['read', 'write'] WHERE name = 'second'")
    with dashboard.engine.begin() as other:
        other.exec_driver_sql("SELECT id FROM api_tokens WHERE name = 'reader' FOR UPDATE")
        valid = transaction(dashboard.engine, lambda db: still_valid(db, open_sessions, now=utcnow()))
    assert valid == {open_sessions[0], open_sessions[2]}
    used = {row.name for row in dashboard.execute("SELECT name FROM api_tokens WHERE last_used_at IS NOT NULL")}
    assert used == {"second", "third"}


def requests(dashboard: Dashboard) -> list[Request]:
    """Return requests with the cookies of three readers."""
    cookies = [dashboard.cookie]
    cookies += [dashboard.log_in(dashboard.token(TokenScope.READ, name=name)) for name in ("second", "third")]
    return [
        Request({"type": "http", "headers": [(b"cookie", f"{sessions.COOKIE}={cookie}".encode())]})
        for cookie in cookies
    ]
