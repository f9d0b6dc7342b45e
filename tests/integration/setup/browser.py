"""A browser for the manifest flow: it opens pages, reads their one form, and submits it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin

import urllib3


@dataclass
class Form(HTMLParser):
    """The form of a page, with its hidden fields."""

    action: str = ""
    values: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a form and its fields."""
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.action = given["action"]
        if tag == "input":
            self.values[given["name"]] = given["value"]


class Browser:
    """A browser that follows links and forms like a person."""

    def __init__(self) -> None:
        self._pool = urllib3.PoolManager()
        self.url = ""
        self.status = 0
        self.content = ""
        self.headers: dict[str, str] = {}

    def open(self, url: str, **headers: str) -> None:
        """Open a page."""
        self._take(self._pool.request("GET", url, headers=headers, retries=False, timeout=30), url)

    def submit(self) -> None:
        """Submit the form of the page, and follow the redirects."""
        form = Form()
        form.feed(self.content)
        target = urljoin(self.url, form.action)
        answer = self._pool.request(
            "POST",
            target,
            body=urlencode(form.values),
            retries=False,
            redirect=False,
            timeout=30,
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        while answer.status == 302:
            target = urljoin(target, answer.headers["location"])
            answer = self._pool.request("GET", target, retries=False, redirect=False, timeout=30)
        self._take(answer, target)

    def _take(self, answer: urllib3.BaseHTTPResponse, url: str) -> None:
        self.url, self.status, self.content = url, answer.status, answer.data.decode()
        self.headers = (
            dict(answer.headers.lower_items())
            if hasattr(answer.headers, "lower_items")
            else {name.lower(): value for name, value in answer.headers.items()}
        )
