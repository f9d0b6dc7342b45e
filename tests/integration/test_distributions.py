"""The two distributions: the product's wheel works without the lab, and has no switch that sabotages a run.

`test_compose` starts every process from these wheels: web, workers, beat, watch and Flower from the product's only.
"""

from __future__ import annotations

import email
import subprocess
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.distributions import ROOT, Wheels, build, install

ALONE = """
import importlib.util
assert importlib.util.find_spec("lab") is None
assert importlib.util.find_spec("pytest") is None
"""
IMPORT_ALL = """
import importlib, pkgutil, sys
for top in sys.argv[1:]:
    package = importlib.import_module(top)
    print(top)
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), f"{top}."):
        importlib.import_module(found.name)
        print(found.name)
"""
EXPLAIN_ALL = """
import sys
import typer
from typer.testing import CliRunner
from cli.app import app

def walk(command, path):
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield [*path, name]
            yield from walk(each, [*path, name])

for words in walk(typer.main.get_command(app), []):
    said = CliRunner().invoke(app, [*words, "--help"])
    assert said.exit_code == 0, (words, said.output)
    assert "Usage:" in said.output, (words, said.output)
    print(*words)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    return build(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def alone(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the product's wheel only."""
    return install(tmp_path_factory.mktemp("alone"), wheels.ostler)


def run(programs: Path, script: str, *arguments: str) -> list[str]:
    """Run a script with the Python of an environment, outside of the tree, and return the printed lines."""
    ran = subprocess.run(
        [programs / "python", "-I", "-W", "ignore", "-c", script, *arguments],
        cwd=programs,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def packages() -> set[str]:
    """Return the packages of the product, and its only module outside of packages."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return {name.rstrip("*") for name in found["packages"]["find"]["include"]} | set(found["py-modules"])


def in_tree(folder: str, *suffixes: str) -> set[str]:
    paths = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return {str(path) for path in paths if not path.is_relative_to("lab/build")}


def test_product_wheel_has_no_lab_and_no_sabotage(wheels: Wheels) -> None:
    assert {name.split("/")[0].removesuffix(".py") for name in modules(wheels.ostler)} == packages()
    with zipfile.ZipFile(wheels.ostler) as archive:
        assert [name for name in modules(wheels.ostler) if b"sabotage" in archive.read(name).lower()] == []


def test_wheels_have_every_module_and_file_that_runs(wheels: Wheels) -> None:
    suffixes = (".py", ".sh", ".yaml", ".html", ".css", ".js")
    product = {name for package in packages() for name in in_tree(package, *suffixes)} | {"beat_schedule.py"}
    assert product <= modules(wheels.ostler)
    assert in_tree("lab", ".py", ".sh", ".mod", ".sum") == modules(wheels.lab)


def test_lab_depends_on_this_version_of_the_product_and_not_the_reverse(wheels: Wheels) -> None:
    ostler, lab = metadata(wheels.ostler), metadata(wheels.lab)
    assert f"ostler=={ostler['Version']}" in lab.get_all("Requires-Dist", [])
    assert lab["Version"] == ostler["Version"]
    assert [each for each in ostler.get_all("Requires-Dist", []) if each.startswith("ostler")] == []


def test_every_module_of_the_product_imports_without_the_lab(alone: Path) -> None:
    imported = run(alone, ALONE + IMPORT_ALL, *sorted(packages()))
    assert {"web.server", "tasks.worker.processes", "tasks.worker.beat", "watch.process"} <= set(imported)
    assert packages() <= set(imported)


def test_every_command_explains_itself_without_the_lab(alone: Path) -> None:
    explained = run(alone, ALONE + EXPLAIN_ALL)
    assert {"web", "worker", "beat", "watch", "flower", "migrate", "pool list", "doctor"} <= set(explained)
    assert "demo" not in explained


@pytest.mark.parametrize("process", ["web", "worker", "beat", "watch"])
def test_processes_start_without_the_lab_as_far_as_their_settings(alone: Path, process: str) -> None:
    ran = subprocess.run([alone / "ostler", process], cwd=alone, env={}, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "OSTLER_REDIS_URL: it is not set" in ran.stderr
