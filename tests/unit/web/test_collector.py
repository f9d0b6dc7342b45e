"""The garbage collector of a web process."""

from __future__ import annotations

import subprocess
import sys

STORY = """
import gc
import web.app
from web.process.collector import settle
settle()
print(gc.get_freeze_count() > 100_000, len(gc.get_objects()) < 100_000)
"""


def test_objects_from_startup_are_not_scanned_again() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STORY], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True", "True"]
