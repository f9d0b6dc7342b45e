"""Templates of the dashboard, and the form of times, numbers and names on its pages.

Names of jobs, branches and workflows come from strangers. Every value is therefore escaped for HTML, and characters
that control the direction or the layout of text are replaced.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from ostler.server_words import without_controls

HOLDER = "ostler.ui.holder"
REFRESH = "refresh"
"""Parameter of every page. With the value `off`, the page does not refresh itself."""

_LONGEST = 120
_CODE = re.compile("`([^`]+)`")
_EXACT_BELOW = 10
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))

ASSETS = {
    name: ((files("web.ui") / "static" / name).read_bytes(), kind)
    for name, kind in (("ui.css", "text/css"), ("htmx.min.js", "text/javascript"))
}


def duration(seconds: float) -> str:
    """Return a duration in the two largest units that fit, for example `1 h 5 min`; below 10 seconds, `1.2 s`."""
    tenths = round(seconds, 1)
    if tenths < _EXACT_BELOW:
        return f"{tenths:.1f} s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        number, rest = divmod(rest, size)
        if number or parts:
            parts.append(f"{number} {unit}" if number else "")
    return " ".join(part for part in parts[:2] if part)


def age(since: datetime, now: datetime) -> str:
    """Return the time since `since`. A time in the future is 0."""
    return duration(max(timedelta(), now - since).total_seconds())


def moment(at: datetime) -> Markup:
    """Return a time in UTC as HTML."""
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}")


def prose(value: str) -> Markup:
    """Return a sentence as HTML, with commands and names between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(without_controls(value)))))  # noqa: S704  it is escaped


def short(value: str, longest: int = _LONGEST) -> str:
    """Return the beginning of a long text."""
    return value if len(value) <= longest else f"{value[: longest - 1]}…"


def _finalize(value: object) -> object:
    return without_controls(value) if type(value) is str else value


_environment = Environment(
    loader=PackageLoader("web.ui"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "duration": duration,
    "moment": moment,
    "short": short,
    "prose": prose,
    "path": lambda each: quote(each, "/"),
}
_environment.globals |= {
    "age": age,
    "asset": {
        name: f"/ui/static/{name}?v={hashlib.sha256(content).hexdigest()[:8]}" for name, (content, _) in ASSETS.items()
    },
}


def page(request: Request, template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> HTMLResponse:
    """Return a page.

    In a template, `here` is the address of the page, `holder` is the token of the reader or None, and `switch` is the
    address of the same page with the refresh stopped, or continued if it is stopped. The page for a refresh has no
    header, so it is the same for all readers with the same rights.
    """
    stopped = request.query_params.get(REFRESH) == "off"
    others = [(name, value) for name, value in request.query_params.multi_items() if name != REFRESH]
    query = urlencode(others if stopped else [*others, (REFRESH, "off")])
    content = _environment.get_template(template).render(
        here=address(request),
        holder=request.scope.get(HOLDER),
        stopped=stopped,
        refreshes=is_refresh(request),
        switch=quote(request.url.path) + (f"?{query}" if query else ""),
        **values,
    )
    return HTMLResponse(content, status_code=status)


def is_refresh(request: Request) -> bool:
    """Return True if an open page asks for its live part again."""
    return "hx-request" in request.headers


def address(request: Request) -> str:
    """Return the path and the query of a request."""
    query = request.url.query
    return quote(request.url.path) + (f"?{query}" if query else "")
