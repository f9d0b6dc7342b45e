"""Redelivery of webhooks: the deliveries to check, and when to ask GitHub to send one again.

GitHub never repeats a webhook on its own and stores deliveries for three days (seven on Enterprise Server). Two checks
share the work. A short check of the newest deliveries runs every minute, so that a lost webhook returns soon at the
price of one page. A scan runs once per `overlap`, down to `overlap` before the last complete scan began, for deliveries
that GitHub listed late or a short check did not reach. Times of the same delivery differ between GitHub's clock and
ours by less than either overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

SHORT_OVERLAP = timedelta(seconds=60)
"""Overlap of a short check with the previous one: longer than the 10 s that an attempt can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of reading GitHub's list of deliveries.

    `checked_at`: start of the last complete short check. `checkpoint`: start of the last complete scan. `scan_began`
    and `scan_cursor`: of the scan under way, with its next page (None: the first).
    """

    checked_at: datetime
    checkpoint: datetime
    scan_began: datetime | None
    scan_cursor: str | None


def recent_floor(progress: Progress, *, overlap: timedelta, now: datetime) -> datetime:
    """Return the oldest time that a short check covers; older deliveries are left to the scan."""
    return max(progress.checked_at - SHORT_OVERLAP, now - overlap)


def scan_floor(progress: Progress, *, overlap: timedelta, kept: timedelta, now: datetime) -> datetime:
    """Return the oldest time that a scan covers: after a downtime, all that GitHub stores."""
    return max(progress.checkpoint - overlap, now - kept)


def scan_is_due(progress: Progress, *, overlap: timedelta, now: datetime) -> bool:
    """Return whether a scan is under way or should begin."""
    return progress.scan_began is not None or now - progress.checkpoint >= overlap


class PageEnd(StrEnum):
    """Continuation of a list after a page.

    - `more`: read the next page.
    - `whole`: everything down to the floor was shown.
    - `doubt`: the list ended unexpectedly, so nothing is concluded from it (law L8).
    """

    MORE = "more"
    WHOLE = "whole"
    DOUBT = "doubt"


def page_end(*, oldest: datetime | None, is_first: bool, is_full: bool, has_next: bool, floor: datetime) -> PageEnd:
    """Judge a page by its last entry, delivered at `oldest` (None: the page is empty)."""
    if oldest is not None and oldest < floor:
        return PageEnd.WHOLE
    if has_next:
        return PageEnd.MORE
    return PageEnd.DOUBT if is_full or (is_first and oldest is None) else PageEnd.WHOLE


def next_ask_after(asks: int, *, again_after: timedelta, kept: timedelta) -> timedelta:
    """Return the time from request number `asks` (from 1) to the next: it doubles, up to GitHub's retention.

    A fixed number of requests would lose webhooks for ever if the route to us is cut for longer than they last.
    Doubling is bounded too: with two minutes and three days it amounts to twelve requests.
    """
    return min(again_after * (1 << min(asks - 1, 16)), kept)
