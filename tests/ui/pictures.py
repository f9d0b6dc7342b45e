"""`python -m tests.ui.pictures URL TOKEN [FOLDER]`: take the pictures of the dashboard in the documentation.

The pictures are of a running system, for example of `make demo`, which prints the address and the token.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
DESKTOP, PHONE = (1280, 1000), (390, 844)
PICTURES: tuple[tuple[str, str, tuple[int, int], str], ...] = (
    ("overview", "/ui/", DESKTOP, "light"),
    ("job-that-waits", "/ui/jobs?state=queued", DESKTOP, "light"),
    ("job-that-ended", "/ui/jobs?state=completed", DESKTOP, "light"),
    ("pool", "/ui/", DESKTOP, "dark"),
    ("sweeps", "/ui/sweeps", DESKTOP, "dark"),
    ("overview-phone", "/ui/", PHONE, "light"),
)
"""File, path, size and theme of each picture."""
_FIRST_LINK = {
    "job-that-waits": "tbody th a[href^='/ui/jobs/']",
    "job-that-ended": "tbody th a[href^='/ui/jobs/']",
    "pool": "a[href^='/ui/pools/']",
}
_SHOWS = {"job-that-waits": "main #checks"}
"""Part that a page must have. A job of a demo might begin before its page is opened; then it has no checks."""

TRIES = 20


def take(browser: Browser, url: str, token: str, folder: Path) -> None:
    """Take every picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path, size, theme in PICTURES:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=theme,  # type: ignore[arg-type]
            java_script_enabled=False,  # the page stays as it was opened
        )
        page = context.new_page()
        page.goto(f"{url}/ui/login")
        page.get_by_label("API token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/ui/")
        for _ in range(TRIES):
            page.goto(f"{url}{path}")
            if name in _FIRST_LINK:
                page.goto(f"{url}{page.locator(_FIRST_LINK[name]).first.get_attribute('href')}")
            if page.locator(_SHOWS.get(name, "main")).count():
                break
        page.screenshot(path=folder / f"{name}.png")
        context.close()


def main() -> None:
    """Take the pictures of the system that the command line names."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None or len(sys.argv) not in {3, 4}:
        sys.exit("usage: python -m tests.ui.pictures URL TOKEN [FOLDER]; Chromium must be on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        take(browser, sys.argv[1].rstrip("/"), sys.argv[2], Path(sys.argv[3]) if len(sys.argv) > 3 else FOLDER)
        browser.close()


if __name__ == "__main__":
    main()
