"""The page about the lab's GitHub lists its control interface."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, cast

from lab.github.control import Control
from lab.github.faults import Fault
from lab.github.sender import Weather

PAGE = (Path(__file__).parents[4] / "docs" / "github-for-tests.md").read_text()


def test_page_lists_every_control_route() -> None:
    nothing: Any = None
    routes = Control(world=nothing, sender=nothing, identity=nothing, limits=nothing).routes()
    methods = {
        (next(iter(cast("set[str]", each.methods) - {"HEAD"})), each.path.replace(":int", "")) for each in routes
    }
    assert set(re.findall(r"^\| `([A-Z]+) (/_lab/\S+)` \|", PAGE, re.MULTILINE)) == methods


def test_page_names_every_field_of_faults_and_webhooks() -> None:
    names = {each.name for kind in (Fault, Weather) for each in dataclasses.fields(kind)} - {"hits"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
