"""Times that options of commands name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from cli.output import time_of

NOW = datetime(2026, 11, 30, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ("today", datetime(2026, 11, 30, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 29, tzinfo=UTC)),
        ("90m", datetime(2026, 11, 29, 22, 35, tzinfo=UTC)),
        ("2026-11-29", datetime(2026, 11, 29, tzinfo=UTC)),
        ("2026-11-29T14:00+02:00", datetime(2026, 11, 29, 12, tzinfo=UTC)),
    ],
)
def test_option_names_an_age_a_day_or_a_time(given: str, at: datetime) -> None:
    assert time_of(given, "--since", now=NOW) == at


@pytest.mark.parametrize("given", ["", "tomorrow", "Today", "1x"])
def test_other_text_is_refused_with_the_expected_forms(given: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected an age such as 90m, 24h or 7d, today, yesterday"):
        time_of(given, "--since", now=NOW)
