"""Checks for programs of a running system that have ended, and restarts of those programs that can be restarted."""

from __future__ import annotations

from collections.abc import Mapping

from lab.processes import Child
from lab.system import System

IN_MEMORY = ("github", "kubernetes", "kubelet")
"""Name prefixes of the programs that cannot be restarted.

Each of these programs keeps state of the lab in memory, or is a proxy in front of such a program.
"""


def ended(system: System) -> Mapping[str, int]:
    """Return the exit status of each ended program that can be restarted, by name.

    These are the stores, Ostler's processes and the forward proxy.
    """
    programs = {name: child for name, child in _programs(system).items() if name.partition("-")[0] not in IN_MEMORY}
    return {name: child.status for name, child in programs.items() if child.status is not None}


def lost(system: System) -> str | None:
    """Return the name of the first ended program that cannot be restarted. Return None if all of them run."""
    for name, child in system.children.items():
        if name.partition("-")[0] in IN_MEMORY and child.status is not None:
            return f"the lab's {name}"
    return None if system.cluster_runs() else "the cluster"


def start_again(system: System, name: str) -> None:
    """Restart one of the programs that `ended` returned. Raises `StartError` if a store does not start."""
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
