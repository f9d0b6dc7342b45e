"""Finding of a check: an outcome, a sentence with the cause, and a cure if the outcome is not ok."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.doctor.context import Context

WITHIN = 10.0
"""Default deadline of a check in seconds."""


class Outcome(StrEnum):
    """Outcome of a check. `unknown` means that the check could not run or had no evidence."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check function: the outcome, a sentence with the cause, and a cure if the outcome is not ok."""

    outcome: Outcome
    cause: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check, with the name and the family of the check."""

    name: str
    family: str
    outcome: Outcome
    cause: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One check. If its function raises or exceeds `within` seconds, its outcome is `unknown`."""

    name: str
    family: str
    run: Callable[[Context], Verdict]
    within: float = WITHIN


def ok(cause: str) -> Verdict:
    """Return the verdict of a successful check."""
    return Verdict(Outcome.OK, cause)


def warning(cause: str, cure: str) -> Verdict:
    """Return the verdict on something that works now but might fail later."""
    return Verdict(Outcome.WARNING, cause, cure)


def failed(cause: str, cure: str) -> Verdict:
    """Return the verdict on something that does not work."""
    return Verdict(Outcome.FAILED, cause, cure)


def unknown(cause: str, cure: str | None = None) -> Verdict:
    """Return the verdict of a check without a result."""
    return Verdict(Outcome.UNKNOWN, cause, cure)
