"""Record the modules whose functions a process executes on the ways of `WAYS`. Python imports this file at start.

`tests.house.ways` puts this folder on PYTHONPATH and names the folder of the records. A record is a line
`way package module`. A function is on a way while a function of one of the way's entries is on its thread's stack.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

TREE = Path(os.environ["HOUSE_TREE"]).resolve()
RECORD = Path(os.environ["HOUSE_RECORD"]) / str(os.getpid())
WAYS = {
    "claim": (
        "web/intake/",
        "web/runners/",
        "tasks/claims/dispatch.py",
        "tasks/claims/stamp.py",
        "tasks/claims/mint.py",
    ),
    "pool": ("watch/", "tasks/pools/mirror_pools.py", "tasks/pools/reconcile.py"),
}
OPTIMIZED = 0x1
"""Code flag of a function. The code of a module or of a class lacks it, because an import is not part of a way."""

_places: dict[str, tuple[str, tuple[str, ...]]] = {}
"""By file: its package and module, and the ways that it begins."""

_seen: set[tuple[str, str]] = set()
_depths = threading.local()


def _place(file: str) -> tuple[str, tuple[str, ...]]:
    """Return the package and the module of a file, "" outside the tree, and the ways that the file begins."""
    path = Path(file)
    if not path.is_relative_to(TREE) or ".venv" in path.parts:
        return "", ()
    inside = path.relative_to(TREE)
    begins = tuple(way for way, entries in WAYS.items() if str(inside).startswith(entries))
    return f"{inside.parent} {inside.stem}", begins


def _profile(frame: FrameType, event: str, _argument: Any) -> None:
    code = frame.f_code
    if event not in {"call", "return"} or not code.co_flags & OPTIMIZED:
        return
    place = _places.get(code.co_filename)
    if place is None:
        place = _places[code.co_filename] = _place(code.co_filename)
    module, begins = place
    depths = _depths.__dict__
    for way in begins:
        depths[way] = depths.get(way, 0) + (1 if event == "call" else -1)
    if event == "call" and module:
        for way, depth in list(depths.items()):
            if depth > 0 and (way, module) not in _seen:
                _seen.add((way, module))
                with RECORD.open("a") as record:
                    record.write(f"{way} {module}\n")


threading.setprofile(_profile)
sys.setprofile(_profile)
