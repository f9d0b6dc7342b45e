"""Programs of a running system that have ended, and their restart."""

from __future__ import annotations

from collections.abc import Mapping

from lab.processes import Child
from lab.system import System

IN_MEMORY = ("github", "kubernetes", "kubelet")
"""Prefixes of the names of programs that have the lab's state in memory, or that are proxies of such programs."""


def ended(system: System) -> Mapping[str, int]:
    """Return the exit status, by name, of ended programs that can be restarted: the stores and Ostler's processes."""
    programs = {name: child for name, child in _programs(system).items() if name.partition("-")[0] not in IN_MEMORY}
    return {name: child.status for name, child in programs.items() if child.status is not None}


def lost(system: System) -> str | None:
    """Describe an ended program that cannot be restarted, or return None if all of them are running.

    The lab's state is lost with such a program.
    """
    for name, child in system.children.items():
        if name.partition("-")[0] in IN_MEMORY and child.status is not None:
            return f"the lab's {name}"
    return None if system.cluster_runs() else "the cluster"


def start_again(system: System, name: str) -> None:
    """Restart one of the programs of `ended`. Raises `StartError` if a store does not start."""
    if name == "postgres":
        system.postgres.start()
    elif name == "redis":
        system.redis.start()
    else:
        system.restart(name)


def tail(system: System, name: str) -> str:
    """Return the last lines of a program's log."""
    return _programs(system)[name].tail()


def _programs(system: System) -> Mapping[str, Child]:
    return {"postgres": system.postgres.child, "redis": system.redis.child, **system.children}
