"""The clocks, in one place so that tests can bring their own.

Functions that compare times take `now`; only the outermost callers ask this module.
"""

from __future__ import annotations

from datetime import UTC, datetime


def utcnow() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)
