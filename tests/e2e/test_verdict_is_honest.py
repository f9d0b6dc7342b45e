"""The demo's verdict is honest: if the lab's GitHub makes one error, the demo reports it and ends with status 1."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from lab.control_plane import ClusterAccess

pytestmark = pytest.mark.timeout(600)

GIVES_UP_AFTER = {"run-twice": 300, "lose-job": 30}
"""Seconds until a demo stops to wait for a lost job. The other demo ends by itself."""

DEMO = """
import os
from lab.demo import run
run.LONGEST = float(os.environ["GIVES_UP_AFTER"])
raise SystemExit(run.run_demo(jobs=40, cluster=os.environ["CLUSTER"], seed=1))
"""
FOLDER = re.compile(r"the logs of this run are in\s+(\S+)")

SAYS = {
    "run-twice": "was executed on 2 runners",
    "lose-job": "is still queued",
}


@pytest.mark.parametrize("sabotage", SAYS)
def test_a_github_that_lies_once_makes_the_demo_fail_and_say_why(sabotage: str, control_plane: ClusterAccess) -> None:
    kind = "embedded" if control_plane.embedded else "real"  # the demo starts its own
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}

    done = subprocess.run(
        [sys.executable, "-c", DEMO],
        env=env
        | {
            "CLUSTER": kind,
            "LAB_SABOTAGE": sabotage,
            "GIVES_UP_AFTER": str(GIVES_UP_AFTER[sabotage]),
            "COLUMNS": "200",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=560,
    )

    assert done.returncode == 1, done.stdout
    assert SAYS[sabotage] in done.stdout
    assert "not every job completed exactly once" in done.stdout
    for folder in FOLDER.findall(done.stdout):
        shutil.rmtree(folder)
