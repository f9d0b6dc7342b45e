"""Overrides of Ostler's timings, for tests, benchmarks and chaos runs that start its processes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ostler.timings import Timings
from ostler.variables import TIMINGS


def timings(**changed: float) -> dict[str, str]:
    """Return the environment variable that overrides the given timings.

    Raises pydantic's ValidationError if one is wrong.
    """
    Timings.model_validate(changed)
    return {TIMINGS: json.dumps(changed)}


def merged(*environments: Mapping[str, str]) -> dict[str, str]:
    """Merge environments into one.

    A variable of a later environment replaces the same variable of an earlier one. The overrides of timings are merged
    by timing: a later one replaces only the timings that it names.
    """
    variables = {name: value for each in environments for name, value in each.items()}
    overrides = [json.loads(each[TIMINGS]) for each in environments if TIMINGS in each]
    return variables | (
        timings(**{name: value for each in overrides for name, value in each.items()}) if overrides else {}
    )
