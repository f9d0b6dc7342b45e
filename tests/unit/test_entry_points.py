"""Imports of the processes of the image: none reads the deploy checks or the conversion of scale sets.

Only the commands `check-deploy`, `verify-deploy`, `doctor` and `pool convert` use these packages, when they run.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "ostler" / "templates"
COMMANDS_ONLY = ("deploys", "rules.conversion")
"""Packages for commands of people. They have 3,500 of the product's lines."""

ENTRIES = {
    "web": "cli/app.py",
    "worker": "cli/app.py",
    "beat": "cli/app.py",
    "watch": "cli/app.py",
    "flower": "cli/app.py",
    "healthy": "cli/app.py",
    "migrate": "cli/app.py",
    "crd": "cli/app.py",
    "pool": "cli/pool_changes.py",
    "hook": "cli/hook.py",
}
"""First words of the commands that the chart and the sidecar run, with the module of each command."""

FUNCTIONS = {"pool": "detach", "hook": "serve"}
"""Functions of the commands of two words."""

PROGRAM = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
if "tasks.worker.processes" in sys.argv:
    from tasks.worker.app import app
    app.loader.import_default_modules()
print(json.dumps(sorted(sys.modules)))
"""


def imports_of(command: str) -> set[str]:
    """Return the modules that the function of a command imports."""
    tree = ast.parse((ROOT / ENTRIES[command]).read_text())
    name = FUNCTIONS.get(command, command)
    (function,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
    found = {each.module for each in ast.walk(function) if isinstance(each, ast.ImportFrom) and each.module}
    return found | {alias.name for each in ast.walk(function) if isinstance(each, ast.Import) for alias in each.names}


def loaded(modules: set[str]) -> set[str]:
    """Return the modules that a new Python has after it imported the command line and these modules."""
    argv = [sys.executable, "-c", PROGRAM, "cli.app", *sorted(modules)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(said.stdout))


def for_commands_only(modules: set[str]) -> list[str]:
    """Return those of the modules that no process needs."""
    return sorted(name for name in modules if f"{name}.".startswith(tuple(f"{each}." for each in COMMANDS_ONLY)))


def test_every_process_of_the_chart_is_an_entry() -> None:
    templates = "\n".join(path.read_text() for path in [*CHART.glob("*.yaml"), *CHART.glob("*.tpl")])
    run = set(re.findall(r"^\s*args: \[(\w+)", templates, re.MULTILINE))
    run |= set(re.findall(r"command: \[ostler, (\w+)", templates))
    assert run | {"hook"} == set(ENTRIES)


def test_no_process_imports_packages_for_commands() -> None:
    found = loaded(set().union(*map(imports_of, ENTRIES)))
    assert {"web.app", "tasks.claims.mint", "watch.leader", "container_hooks.serve"} <= found
    assert for_commands_only(found) == []


def test_an_import_of_a_package_for_commands_is_found() -> None:
    assert "deploys.deploy_plan" in for_commands_only(loaded({"deploys.deploy_plan"}))
