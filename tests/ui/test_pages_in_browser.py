"""Pages in Chromium: no error of the browser, no serious fault for a screen reader, and nothing beyond the edge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

import web.ui.app
from tests.rows import run_sql
from tests.ui.conftest import ENDED, Site, Stored

pytestmark = pytest.mark.ui

DESKTOP, PHONE, PAPER = (1280, 900), (390, 844), (794, 1123)
"""Width and height in pixels. The paper is a sheet of A4 at 96 dots per inch."""
LOOKS = tuple(product((DESKTOP, PHONE), ("light", "dark")))
"""Each size and theme. A page answers the same in all of them, so it is loaded once, and looks four times."""
EXPECTED = {"/ui/jobs/1": 404, "/ui/jobs?limit=x": 422}
"""Statuses of the pages that report an error. All others are answered with 200."""
REFRESHED = 10_000
"""Milliseconds within which a live page shows a change, or that its session has ended."""


@dataclass
class Visit:
    """A page of the browser with a session, and everything that the browser complained about."""

    page: Page
    site: Site
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def open(self, path: str) -> int:
        """Open a page, and return the status of the answer."""
        answer = self.page.goto(f"{self.site.url}{path}", wait_until="load")
        return 0 if answer is None else answer.status

    def log_in(self) -> None:
        self.open("/ui/login")
        self.page.get_by_label("API token").fill(self.site.token)
        self.page.get_by_role("button", name="Log in").click()
        self.page.wait_for_url("**/ui/")


@contextmanager
def visiting(browser: Browser, site: Site) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": DESKTOP[0], "height": DESKTOP[1]}, reduced_motion="reduce")
    page = context.new_page()
    visit = Visit(page, site)
    page.on(
        "console",
        lambda said: visit.complaints.append(said.text) if said.type in {"error", "warning"} else None,
    )
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("request", lambda request: visit.hosts.add(urlsplit(request.url).netloc))
    page.on("dialog", lambda dialog: visit.complaints.append(f"dialog: {dialog.message}"))
    try:
        yield visit
    finally:
        context.close()


def faults(page: Page) -> list[str]:
    """Return the faults that axe-core calls serious or critical, each with the elements."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {[node['target'] for node in each['nodes']][:5]}"
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]


def looks_wrong(page: Page) -> list[str]:
    """Return what is wrong with the open page in any size and theme, and on paper."""
    wrong = []
    for (width, height), theme in LOOKS:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        wrong += [f"{each}, {theme}, {width} pixels" for each in [*faults(page), *_beyond(page, width)]]
    page.set_viewport_size({"width": PAPER[0], "height": PAPER[1]})
    page.emulate_media(media="print")
    wrong += [f"{each}, on paper" for each in _beyond(page, PAPER[0])]
    if page.locator("header").is_visible():
        wrong.append("its menu is printed")
    page.emulate_media(media="screen")
    return wrong


def _beyond(page: Page, width: int) -> list[str]:
    found = page.evaluate("document.documentElement.scrollWidth")
    return [f"its content is {found} pixels wide"] if found > width else []


def walk(visit: Visit) -> list[str]:
    """Open every page, and return what is wrong with it."""
    wrong = []
    for path in visit.site.paths:
        status = visit.open(path)
        if status != EXPECTED.get(path, 200):
            wrong.append(f"{path}: answered {status}")
        wrong += [f"{path}: {each}" for each in looks_wrong(visit.page)]
        refused = f"status of {EXPECTED.get(path)}"  # the browser complains of each page with such a status
        wrong += [f"{path}: {each}" for each in visit.complaints if refused not in each]
        visit.complaints.clear()
    return wrong


def test_every_page_of_a_full_fleet_is_without_fault(chromium: Browser, full: Site) -> None:
    with visiting(chromium, full) as visit:
        visit.log_in()
        assert walk(visit) == []
        assert visit.hosts == {urlsplit(full.url).netloc}


def test_every_page_of_an_empty_installation_is_without_fault(chromium: Browser, empty: Site) -> None:
    with visiting(chromium, empty) as visit:
        visit.open("/ui/login")
        assert looks_wrong(visit.page) == []
        visit.log_in()
        assert walk(visit) == []


def test_every_page_of_the_dashboard_is_visited(full: Site, empty: Site) -> None:
    routes = re.findall(r'Route\("(/[^"]*)", (?:pages|forms)\.', Path(web.ui.app.__file__).read_text(encoding="utf-8"))
    for route in routes:
        pattern = re.compile("/ui" + re.sub(r"\{\w+\}", "[^/]+", route) + r"(\?.*)?")
        assert any(pattern.fullmatch(path) for path in full.paths), route
        assert "{" in route or route == "/change" or f"/ui{route}" in empty.paths, route
    assert len(set(routes)) > 10


def test_every_link_of_every_page_leads_to_a_page(chromium: Browser, full: Site) -> None:
    with visiting(chromium, full) as visit:
        visit.log_in()
        found: dict[str, str] = {}
        for path in full.paths:
            visit.open(path)
            links = visit.page.eval_on_selector_all("a[href^='/ui']", "all => all.map(a => a.getAttribute('href'))")
            found |= dict.fromkeys(links, path)
        broken = {}
        for link, path in found.items():
            answer = visit.page.request.get(f"{full.url}{link}")
            if answer.status != 200:
                broken[link] = f"{answer.status}, on {path}"
        assert broken == {}
        assert len(found) > 20


def test_a_live_page_shows_a_change_and_keeps_the_focus(chromium: Browser, full: Stored) -> None:
    with visiting(chromium, full) as visit:
        visit.log_in()
        visit.open("/ui/jobs/100")
        visit.page.evaluate("document.loadedOnce = true")
        visit.page.locator("#repository").focus()
        expect(visit.page.locator("#why")).to_have_text("What it waits for")
        run_sql(
            full.database.engine,
            "UPDATE jobs SET state = 'completed', conclusion = 'cancelled', completed_at = now(), hold_reason = NULL "
            "WHERE id = 100",
        )
        expect(visit.page.locator("#why")).to_have_text("Result", timeout=REFRESHED)
        assert visit.page.evaluate("[document.activeElement.id, document.loadedOnce]") == ["repository", True]
        assert visit.complaints == []


def test_ages_grow_without_a_change_of_the_page(chromium: Browser, full: Site) -> None:
    with visiting(chromium, full) as visit:
        visit.log_in()
        visit.open("/ui/jobs/100")
        age = visit.page.locator(".as-of time.age")
        expect(age).not_to_have_text(age.inner_text(), timeout=REFRESHED)
        expect(visit.page.locator("#stale")).to_be_hidden()


def test_an_open_page_leads_to_the_login_when_its_token_is_revoked(chromium: Browser, full: Stored) -> None:
    with visiting(chromium, full) as visit:
        visit.log_in()
        visit.open("/ui/jobs")
        run_sql(full.database.engine, "UPDATE api_tokens SET revoked_at = now()")
        visit.page.wait_for_url("**/ui/login*", timeout=REFRESHED)


def test_the_dashboard_is_used_with_the_keyboard_alone(chromium: Browser, full: Site) -> None:
    with visiting(chromium, full) as visit:
        page = visit.page
        visit.open("/ui/login")
        expect(page.get_by_label("API token")).to_be_focused()
        page.keyboard.type(full.token)
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/")
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to the content")).to_be_focused()
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_a_hostile_name_is_text_and_runs_nothing(chromium: Browser, full: Site) -> None:
    with visiting(chromium, full) as visit:
        visit.log_in()
        for path in ("/ui/jobs", f"/ui/jobs/{ENDED}", "/ui/sweeps"):
            visit.open(path)
            assert "<script>alert(1)</script>" in visit.page.inner_text("main")
            assert visit.page.locator("main img").count() == 0
        assert visit.complaints == []


def test_a_session_ends_with_the_log_out(chromium: Browser, full: Site) -> None:
    with visiting(chromium, full) as visit:
        visit.log_in()
        visit.page.get_by_role("button", name="Log out").click()
        visit.page.wait_for_url("**/ui/login*")
        visit.open("/ui/jobs")
        assert "/ui/login" in visit.page.url
