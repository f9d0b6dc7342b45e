"""Kills of workers at halting points (`ostler.halt`) of a running system."""

from __future__ import annotations

from pathlib import Path

from lab.system import System
from tests.waiting import eventually


def make_halts(folder: Path) -> Path:
    """Create the folder of the halting points in a folder, and return it. It is the value of `OSTLER_HALT_DIR`."""
    for name in ("armed", "halted"):
        (folder / "halts" / name).mkdir(parents=True)
    return folder / "halts"


def kill_worker_at(system: System, halts: Path, point: str, *, within: float) -> None:
    """Kill the next worker that reaches a halting point, and start another in its place."""
    (halts / "armed" / point).touch()
    found = eventually(
        lambda: next((halts / "halted").glob(f"{point}.*"), None), within=within, what=f"a worker at {point}"
    )
    pid = found.suffix.removeprefix(".")
    found.unlink()
    name = next(name for name, child in system.children.items() if str(child.pid) == pid)
    system.children[name].kill()
    system.restart(name)
