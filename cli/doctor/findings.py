"""Finding of a check: an outcome, the cause in a sentence, and the cure if it is not ok."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.doctor.context import Context

WITHIN = 10.0
"""Seconds that a check may take, unless it says otherwise."""


class Outcome(StrEnum):
    """What a check found; `unknown`: it could not look, or nobody can tell."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is, in one sentence, and what to do where it is not ok."""

    outcome: Outcome
    cause: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    family: str
    outcome: Outcome
    cause: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One check. It may raise or take for ever: that is `unknown`, and stops no other."""

    name: str
    family: str
    run: Callable[[Context], Verdict]
    within: float = WITHIN


def ok(cause: str) -> Verdict:
    """Return that all is well."""
    return Verdict(Outcome.OK, cause)


def warning(cause: str, cure: str) -> Verdict:
    """Return that it works, and will not always."""
    return Verdict(Outcome.WARNING, cause, cure)


def failed(cause: str, cure: str) -> Verdict:
    """Return that something does not work."""
    return Verdict(Outcome.FAILED, cause, cure)


def unknown(cause: str, cure: str | None = None) -> Verdict:
    """Return that it cannot be told."""
    return Verdict(Outcome.UNKNOWN, cause, cure)
