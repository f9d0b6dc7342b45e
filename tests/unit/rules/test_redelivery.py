"""Range of the deliveries to read, trust in a list, and the interval between two requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.sweeps.redelivery import PageEnd, Progress, next_ask_after, page_end, recent_floor, scan_floor, scan_is_due

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
OVERLAP = timedelta(minutes=15)
KEPT = timedelta(days=3)


def progress(*, looked: float = 1, scanned: float = 5, scanning: bool = False) -> Progress:
    """Return the progress. The last complete check and scan began this number of minutes ago."""
    return Progress(
        checked_at=NOW - timedelta(minutes=looked),
        checkpoint=NOW - timedelta(minutes=scanned),
        scan_began=NOW - timedelta(minutes=2) if scanning else None,
        scan_cursor="v1_7" if scanning else None,
    )


@pytest.mark.parametrize(("looked", "floor"), [(1, 2), (13, 14), (14, 15), (5000, 15)])
def test_recent_read_overlaps_the_last_by_a_minute_and_leaves_the_rest_to_the_scan(looked: float, floor: float) -> None:
    assert recent_floor(progress(looked=looked), overlap=OVERLAP, now=NOW) == NOW - timedelta(minutes=floor)


@pytest.mark.parametrize(("scanned", "floor"), [(15, 30), (60, 75), (3 * 24 * 60, 3 * 24 * 60), (90_000, 3 * 24 * 60)])
def test_a_scan_overlaps_the_last_one_and_goes_no_further_than_github_keeps(scanned: float, floor: float) -> None:
    assert scan_floor(progress(scanned=scanned), overlap=OVERLAP, kept=KEPT, now=NOW) == NOW - timedelta(minutes=floor)


@pytest.mark.parametrize(
    ("scanned", "scanning", "due"), [(14, False, False), (15, False, True), (1, True, True)], ids=str
)
def test_a_scan_begins_once_in_an_overlap_and_goes_on_until_it_is_whole(
    scanned: float, *, scanning: bool, due: bool
) -> None:
    assert scan_is_due(progress(scanned=scanned, scanning=scanning), overlap=OVERLAP, now=NOW) is due


@given(late=st.floats(min_value=0, max_value=14.9), scans=st.floats(min_value=15, max_value=90), at=st.floats(0.01, 1))
def test_a_delivery_that_is_listed_late_is_below_no_floor(late: float, scans: float, at: float) -> None:
    """It appears between two scans that begin `scans` minutes apart."""
    before = NOW - timedelta(minutes=scans)
    appears = before + at * (NOW - before)
    delivered = appears - timedelta(minutes=late)
    assert scan_floor(progress(scanned=scans), overlap=OVERLAP, kept=KEPT, now=NOW) < delivered


@pytest.mark.parametrize(
    ("oldest", "first", "full", "more", "end"),
    [
        (-1, True, True, True, PageEnd.WHOLE),
        (-1, True, False, False, PageEnd.WHOLE),
        (1, True, True, True, PageEnd.MORE),
        (1, True, False, True, PageEnd.MORE),
        (1, False, False, False, PageEnd.WHOLE),
        (1, True, True, False, PageEnd.DOUBT),
        (None, True, False, False, PageEnd.DOUBT),
        (None, False, False, False, PageEnd.WHOLE),
        (None, True, False, True, PageEnd.MORE),
    ],
    ids=[
        "below the floor",
        "below the floor, the last",
        "above it",
        "a short page with a next one",
        "the end of what GitHub keeps",
        "a full page without a next one",
        "an empty list",
        "an empty last page",
        "an empty page with a next one",
    ],
)
def test_a_list_is_whole_only_when_it_ends_where_it_should(
    oldest: int | None, end: PageEnd, *, first: bool, full: bool, more: bool
) -> None:
    at = None if oldest is None else NOW + timedelta(seconds=oldest)
    assert page_end(oldest=at, is_first=first, is_full=full, has_next=more, floor=NOW) is end


def test_the_distance_of_asks_doubles_and_ends_with_what_github_keeps() -> None:
    again = timedelta(minutes=2)
    distances = [next_ask_after(asks, again_after=again, kept=KEPT) for asks in range(1, 40)]
    assert distances[:4] == [timedelta(minutes=minutes) for minutes in (2, 4, 8, 16)]
    assert max(distances) == KEPT
    asks, at = 1, timedelta(0)
    while (at := at + next_ask_after(asks, again_after=again, kept=KEPT)) < KEPT:
        asks += 1
    assert asks == 12


def test_a_page_that_ends_at_the_floor_is_not_the_last() -> None:
    assert page_end(oldest=NOW, is_first=True, is_full=True, has_next=True, floor=NOW) is PageEnd.MORE
