"""Warnings about the version of a runner."""

from datetime import UTC, datetime, timedelta

import pytest

from rules.pools.runner_versions import SOON, warn

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ends_at", "said"),
    [
        (None, None),
        (NOW + SOON + timedelta(seconds=1), None),
        (NOW + SOON, "GitHub will refuse runner 2.330.0 from 2026-12-07 on; use an image with a newer runner"),
        (
            NOW + timedelta(days=1),
            "GitHub will refuse runner 2.330.0 from 2026-11-24 on; use an image with a newer runner",
        ),
        (NOW, "GitHub has refused runner 2.330.0 since 2026-11-23; use an image with a newer runner"),
    ],
)
def test_a_version_is_told_of_from_two_weeks_before_its_end_on(ends_at: datetime | None, said: str | None) -> None:
    assert warn("2.330.0", ends_at, now=NOW) == said
