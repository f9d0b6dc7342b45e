"""Both wheels, built as in the image's Dockerfile, and environments with one of them or both.

An environment has exactly the packages that `requirements/runtime.txt` pins, as links into the tests' own environment.
Nothing is downloaded, and a package that an image would lack is missing here too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
"""Files that a build or an editable install leaves in the tree."""


@dataclass(frozen=True, slots=True)
class Wheels:
    """The wheel of the product and the wheel of the lab."""

    ostler: Path
    lab: Path


def copied() -> list[str]:
    """Return the paths that the Dockerfile copies from the tree, in its order."""
    dockerfile = (ROOT / "compose" / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--)(.+)$", dockerfile, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def pins(name: str) -> set[str]:
    """Return the pins of a file in `requirements/`."""
    return set(re.findall(r"^([^\s;]+==[^\s;]+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))


def build(folder: Path) -> Wheels:
    """Build both wheels in `folder`, from a copy of the files that the image is built from."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=_LEFT_OUT)
        else:
            shutil.copy(ROOT / name, source)
    command = [*_PIP, "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir=dist"]
    subprocess.run([*command, ".", "./lab"], cwd=source, check=True)
    (ostler,) = (source / "dist").glob("ostler-*.whl")
    (lab,) = (source / "dist").glob("ostler_lab-*.whl")
    return Wheels(ostler, lab)


def install(folder: Path, *wheels: Path) -> Path:
    """Create an environment with the pinned packages and these wheels, and return the folder of its programs."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for pin in pins("runtime.txt"):
        with suppress(PackageNotFoundError):  # of another Python or another system
            _link(pin.partition("==")[0].partition("[")[0], site)
    programs = folder / "bin"
    command = [*_PIP, f"--python={programs / 'python'}", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, *wheels], cwd=folder, check=True)
    return programs


def _link(name: str, site: Path) -> None:
    """Link the modules and the metadata of an installed package into another environment."""
    found = distribution(name)
    for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(found.locate_file(top))))
