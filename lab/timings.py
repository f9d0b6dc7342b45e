"""Overrides of Ostler's timings, for tests, benchmarks and chaos runs that start its processes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ostler.timings import Timings
from ostler.variables import TIMINGS


def timings(**changed: float) -> dict[str, str]:
    """Return the environment that overrides these timings. Raises pydantic's ValidationError for an invalid timing."""
    Timings.model_validate(changed)
    return {TIMINGS: json.dumps(changed)}


def merged(*environments: Mapping[str, str]) -> dict[str, str]:
    """Merge environments. A later variable replaces an earlier one, but each overridden timing replaces only itself."""
    variables = {name: value for each in environments for name, value in each.items()}
    overrides = [json.loads(each[TIMINGS]) for each in environments if TIMINGS in each]
    return variables | (
        timings(**{name: value for each in overrides for name, value in each.items()}) if overrides else {}
    )
