"""Runner version in the tag of an image, end of support of a version at GitHub, and the warning before the end."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

SOON = timedelta(days=14)
"""Time before the end of support at which the warning starts.

GitHub refuses a version 30 days after the release of the next version.
"""

_VERSION = re.compile(r"(?:^|/)[a-z0-9._-]*actions-runner[a-z0-9._-]*:v?(\d+\.\d+\.\d+)(?:[-@]|$)")


def version_of(image: str) -> str | None:
    """Return the runner version in the tag of an image whose name contains `actions-runner`. Otherwise return None."""
    found = _VERSION.search(image)
    return None if found is None else found[1]


def warn(version: str, ends_at: datetime | None, *, now: datetime) -> str | None:
    """Return the warning about a version that GitHub refuses now or soon, or None if no warning is due."""
    if ends_at is None or ends_at > now + SOON:
        return None
    day = f"{ends_at:%Y-%m-%d}"
    refuses = ends_at <= now
    said = f"has refused runner {version} since {day}" if refuses else f"will refuse runner {version} from {day} on"
    return f"GitHub {said}; use an image with a newer runner"
