"""Templates of the dashboard, and the form of times, numbers and names on its pages.

Names of jobs, branches and workflows come from strangers. Every value is therefore escaped for HTML, and characters
that control the direction or the layout of text are replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from models.api_tokens import Holder
from ostler.server_words import without_controls
from rules.token_scopes import TokenScope
from web.api.schema import BIGGEST_ID
from web.ui import drawings

HOLDER = "ostler.ui.holder"
REFRESH = "refresh"
"""Parameter of every page. With the value `off`, the page opens no stream."""

SLICE = 0.002
"""Seconds of rendering after which the event loop serves other requests, for example webhooks."""

MOST_ROWS = 2000
"""Number of rendered rows that are kept, of about 1 KiB each."""

_LONGEST = 120
_CODE = re.compile("`([^`]+)`")
_TIME = re.compile('<time class="(?:age|clock)"(?: datetime="([^"]*)")?></time>')
_EXACT_BELOW = 10
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))

ASSETS = {
    name: ((files("web.ui") / "static" / name).read_bytes(), kind)
    for name, kind in (("ui.css", "text/css"), ("live.js", "text/javascript"))
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


def ago(since: datetime) -> Markup:
    """Return the age of a time as HTML. The script of the page fills it in, or `full_page`."""
    return Markup('<time class="age" datetime="{}"></time>').format(since.isoformat(timespec="milliseconds"))


def _filled(html: str, now: datetime) -> str:
    """Return a page in which the ages and the time of its read are filled in."""

    def shown(found: re.Match[str]) -> str:
        if not found[1]:
            return moment(now)
        return f'<time class="age" datetime="{found[1]}">{age(datetime.fromisoformat(found[1]), now)}</time>'

    return _TIME.sub(shown, html)


@lru_cache(MOST_ROWS)
def row(macro: str, *values: Any) -> Markup:
    """Return a part of a page, which a macro of `_parts.html` renders again only after one of its values has changed.

    The part must depend on these values alone, and not on the reader.
    """
    found: Markup = getattr(_environment.get_template("_parts.html").module, macro)(*values)
    return found


def _finalize(value: object) -> object:
    return without_controls(value) if type(value) is str else value


_environment = Environment(
    loader=PackageLoader("web.ui"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    auto_reload=False,
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
    "ago": ago,
    "clock": lambda: Markup('<time class="clock"></time>'),
    "segments": drawings.bar,
    "row": row,
    "asset": {
        name: f"/ui/static/{name}?v={hashlib.sha256(content).hexdigest()[:8]}" for name, (content, _) in ASSETS.items()
    },
}


def compile_templates() -> None:
    """Compile every template, so that no first reader of a page waits, and no webhook beside this reader."""
    for name in _environment.list_templates(["html"]):
        _environment.get_template(name)


@dataclass(frozen=True, slots=True)
class Shown:
    """Content of a page: its template, the time of its read, and the values of the template.

    `live` is False if the page cannot change any more.
    """

    template: str
    now: datetime
    values: Mapping[str, Any]
    live: bool = True


def page(request: Request, template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> HTMLResponse:
    """Return a page that opens no stream."""
    found = _environment.get_template(template).render(_values(request, **values))
    return HTMLResponse(found, status_code=status)


async def full_page(request: Request, shown: Shown, *, again: int | None) -> HTMLResponse:
    """Return a page that opens a stream, or loads again every `again` seconds.

    If a reader stopped the updates or the page cannot change any more, it does neither.
    """
    updates = shown.live and request.query_params.get(REFRESH) != "off"
    values = _values(
        request,
        now=shown.now,
        live=updates and again is None,
        full=updates and again is not None,
        again=again if updates else None,
        **shown.values,
    )
    return HTMLResponse(_filled(await _render(shown.template, values), shown.now))


async def live_part(request: Request, shown: Shown) -> str:
    """Return the part of a page that its stream keeps new.

    Ages and the time of the read are left out, because the page fills them in. The part therefore differs only if a
    row has changed. It does not name the reader.
    """
    return await _render(shown.template, _values(request, layout="live.html", now=shown.now, **shown.values))


def wants_stream(request: Request) -> bool:
    """Return True if an open page asks for its stream; False if a reader opens the page."""
    return "text/event-stream" in request.headers.get("accept", "")


def number(given: str) -> int:
    """Return the id in a path, or 0 if the path contains no id."""
    found = int(given) if given.isascii() and given.isdigit() and len(given) <= len(str(BIGGEST_ID)) else 0
    return found if found <= BIGGEST_ID else 0


def may_write(request: Request) -> bool:
    """Return True if the token of the reader may change the fleet."""
    holder: Holder | None = request.scope.get(HOLDER)
    return holder is not None and holder.accounts is None and TokenScope.WRITE in holder.scopes


def _values(request: Request, **values: Any) -> dict[str, Any]:
    """Return the values of a template.

    `here` is the address of the page, `holder` is the token of the reader or None, and `switch` is the address of the
    same page with the updates stopped, or continued if they are stopped.
    """
    stopped = request.query_params.get(REFRESH) == "off"
    others = [(name, value) for name, value in request.query_params.multi_items() if name != REFRESH]
    query = urlencode(others if stopped else [*others, (REFRESH, "off")])
    return {
        "layout": "base.html",
        "here": address(request),
        "holder": request.scope.get(HOLDER),
        "writes": may_write(request),
        "stopped": stopped,
        "switch": quote(request.url.path) + (f"?{query}" if query else ""),
        "live": False,
        "full": False,
        "again": None,
        **values,
    }


async def _render(template: str, values: Mapping[str, Any]) -> str:
    """Return a rendered template. The event loop serves other requests in between."""
    pieces: list[str] = []
    until = time.perf_counter() + SLICE
    for piece in _environment.get_template(template).generate(values):
        pieces.append(piece)
        if time.perf_counter() > until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE
    return "".join(pieces)


def address(request: Request) -> str:
    """Return the path and the query of a request."""
    query = request.url.query
    return quote(request.url.path) + (f"?{query}" if query else "")
