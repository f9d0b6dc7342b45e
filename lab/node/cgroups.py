"""Control groups of a node: a root of its own for each run, removed when the run has ended.

The kernel cleans up everything of a killed run except its control groups. The name of a run's root therefore contains
the id and the start time of the process that made it. The next run removes the roots whose process is gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PREFIX = "ostler-lab-"
_MOUNTS = Path("/proc/self/mounts")
_SHARES = {"cpu.shares": 8 * 1024, "cpu.weight": 8 * 100}
_CPUSET = ("cpuset.cpus", "cpuset.mems")


def hierarchies() -> list[Path]:
    """Return the folders of the control-group hierarchies: one folder with version 2, several with version 1."""
    lines = (line.split() for line in _MOUNTS.read_text().splitlines())
    return [Path(where) for _, where, kind, *_ in lines if kind in {"cgroup", "cgroup2"}]


@contextlib.contextmanager
def own_root() -> Iterator[str]:
    """Remove the roots of killed runs, make a root for one run, and yield its name. Remove that root at the end."""
    remove_killed()
    name = f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}"
    make(name)
    _raise_share(name)
    try:
        yield name
    finally:
        for hierarchy in hierarchies():
            _remove(hierarchy / name)


def _raise_share(name: str) -> None:
    """Give all Pods together the CPU share of eight processes, because they compete with every other process."""
    for hierarchy in hierarchies():
        for file, share in _SHARES.items():
            if (hierarchy / name / file).exists():
                (hierarchy / name / file).write_text(str(share))


def make(name: str) -> None:
    """Make the control group `name` (a path below the root) in each hierarchy. It may exist already."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for file in _CPUSET:  # version 1 starts with empty sets, which take no process
            if (group / file).exists() and (group.parent / file).exists():
                (group / file).write_text((group.parent / file).read_text())


def members(name: str) -> set[int]:
    """Return the ids of all processes in the control group `name` and below it."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        for file in (hierarchy / name).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):  # the group was removed in between
                found.update(map(int, file.read_text().split()))
    return found


def remove_killed() -> int:
    """Remove the roots of runs whose process is gone. Return the number of removed folders."""
    found = 0
    for hierarchy in hierarchies():
        for folder in hierarchy.glob(f"{PREFIX}*"):
            if not is_used(folder):
                _remove(folder)
                found += 1
    return found


def is_used(root: Path, *, prefix: str = PREFIX) -> bool:
    """Return whether the process that made this root exists. Also return True for a folder that no run has made."""
    pid, _, started = root.name.removeprefix(prefix).partition("-")
    return not pid.isdigit() or start_time(int(pid)) == started


def start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, or an empty string if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _remove(folder: Path) -> None:
    """Remove a control group and those below it. A group that still has processes stays for the next run."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(path).rmdir()
