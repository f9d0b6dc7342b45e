"""Overrides of timings: environments are merged by timing, and a misspelt name is refused."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from lab.timings import merged, timings


def test_merged_environments_replace_one_timing_and_leave_the_others() -> None:
    first = {**timings(due_after=3, sweep_every=5), "OSTLER_LOG_LEVEL": "DEBUG"}
    second = {**timings(sweep_every=1), "OSTLER_LOG_LEVEL": "INFO"}

    environment = merged(first, second, {"OSTLER_NAMESPACE": "ns"})

    assert json.loads(environment.pop("OSTLER_TIMINGS")) == {"due_after": 3, "sweep_every": 1}
    assert environment == {"OSTLER_LOG_LEVEL": "INFO", "OSTLER_NAMESPACE": "ns"}


def test_merged_environments_have_no_timings_when_none_of_them_has() -> None:
    assert merged({"OSTLER_LOG_LEVEL": "INFO"}, {}) == {"OSTLER_LOG_LEVEL": "INFO"}


def test_misspelt_timing_is_refused_before_a_process_starts() -> None:
    with pytest.raises(ValidationError, match="swep_every"):
        timings(swep_every=3)
