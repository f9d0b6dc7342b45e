"""Which deliveries of webhooks are checked, and when GitHub is asked to send one again.

GitHub never sends a webhook twice by itself and keeps what it sent for three days (seven on Enterprise
Server). Two checks share the work: a short one at the newest deliveries, every minute, so that a lost one is
back soon at the price of one page; and a scan down to `overlap` before the last complete scan began, once
per `overlap`, for what GitHub listed late or a short check did not reach. Times of the same delivery differ
between GitHub's clock and ours by less than either overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

SHORT_OVERLAP = timedelta(seconds=60)
"""How far a short check goes back before the last one: longer than the 10 s that an attempt may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What has been read of GitHub's list of deliveries.

    `checked_at`: when the last complete short check began. `checkpoint`: when the last complete scan began.
    `scan_began` and `scan_cursor`: of the scan under way, with the page that comes next (None: the first).
    """

    checked_at: datetime
    checkpoint: datetime
    scan_began: datetime | None
    scan_cursor: str | None


def recent_floor(progress: Progress, *, overlap: timedelta, now: datetime) -> datetime:
    """Return how far back a short check goes; what is older is left to the scan."""
    return max(progress.checked_at - SHORT_OVERLAP, now - overlap)


def scan_floor(progress: Progress, *, overlap: timedelta, kept: timedelta, now: datetime) -> datetime:
    """Return how far back a scan goes: after a downtime as far as GitHub keeps deliveries."""
    return max(progress.checkpoint - overlap, now - kept)


def scan_is_due(progress: Progress, *, overlap: timedelta, now: datetime) -> bool:
    """Return whether a scan is under way or should begin."""
    return progress.scan_began is not None or now - progress.checkpoint >= overlap


class PageEnd(StrEnum):
    """How the reading of a list goes on after a page.

    - `more`: with the next page.
    - `whole`: everything down to the floor was shown.
    - `doubt`: the list ended where it should not; nothing is concluded from it (law L8).
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
    """Return the distance from ask number `asks` (from 1) to the next: it doubles, up to what GitHub keeps.

    A bound by number would lose for ever what failed while the way to us was cut for longer than it lasts;
    doubling is bounded too: with two minutes and three days it comes to twelve asks.
    """
    return min(again_after * (1 << min(asks - 1, 16)), kept)
