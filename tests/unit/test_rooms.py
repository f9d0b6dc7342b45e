"""Rooms: few modules are outside of rooms, every room is on the map, and the import contracts name every package."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAT = {"rules": 12, "models": 12, "tasks": 12, "web": 2}
"""Floors, each with the greatest number of modules outside of its rooms."""
FLOORS = tuple(FLAT)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def rooms_of(floor: str) -> set[str]:
    """Return the packages inside a floor."""
    return {path.parent.name for path in (ROOT / floor).glob("*/__init__.py")}


def drawn() -> Mapping[str, set[str]]:
    """Return the rooms of each floor on the map: those with an entry in their cell."""
    _, _, table = (ROOT / "docs" / "architecture.md").read_text().partition("\n| room | ")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n\n")[0].splitlines()]
    floors = [re.sub(r"[`/]", "", cell) for cell in rows[0]]
    found: dict[str, set[str]] = {floor: set() for floor in floors}
    for row in rows[2:]:
        for floor, cell in zip(floors, row[1:], strict=True):
            if cell:
                found[floor] |= set(re.findall(r"\*\*(\w+)\*\*", row[0]))
    return found


@pytest.mark.parametrize("floor", FLOORS)
def test_few_modules_of_a_floor_stand_in_no_room(floor: str) -> None:
    flat = {path.name for path in (ROOT / floor).glob("*.py")} - {"__init__.py"}
    assert len(flat) <= FLAT[floor], sorted(flat)


@pytest.mark.parametrize("floor", FLOORS)
def test_map_has_the_rooms_of_each_floor(floor: str) -> None:
    assert drawn()[floor] == rooms_of(floor)


def test_contracts_of_imports_name_every_package_with_modules() -> None:
    packages = {name.rstrip("*") for name in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    with_modules = {name for name in packages if {path.name for path in (ROOT / name).rglob("*.py")} - {"__init__.py"}}
    assert with_modules <= set(PYPROJECT["tool"]["importlinter"]["root_packages"])


def test_contract_of_the_lab_names_every_package_of_the_product() -> None:
    packages = {name.rstrip("*") for name in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    (ours,) = (each for each in contracts if "lab" in each.get("forbidden_modules", []))
    assert set(ours["source_modules"]) == packages


@pytest.mark.parametrize(
    ("module", "ours"), [("beat_schedule.py", ("ostler.task_names",)), ("ostler/task_names.py", ())]
)
def test_schedule_and_table_of_tasks_import_only_the_standard_library(module: str, ours: tuple[str, ...]) -> None:
    imports = [node for node in ast.walk(ast.parse((ROOT / module).read_text())) if isinstance(node, ast.Import)]
    origins = [node for node in ast.walk(ast.parse((ROOT / module).read_text())) if isinstance(node, ast.ImportFrom)]
    named = {alias.name for node in imports for alias in node.names}
    named |= {f"{node.module}.{alias.name}" for node in origins for alias in node.names}
    assert {n for n in named if n.split(".")[0] not in sys.stdlib_module_names and not n.startswith(ours)} == set()
