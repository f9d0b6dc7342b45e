"""CPU use of the processes of a whole system, by kind of process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from benchmarks.proc import cpu, descendants
from lab.system import System

OURS = ("web", "worker", "beat", "watch")


def used(system: System) -> Mapping[str, float]:
    """Return the CPU seconds by kind of process. Replicas of one process are added up."""
    known = {child.pid: name.rpartition("-")[0] or name for name, child in system.children.items()}
    known |= {system.postgres.child.pid: "Postgres", system.redis.child.pid: "Redis"}
    found: Counter[str] = Counter()
    for pid in _children():
        found[known.get(pid) or _program(pid)] += cpu(pid)  # type: ignore[assignment]
    return found


def _children() -> list[int]:
    me = os.getpid()
    return [
        pid
        for pid in descendants(me)
        if pid != me and int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == me
    ]


def _program(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    name = Path(words[0]).name
    return "embedded API server" if name.startswith("python") else name
