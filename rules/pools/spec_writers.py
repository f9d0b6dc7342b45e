"""Author of a change of a RunnerPool, from the field managers of its spec."""

from __future__ import annotations

from collections.abc import Collection, Sequence

FIELD_MANAGER = "ostler"
"""Ostler's name in the managed fields of objects. The API server takes this name from the header User-Agent.

Of the spec of a pool, Ostler's workers write only the replicas of an autoscaled pool.
"""

SHELL_MANAGER = "ostler-cli"
"""Begin of the field manager of the commands. The name of the OS user follows."""

UNKNOWN = "unknown"


def shell_manager(user: str) -> str:
    """Return the field manager of the commands of an OS user. Kubernetes allows 128 printable characters."""
    return "".join(each for each in f"{SHELL_MANAGER}:{user}" if each.isprintable())[:128]


def is_ours(manager: str) -> bool:
    """Return True for the field manager of a worker or a command of Ostler."""
    return manager == FIELD_MANAGER or manager.startswith(f"{SHELL_MANAGER}:")


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
