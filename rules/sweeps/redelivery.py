"""Redelivery of webhooks: the deliveries to check, and the time to ask GitHub to send one again.

GitHub never repeats a webhook on its own. It stores deliveries for three days (seven on Enterprise Server). There are
two kinds of checks. A short check of the newest deliveries runs every minute, so that a lost webhook returns soon. A
short check usually costs one page.

A scan runs once per `overlap`. It reads back to `overlap` before the start of the last complete scan. It finds
deliveries that GitHub listed late or a short check did not reach. Both overlaps are longer than the difference between
GitHub's clock and Ostler's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

SHORT_OVERLAP = timedelta(seconds=60)
"""Overlap of a short check with the previous one. It is longer than the 10 s that an attempt can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of reading GitHub's list of deliveries.

    `checked_at` is the start of the last complete short check, and `checkpoint` the start of the last complete scan.
    `scan_began` is the start of the running scan, or None. `scan_cursor` is its next page, or None for the first page.
    """

    checked_at: datetime
    checkpoint: datetime
    scan_began: datetime | None
    scan_cursor: str | None


def recent_floor(progress: Progress, *, overlap: timedelta, now: datetime) -> datetime:
    """Return the oldest time that a short check covers. Older deliveries are left to the scan."""
    return max(progress.checked_at - SHORT_OVERLAP, now - overlap)


def scan_floor(progress: Progress, *, overlap: timedelta, kept: timedelta, now: datetime) -> datetime:
    """Return the oldest time that a scan covers. After a long downtime, this is the start of GitHub's retention."""
    return max(progress.checkpoint - overlap, now - kept)


def scan_is_due(progress: Progress, *, overlap: timedelta, now: datetime) -> bool:
    """Return whether a scan is running or should begin."""
    return progress.scan_began is not None or now - progress.checkpoint >= overlap


class PageEnd(StrEnum):
    """Continuation of a list after a page.

    - `more`: read the next page.
    - `whole`: all deliveries down to the floor were listed.
    - `doubt`: the list ended unexpectedly, so nothing is concluded from it (law L8).
    """

    MORE = "more"
    WHOLE = "whole"
    DOUBT = "doubt"


def page_end(*, oldest: datetime | None, is_first: bool, is_full: bool, has_next: bool, floor: datetime) -> PageEnd:
    """Judge a page by its last entry, delivered at `oldest`. For an empty page, `oldest` is None."""
    if oldest is not None and oldest < floor:
        return PageEnd.WHOLE
    if has_next:
        return PageEnd.MORE
    return PageEnd.DOUBT if is_full or (is_first and oldest is None) else PageEnd.WHOLE


def next_ask_after(asks: int, *, again_after: timedelta, kept: timedelta) -> timedelta:
    """Return the time from request number `asks` (from 1) to the next one. It doubles, up to GitHub's retention.

    With a fixed number of requests, a webhook would be lost for ever if the route to Ostler is cut for a longer time.
    Doubling still limits the number: two minutes and three days give twelve requests.
    """
    return min(again_after * (1 << min(asks - 1, 16)), kept)
