"""Changed settings of tests, by name. Names of timings are changed in the record of timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from ostler.timings import Timings

Changed = TypeVar("Changed")


def arranged(changes: Mapping[str, Any], timings: Timings | None = None) -> dict[str, Any]:
    """Return changes as arguments of settings. `timings` are the timings to change, or None for the defaults."""
    own = {name: value for name, value in changes.items() if name in Timings.model_fields}
    before = timings if timings is not None else Timings()
    others = {name: value for name, value in changes.items() if name not in own}
    return {**others, "timings": before.model_copy(update=own)}


def changed(settings: Changed, **changes: Any) -> Changed:
    """Return settings with these changes."""
    arguments = arranged(changes, settings.timings)  # type: ignore[attr-defined]
    if is_dataclass(settings) and not isinstance(settings, type):
        return replace(settings, **arguments)
    return settings.model_copy(update=arguments)  # type: ignore[attr-defined, no-any-return]
