"""CPU and memory of processes, as Linux counts them."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Indexes of the fields of /proc/<pid>/stat after the name in brackets, from 0.
_PARENT, _USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM = 1, 11, 12, 13, 14
_IDLE = (3, 4)  # indexes in the first line of /proc/stat: idle, and waiting for a disk
_GUEST = 8  # user time already includes guest time


def cpu_of(pids: Iterable[int]) -> float:
    """Return the seconds of CPU that processes used since they began, with those of children that have ended."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended, and its parent counts its CPU time
            found = _stat(pid)
            total += sum(int(found[each]) for each in (_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM))
    return total / _TICKS


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process and all its descendants."""
    return cpu_of(descendants(pid))


def descendants(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                children[int(_stat(int(entry.name))[_PARENT])].append(int(entry.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found


def memory(pid: int) -> tuple[float, float]:
    """Return the resident and the proportional set size of a process in MiB."""
    sizes = {"Rss:": 0, "Pss:": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, *rest = line.split()
        if name in sizes:
            sizes[name] = int(rest[0])
    return sizes["Rss:"] / 1024, sizes["Pss:"] / 1024


def machine_cpu() -> float:
    """Return the seconds of CPU that the machine has spent working, all cores together."""
    times = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1 : 1 + _GUEST]]
    return (sum(times) - sum(times[each] for each in _IDLE)) / _TICKS


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
