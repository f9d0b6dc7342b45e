"""End of support of a runner version at GitHub, and the warning before the end."""

from __future__ import annotations

from datetime import datetime, timedelta

SOON = timedelta(days=14)
"""Time before the end of support at which the warning starts.

GitHub refuses a version 30 days after the release of the next version.
"""


def warn(version: str, ends_at: datetime | None, *, now: datetime) -> str | None:
    """Return the warning about a version that GitHub refuses now or soon, or None if no warning is due."""
    if ends_at is None or ends_at > now + SOON:
        return None
    day = f"{ends_at:%Y-%m-%d}"
    refuses = ends_at <= now
    said = f"has refused runner {version} since {day}" if refuses else f"will refuse runner {version} from {day} on"
    return f"GitHub {said}; use an image with a newer runner"
