"""The recovery page names every sweep that runs, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from ostler.task_names import SWEEPS

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "recovery.md"


def test_every_sweep_has_its_line_in_the_table_of_what_can_go_wrong() -> None:
    text = PAGE.read_text()
    table = text[text.index("## Failures and repairs") : text.index("## Symptoms")]
    named = {name for line in table.splitlines() for name in re.findall(r"`([a-z_]+)`", "|".join(line.split("|")[2:3]))}
    assert named - {"pools"} == set(SWEEPS)
