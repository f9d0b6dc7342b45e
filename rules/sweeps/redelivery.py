"""Redelivery of webhooks: the deliveries to check, and the time to ask GitHub to send a webhook again.

GitHub never repeats a webhook without a request. GitHub stores deliveries for three days (seven on Enterprise Server).
Ostler reads GitHub's list of deliveries in two ways: by short checks and by scans.

Each run of the sweep begins with a short check of the newest deliveries, so that a lost webhook is sent again soon. A
short check usually reads one page.

`overlap` is the setting `redelivery_overlap`. A scan begins when `overlap` has passed since the start of the last
complete scan. A scan reads the list back to `overlap` before this start. The scan finds deliveries that GitHub listed
late, and deliveries that a short check did not reach. Both `overlap` and `SHORT_OVERLAP` must be longer than the
difference between GitHub's clock and Ostler's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

SHORT_OVERLAP = timedelta(seconds=60)
"""Overlap of a short check with the previous short check.

The overlap is longer than the 10 s that an attempt to deliver can take.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of reading GitHub's list of deliveries.

    `checked_at` is the start of the last complete short check, and `checkpoint` the start of the last complete scan.
    `scan_began` is the start of the running scan, or None if no scan is running. `scan_cursor` is the next page of the
    running scan, or None for the first page.
    """

    checked_at: datetime
    checkpoint: datetime
    scan_began: datetime | None
    scan_cursor: str | None


def recent_floor(progress: Progress, *, overlap: timedelta, now: datetime) -> datetime:
    """Return the oldest time that a short check covers. Older deliveries are left to the scan."""
    return max(progress.checked_at - SHORT_OVERLAP, now - overlap)


def scan_floor(progress: Progress, *, overlap: timedelta, kept: timedelta, now: datetime) -> datetime:
    """Return the oldest time that a scan covers. The result is never earlier than the start of GitHub's retention."""
    return max(progress.checkpoint - overlap, now - kept)


def scan_is_due(progress: Progress, *, overlap: timedelta, now: datetime) -> bool:
    """Return whether a scan must be continued or begun."""
    return progress.scan_began is not None or now - progress.checkpoint >= overlap


class PageEnd(StrEnum):
    """Decision after a page of a list.

    - `more`: the caller must read the next page.
    - `whole`: all deliveries since the floor were listed.
    - `doubt`: the list ended unexpectedly, so nothing is concluded from it (law L8).
    """

    MORE = "more"
    WHOLE = "whole"
    DOUBT = "doubt"


def page_end(*, oldest: datetime | None, is_first: bool, is_full: bool, has_next: bool, floor: datetime) -> PageEnd:
    """Return the decision after a page. `oldest` is the time of the page's last entry, or None if the page is empty."""
    if oldest is not None and oldest < floor:
        return PageEnd.WHOLE
    if has_next:
        return PageEnd.MORE
    return PageEnd.DOUBT if is_full or (is_first and oldest is None) else PageEnd.WHOLE


def next_ask_after(asks: int, *, again_after: timedelta, kept: timedelta) -> timedelta:
    """Return the time between request number `asks` (from 1) for a webhook and the next request.

    Each request doubles the time, up to GitHub's retention. If the number of requests were fixed, a webhook would be
    lost forever after a long interruption of the route to Ostler. The doubling still limits the number of requests. For
    example, with two minutes and three days there are twelve requests.
    """
    return min(again_after * (1 << min(asks - 1, 16)), kept)
