"""Layers of the product's image: a virtual environment with the locked packages, and this repository's own wheels.

The layers have the contents that `compose/Dockerfile` gives them, but no container engine is needed. uv installs the
wheels into a folder of this machine. The first lines of the scripts and the links to Python name the folder in the
image.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.go_build import Say, cache_folder, quiet
from lab.node.archive import FolderFor, add_text, digest, publish, run_program

ENVIRONMENT = "/opt/ostler"
"""Folder of the virtual environment in the image."""

PYTHON = "3.11"
"""Python of the Debian suite that the images are made of."""

FULL_PYTHON = "3.11.2"
"""`PYTHON` with its patch level. The locked packages depend on it: redis needs one more package before 3.11.3."""

SOURCES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "beat_schedule.py",
    "ostler",
    "cli",
    "watch",
    "tasks",
    "models",
    "k8s_adapters",
    "github_adapters",
    "container_hooks",
    "rules",
    "deploys",
    "web",
    "poller",
)
"""Sources of the product's wheel, which `compose/Dockerfile` copies too."""

UNUSED = "kubernetes/aio"
"""Package that Ostler never imports: a second, asynchronous Kubernetes client of 65 MB."""

_REPOSITORY = Path(__file__).parents[2]
_IGNORED = ("__pycache__", "build", "*.egg-info")
_SCRIPT_OF_UV = re.compile(rb"\A#!(/bin/sh\n'''exec' [^\n]*\n' '''|[^\n]*python[^\n]*)\n")


def packages_layer(say: Say = quiet) -> Path:
    """Return the layer with the environment and its locked packages, made if it is not cached. Raises `StartError`."""
    locked = _REPOSITORY / "requirements" / "runtime.txt"
    target = (
        cache_folder("images") / f"packages-{digest(locked.read_bytes(), FULL_PYTHON.encode(), UNUSED.encode())}.tar"
    )
    if target.exists():
        return target
    say("images: installing the product's locked packages, about a minute, once")
    with FolderFor(target) as folder:
        _install(["--require-hashes", "--requirements", str(locked)], folder)
        shutil.rmtree(folder / "prefix" / "lib" / f"python{PYTHON}" / "site-packages" / UNUSED)
        return _pack(folder, target, with_python=True)


def product_layer(say: Say = quiet) -> Path:
    """Return the layer with the product's wheel, made if it is not cached. Raises `StartError`."""
    return _wheel_layer("product", [_REPOSITORY / each for each in SOURCES], say)


def lab_layer(say: Say = quiet) -> Path:
    """Return the layer with the lab's wheel, made if it is not cached. Raises `StartError`."""
    return _wheel_layer("lab", sorted((_REPOSITORY / "lab").iterdir()), say)


def _wheel_layer(name: str, sources: Sequence[Path], say: Say) -> Path:
    """Build the wheel of copied sources, because a build in the repository would leave files there."""
    target = cache_folder("images") / f"wheel-{name}-{digest(PYTHON.encode(), *_contents(sources))}.tar"
    if target.exists():
        return target
    say(f"images: building the wheel of the {name}")
    with FolderFor(target) as folder:
        tree, wheels = folder / "source", folder / "wheels"
        tree.mkdir()
        for each in sources:
            if each.is_dir():
                shutil.copytree(each, tree / each.name, ignore=shutil.ignore_patterns(*_IGNORED))
            else:
                shutil.copy(each, tree)
        build = ["build", "--quiet", "--wheel", "--no-build-isolation", f"--python={sys.executable}"]
        _uv([*build, f"--out-dir={wheels}", str(tree)], folder)
        _install(["--no-index", *map(str, wheels.glob("*.whl"))], folder)
        return _pack(folder, target, with_python=False)


def _contents(sources: Sequence[Path]) -> Iterator[bytes]:
    """Yield the relative path and the content of each file, in a fixed order."""
    for source in sources:
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            parts = path.relative_to(_REPOSITORY).parts
            if path.is_file() and not any(part in _IGNORED or part.endswith(".egg-info") for part in parts):
                yield "/".join(parts).encode()
                yield path.read_bytes()


def _uv(arguments: Sequence[str], folder: Path) -> None:
    program = str(Path(sys.executable).with_name("uv"))
    run_program([program, *arguments], cwd=folder, missing="the development packages (make setup)")


def _install(what: Sequence[str], folder: Path) -> None:
    """Install wheels into `folder / "prefix"`: nothing is compiled from source, so that no compiler is needed."""
    same = sys.version_info[:2] == tuple(map(int, PYTHON.split(".")))
    arguments = [
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--compile-bytecode",
        "--link-mode=copy",
        f"--python={sys.executable if same else PYTHON}",
        f"--python-version={FULL_PYTHON}",
        f"--prefix={folder / 'prefix'}",
    ]
    _uv([*arguments, *what], folder)


def _pack(folder: Path, target: Path, *, with_python: bool) -> Path:
    """Write the layer with the files in `folder / "prefix"`."""
    layer = folder / "layer.tar"
    inside = ENVIRONMENT.removeprefix("/")
    with tarfile.open(layer, "w") as tar:
        if with_python:
            settings = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
            add_text(tar, f"{inside}/pyvenv.cfg", settings)
            for name in ("python", "python3", f"python{PYTHON}"):
                link = tarfile.TarInfo(f"{inside}/bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, f"/usr/bin/python{PYTHON}"
                tar.addfile(link)
        for path in sorted((folder / "prefix").rglob("*")):
            if path.is_file() and path.name != ".lock":
                _add_installed(tar, path, f"{inside}/{path.relative_to(folder / 'prefix')}")
    return publish(layer, target)


def _add_installed(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file with its time, which compiled code is checked against. A script gets the image's Python."""
    content = path.read_bytes()
    if path.parent.name == "bin":
        content = _SCRIPT_OF_UV.sub(f"#!{ENVIRONMENT}/bin/python\n".encode(), content)
    info = tarfile.TarInfo(name)
    info.size, info.mtime = len(content), int(path.stat().st_mtime)
    info.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    tar.addfile(info, io.BytesIO(content))
