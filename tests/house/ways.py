"""The packages that a claim crosses from the webhook to the delivery, and a pool from its change to the first Pod.

A package counts if one of its functions was executed in one traced run of the whole system with one pool and one job.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lab.bootstrap import LabPool
from lab.system import Options, System
from tests.fleet import LABELS, Fleet

TREE = Path(__file__).resolve().parents[2]
TRACE = Path(__file__).parent / "trace"


def ways() -> dict[str, list[str]]:
    """Run one job, and return the packages of the ways "claim" and "pool"."""
    with tempfile.TemporaryDirectory(prefix="ostler-house-") as folder:
        record = Path(folder) / "record"
        record.mkdir()
        environment = {  # no name begins with OSTLER_, because the watch gets only some of these
            "PYTHONPATH": os.pathsep.join([str(TRACE), str(TREE)]),
            "HOUSE_TREE": str(TREE),
            "HOUSE_RECORD": str(record),
        }
        options = Options(pools=[LabPool("small", LABELS, 1)], beats=1, environment=environment)
        with System(Path(folder) / "run", options, say=lambda _line: None, cluster="embedded") as system:
            fleet = Fleet(system)
            system.wait_for_warm_pods(1, timeout=120)
            pool = _crossed(record, "pool")
            [job] = fleet.send()
            fleet.wait_for(job, "in_progress")
            return {"claim": _crossed(record, "claim"), "pool": pool}


def _crossed(record: Path, way: str) -> list[str]:
    """Return the packages of a way, each with its modules."""
    lines = {tuple(line.split()) for path in record.iterdir() for line in path.read_text().splitlines()}
    found: dict[str, list[str]] = {}
    for each, package, module in sorted(lines):
        if each == way:
            found.setdefault(package, []).append(module)
    return [f"{package}: {', '.join(modules)}" for package, modules in found.items()]
