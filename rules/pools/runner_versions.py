"""How long GitHub takes the version of a runner, and when that is to be told."""

from __future__ import annotations

from datetime import datetime, timedelta

SOON = timedelta(days=14)
"""GitHub refuses a version 30 days after a newer one came out: this is time for a new image."""


def warn(version: str, ends_at: datetime | None, *, now: datetime) -> str | None:
    """Return what is to be said of a version that GitHub refuses or soon will; None: nothing."""
    if ends_at is None or ends_at > now + SOON:
        return None
    day = f"{ends_at:%Y-%m-%d}"
    said = f"refuses runner {version} since {day}" if ends_at <= now else f"will refuse runner {version} from {day} on"
    return f"GitHub {said}; use an image with a newer runner"
