"""Changes by people and programs: their kinds, their authors, and the difference between two states of an object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class ChangeKind(StrEnum):
    """Kind of the changed object."""

    ACCOUNT = "account"
    GATE = "gate"
    JOB = "job"
    POOL = "pool"
    SWEEP = "sweep"
    TOKEN = "token"  # noqa: S105  the name of a kind


class Via(StrEnum):
    """Way of a change to Ostler."""

    API = "API"
    SHELL = "shell"
    DASHBOARD = "dashboard"
    CLUSTER = "cluster"
    OSTLER = "Ostler"


@dataclass(frozen=True, slots=True)
class Author:
    """Author of a change, and the time of the change.

    `who` is the name of an API token, an OS user, a field manager of the cluster, or a part of Ostler.
    """

    who: str
    via: Via
    at: datetime

    def __str__(self) -> str:
        return f"{self.who} ({self.via})"


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the old and the new values of the fields that differ. A field that is missing counts as None."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}


def in_words(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the old and the new values of the changed fields as one line of text."""
    return ", ".join(f"{name}: {_word(old.get(name))} → {_word(new[name])}" for name in sorted(new))


def in_short(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the change as `in_words`, or only the replicas and the image if a pool was created."""
    if not {"replicas", "image"} <= new.keys() or any(old.get(name) is not None for name in new):
        return in_words(old, new)
    return f"created: {new['replicas']} replicas, image {new['image']}"


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value)
