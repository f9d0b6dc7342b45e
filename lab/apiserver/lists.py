"""Paged lists, and watches."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus

from lab.apiserver import tables
from lab.apiserver.kinds import Json, Kind
from lab.apiserver.refusals import Refused, bad_request, expired
from lab.apiserver.selectors import Test, selected
from lab.apiserver.store import Event, Store, Stored

_LONGEST_WATCH = 3600
_BOOKMARK_EVERY = 60
_LAST_BOOKMARK = 2
"""Seconds before the end of a watch at which the server sends the last bookmark of the watch."""


def list_page(
    store: Store, kind: Kind, namespace: str, query: Mapping[str, str], *, partial: bool, table: bool = False
) -> bytes:
    """Return the JSON of a list, or of one page of it. Raises `Refused`.

    `partial` reduces the items to metadata. `table` makes a table of them.
    """
    chosen = _chosen(kind, query)
    limit = _number(query.get("limit") or "0")
    if token := query.get("continue"):
        revision, after = _read_token(token)
        listed = store.kept_list(kind, namespace, revision)
        if listed is None:
            raise expired()
        listed = listed[after:]
    else:
        revision, after, listed = store.revision, 0, store.all(kind, namespace)
    page: list[Stored] = []
    metadata: Json = {"resourceVersion": str(revision)}
    if kind.custom:
        metadata["continue"] = ""
    selecting = bool(query.get("labelSelector") or query.get("fieldSelector"))
    places = [place for place, stored in enumerate(listed) if chosen(stored)]
    if 0 < limit < len(places):
        if not after:
            store.keep_list(kind, namespace, listed)
        metadata["continue"] = _write_token(revision, after + places[limit])
        if not selecting:
            metadata["remainingItemCount"] = len(places) - limit
        places = places[:limit]
    page = [listed[place] for place in places]
    return tables.table(kind, metadata, page) if table else _list_body(kind, metadata, page, partial=partial)


async def watch(
    store: Store, kind: Kind, namespace: str, query: Mapping[str, str], *, partial: bool
) -> AsyncIterator[bytes]:
    """Yield one line for each event until the time of the watch is up.

    An event that the watch does not select yields an empty line. The caller calls `check_watch` first.
    """
    chosen = _chosen(kind, query)
    since = query.get("resourceVersion") or "0"
    seconds = _number(query.get("timeoutSeconds") or "0") or _LONGEST_WATCH
    bookmarks = query.get("allowWatchBookmarks") in {"1", "true"}
    end = time.monotonic() + seconds
    first_bookmark = min(_BOOKMARK_EVERY, seconds - _LAST_BOOKMARK)
    bookmark = time.monotonic() + first_bookmark if first_bookmark > 0 else end
    with store.following() as queue:
        known: list[Event] | None = []
        present = store.revision
        if since == "0" or query.get("sendInitialEvents") == "true":
            for stored in store.all(kind, namespace):
                if chosen(stored):
                    yield _line("ADDED", stored, partial=partial)
            if query.get("sendInitialEvents") == "true" and bookmarks:
                yield _bookmark(kind, present, partial=partial, initial=True)
        else:
            known = store.since(int(since))
        if known is None:
            gone = Refused(HTTPStatus.GONE, "Expired", f"too old resource version: {since}")
            yield json.dumps({"type": "ERROR", "object": gone.body()}).encode() + b"\n"
            return
        for event in known:
            yield _event_line(event, kind, namespace, chosen, partial=partial)
        while (left := end - time.monotonic()) > 0:
            if bookmarks and time.monotonic() >= bookmark and queue.empty():  # a bookmark would skip the waiting events
                bookmark = time.monotonic() + _BOOKMARK_EVERY
                yield _bookmark(kind, store.revision, partial=partial)
            try:
                async with asyncio.timeout(min(left, max(bookmark - time.monotonic(), 0.01)) if bookmarks else left):
                    event = await queue.get()
            except TimeoutError:
                continue
            yield _event_line(event, kind, namespace, chosen, partial=partial)


def check_watch(kind: Kind, query: Mapping[str, str]) -> None:
    """Raise `Refused` if the query of a watch cannot be parsed.

    The query is checked before the watch begins, because the HTTP status of the answer cannot be changed afterwards.
    """
    _chosen(kind, query)
    _number(query.get("timeoutSeconds") or "0")
    since = query.get("resourceVersion") or "0"
    if not since.isdigit():
        text = f'resourceVersion: Invalid value: "{since}": strconv.ParseUint: parsing "{since}": invalid syntax'
        raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "", text)


def _chosen(kind: Kind, query: Mapping[str, str]) -> Test:
    return selected(kind, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))


def _event_line(event: Event, kind: Kind, namespace: str, chosen: Test, *, partial: bool) -> bytes:
    """Return the line of an event, or an empty line if the watch does not select the event."""
    after, before = event.after, event.before
    if after.kind != kind or (namespace and after.metadata.get("namespace") != namespace):
        return b""
    was, is_now = before is not None and chosen(before), chosen(after) and not event.gone
    if is_now:
        return _line("MODIFIED" if was else "ADDED", after, partial=partial)
    if before is None or not was:
        return b""
    if not event.gone:  # the object no longer matches: the line shows its last matching content
        metadata = before.metadata | {"resourceVersion": str(event.revision)}
        after = Stored(kind, {**before.content, "metadata": metadata})
    return _line("DELETED", after, partial=partial)


def _line(name: str, stored: Stored, *, partial: bool) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (name.encode(), stored.partial if partial else stored.whole)


def _bookmark(kind: Kind, revision: int, *, partial: bool, initial: bool = False) -> bytes:
    metadata: Json = {"resourceVersion": str(revision)}
    if initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return _line("BOOKMARK", Stored(kind, {"metadata": metadata}), partial=partial)


def _list_body(kind: Kind, metadata: Json, page: list[Stored], *, partial: bool) -> bytes:
    name, version = f"{kind.name}List", kind.api_version
    if partial:
        name, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        items = [stored.partial for stored in page]
        if not items:  # the real server writes null for an empty list
            return json.dumps({"kind": name, "apiVersion": version, "metadata": metadata, "items": None}).encode()
    else:  # the real server omits the type in items of built-in kinds
        items = [stored.whole if kind.custom else stored.bare for stored in page]
    head = json.dumps({"kind": name, "apiVersion": version, "metadata": metadata}).encode()
    return head[:-1] + b',"items":[' + b",".join(items) + b"]}"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _write_token(revision: int, after: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([revision, after]).encode()).rstrip(b"=").decode()


def _read_token(token: str) -> tuple[int, int]:
    try:
        revision, after = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(revision), int(after)
    except (ValueError, TypeError):
        raise bad_request("invalid continue token: continue key is not valid") from None
