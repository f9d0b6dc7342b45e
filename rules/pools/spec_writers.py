"""Author of a change of a RunnerPool, from the field managers of its spec."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rules.changes import Via

FIELD_MANAGER = "ostler"
"""Ostler's name in the managed fields of objects. The API server takes this name from the header User-Agent.

Of the spec of a pool, Ostler's workers write only the replicas of an autoscaled pool.
"""

_MANAGERS = {Via.SHELL: "ostler-cli", Via.API: "ostler-api", Via.DASHBOARD: "ostler-dashboard"}
"""Begin of the field manager of a person's change, by the way of the change. The name of the person follows."""

UNKNOWN = "unknown"


def manager_of(who: str, via: Via) -> str:
    """Return the field manager of a change by a person. Kubernetes allows 128 printable characters."""
    return "".join(each for each in f"{_MANAGERS[via]}:{who}" if each.isprintable())[:128]


def is_ours(manager: str) -> bool:
    """Return True for the field manager of a worker of Ostler, or of a person who used Ostler."""
    return manager == FIELD_MANAGER or manager.startswith(tuple(f"{each}:" for each in _MANAGERS.values()))


def spec_writer(writers: Sequence[str], *, changed: Collection[str]) -> str | None:
    """Return who changed these fields of a pool, or None if the autoscaler made the change.

    `writers` are the field managers of the spec, the latest first. The object does not name the client that deleted it.
    """
    if "draining" in changed:
        return UNKNOWN
    if set(changed) == {"replicas"}:
        latest = writers[0] if writers else UNKNOWN
        return None if latest == FIELD_MANAGER else latest
    return next((each for each in writers if each != FIELD_MANAGER), UNKNOWN)
