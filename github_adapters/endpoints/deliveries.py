"""Calls of GitHub's page "REST API endpoints for GitHub App webhooks".

Every delivery attempt is a separate entry. The attempts of one event have the same GUID.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from github_adapters import fields
from github_adapters.calls.governor import CallClass
from github_adapters.calls.http import Answer, Deadline
from github_adapters.calls.session import Session
from github_adapters.endpoints.pages import PAGE
from ostler.upstreams import SUCCESS
from rules.upstream.retry import ONCE, RetryPolicy

LONGEST_GUID = 128
LONGEST_CURSOR = 512
_LINK = re.compile(r"<([^<>]*)>\s*;[^<]*\brel=\"?next\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySeen:
    """One attempt to deliver a webhook. `delivered_at` is in UTC.

    `accepted` means that the attempt was answered with 2xx. `status_code` is 0 if there was no answer.
    `installation_id` is None if the event belongs to no installation. An example is a ping.
    """

    id: int
    guid: str
    delivered_at: datetime
    accepted: bool
    event: str
    action: str | None
    status_code: int = 0
    installation_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPage:
    """One page of attempts, newest first. `next_cursor` is None on the last page.

    `malformed` is the number of entries that could not be parsed and were left out.
    """

    deliveries: tuple[DeliverySeen, ...]
    next_cursor: str | None
    malformed: int


class Deliveries:
    """The deliveries of the App's webhook."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list_deliveries(self, *, cursor: str | None = None, policy: RetryPolicy = ONCE) -> DeliveryPage:
        """Return a page of the attempts to deliver to the App's webhook, newest first.

        `cursor` is the `next_cursor` of the page before, or None for the first page. Raises `Invalid` if GitHub refuses
        the cursor.
        """
        query = f"per_page={PAGE}" + ("" if cursor is None else f"&cursor={quote(cursor, safe='')}")
        deadline = Deadline(policy.deadline)

        def once() -> DeliveryPage:
            answer = self._session.call_as_app(
                call_class=CallClass.OPTIONAL, method="GET", path=f"/app/hook/deliveries?{query}", deadline=deadline
            )
            return self._session.read(answer, read_page, what="list of deliveries")

        return self._session.retry(once, policy=policy, deadline=deadline)

    def probe(self, *, deadline_seconds: float | None = None) -> None:
        """List at most one delivery as the App itself, to check whether GitHub answers."""
        answer = self._session.call_as_app(
            call_class=CallClass.READ,
            method="GET",
            path="/app/hook/deliveries?per_page=1",
            deadline=Deadline(deadline_seconds),
        )
        self._session.expect(answer, HTTPStatus.OK, what="probe")

    def redeliver(self, *, delivery_id: int, deadline_seconds: float | None = None) -> None:
        """Request the redelivery of a webhook. GitHub delivers it later, as a new attempt with the same GUID.

        Raises `Gone` if GitHub has deleted the delivery, and `Invalid` if GitHub cannot deliver it again.
        """
        answer = self._session.call_as_app(
            call_class=CallClass.WRITE,
            method="POST",
            path=f"/app/hook/deliveries/{delivery_id}/attempts",
            deadline=Deadline(deadline_seconds),
        )
        self._session.expect(answer, HTTPStatus.ACCEPTED, what="redelivery")


def read_page(answer: Answer) -> DeliveryPage:
    """Return a page of attempts from an answer. An entry that cannot be parsed is left out and counted (law L14).

    Raises `Malformed` if the answer is no list, if no entry can be parsed, or if the link to the next page is invalid.
    """
    try:
        entries = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise fields.Malformed("the body is not JSON") from None
    if not isinstance(entries, list):
        raise fields.Malformed("the body is not a list")
    seen = []
    for entry in entries:
        try:
            seen.append(_delivery(entry))
        except fields.Malformed:
            continue
    if entries and not seen:
        raise fields.Malformed("no delivery in the list can be parsed")
    return DeliveryPage(
        deliveries=tuple(seen),
        next_cursor=_next_cursor(answer.headers.get("link", "")),
        malformed=len(entries) - len(seen),
    )


def _delivery(source: Any) -> DeliverySeen:
    if not isinstance(source, dict):
        raise fields.Malformed("a delivery is not an object")
    guid, status = source.get("guid"), source.get("status_code")
    if not isinstance(guid, str) or not 0 < len(guid) <= LONGEST_GUID or not guid.isprintable():
        raise fields.Malformed("guid is missing or invalid")
    return DeliverySeen(
        id=fields.number(source, "id"),
        guid=guid,
        delivered_at=fields.moment(source, "delivered_at"),
        accepted=isinstance(status, int) and status in SUCCESS,
        event=fields.word(source, "event"),
        action=fields.optional_word(source, "action"),
        status_code=status if isinstance(status, int) else 0,
        installation_id=fields.optional_number(source, "installation_id"),
    )


def _next_cursor(link: str) -> str | None:
    """Return the cursor of the next page from the `link` header, or None if there is no next page.

    Only the cursor of the link is used. The host and all other parts of the link are ignored.
    """
    found = _LINK.search(link)
    if found is None:
        return None
    cursors = parse_qs(urlsplit(found[1]).query).get("cursor", [])
    if len(cursors) != 1 or len(cursors[0]) > LONGEST_CURSOR or not cursors[0].isprintable():
        raise fields.Malformed("the link to the next page is invalid")
    return cursors[0]
