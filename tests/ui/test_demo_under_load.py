"""Pages in Chromium while a whole system runs jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Page

from lab.system import Options, System
from lab.traffic import send
from tests.ui.conftest import LISTS, Site
from tests.ui.test_pages_in_browser import visiting, walk
from tests.waiting import eventually

pytestmark = pytest.mark.ui

JOBS = 40
"""Jobs of one wave. The next wave comes after `EVERY` seconds, so that the pools never serve all of them."""
EVERY = 3.0
KINDS = ("/ui/jobs/", "/ui/pools/", "/ui/accounts/", "/ui/pods/")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("demo"), Options(), say=print, cluster="embedded") as system:
        system.wait_for_warm_pods(4, timeout=180)
        yield system


@contextmanager
def under_load(system: System) -> Iterator[None]:
    stop = threading.Event()

    def flood() -> None:
        for seed in range(100):
            send(system.github_url, jobs=JOBS, seed=seed)
            if stop.wait(EVERY):
                return

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def first_pages(page: Page, *, url: str) -> list[str]:
    """Return the address of the first job, pool, account and Pod that the pages lead to."""
    found: dict[str, str] = {}
    for path in ("/ui/", "/ui/jobs", lambda: found["/ui/pools/"]):
        page.goto(f"{url}{path if isinstance(path, str) else path()}")
        for link in page.eval_on_selector_all("main a[href]", "all => all.map(a => a.getAttribute('href'))"):
            for kind in KINDS:
                if link.startswith(kind):
                    found.setdefault(kind, link)
    assert found.keys() == set(KINDS), found
    return list(found.values())


def test_every_page_of_a_demo_under_load_is_without_fault(chromium: Browser, demo: System) -> None:
    made = demo.command("token", "create", "reader", "--scope", "read")
    token = next(word for word in made.stdout.split() if word.startswith("ostler_"))
    site = Site(demo.web_url, token, LISTS)
    with under_load(demo), visiting(chromium, site) as visit:
        visit.log_in()

        def is_busy() -> bool:
            visit.open("/ui/jobs")
            return visit.page.locator("tbody a[href^='/ui/jobs/']").count() > JOBS // 2

        eventually(is_busy, within=60)
        visit.site = replace(site, paths=(*LISTS, *first_pages(visit.page, url=site.url)))
        assert walk(visit) == []
