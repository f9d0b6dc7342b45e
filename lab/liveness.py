"""Programs of a running system that have ended, and those of them that can be started again."""

from __future__ import annotations

from collections.abc import Mapping

from lab.processes import Child
from lab.system import System

IN_MEMORY = ("github", "kubernetes", "kubelet")
"""What the names begin with of those that keep the lab's world in memory, or stand before one that does."""


def ended(system: System) -> Mapping[str, int]:
    """Return, by name, the exit status of ended programs that can come back: the stores and Ostler's processes."""
    programs = {name: child for name, child in _programs(system).items() if name.partition("-")[0] not in IN_MEMORY}
    return {name: child.status for name, child in programs.items() if child.status is not None}


def lost(system: System) -> str | None:
    """Return in words what has ended and cannot come back, as the lab's world went with it; None while all live."""
    for name, child in system.children.items():
        if name.partition("-")[0] in IN_MEMORY and child.status is not None:
            return f"the lab's {name}"
    return None if system.cluster_runs() else "the cluster"


def start_again(system: System, name: str) -> None:
    """Start one of `ended` again; `StartError` where a store does not come up."""
    if name == "postgres":
        system.postgres.start()
    elif name == "redis":
        system.redis.start()
    else:
        system.restart(name)


def tail(system: System, name: str) -> str:
    """Return the last lines that a program wrote."""
    return _programs(system)[name].tail()


def _programs(system: System) -> Mapping[str, Child]:
    return {"postgres": system.postgres.child, "redis": system.redis.child, **system.children}
