"""Archives of container images in the format of `docker save`, written to the lab's cache in one rename."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.processes import StartError

_KEPT = 4
"""Number of files of one kind that stay in the cache, for clones that differ."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image to be made: `layers` are tar files, the lowest first."""

    name: str
    layers: Sequence[Path]
    entrypoint: Sequence[str]
    command: Sequence[str] = ()
    """Arguments of the entry point, if a container is started without arguments of its own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_directory: str = "/"


def write_archive(image: Image, partial: Path, target: Path) -> Path:
    """Write the archive of an image to a temporary file, and rename it to `target`."""
    diffs = [file_digest(layer) for layer in image.layers]
    config = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": list(image.entrypoint),
                "Cmd": list(image.command),
                "Env": [f"{name}={value}" for name, value in image.environment.items()],
                "User": image.user,
                "WorkingDir": image.working_directory,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}" for diff in diffs]},
        },
        sort_keys=True,
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{diff}/layer.tar" for diff in diffs]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [image.name], "Layers": names}])
    with tarfile.open(partial, "w") as tar:
        for layer, name in zip(image.layers, names, strict=True):
            tar.add(layer, arcname=name)
        add_text(tar, config_name, config.decode())
        add_text(tar, "manifest.json", manifest)
    return publish(partial, target)


def publish(partial: Path, target: Path) -> Path:
    """Move a complete file to its name in the cache, and delete all but the newest few files of the same kind.

    Each change of the sources makes another file of hundreds of megabytes. Return the target.
    """
    partial.rename(target)
    kind = target.name.rpartition("-")[0]
    same = [path for path in target.parent.glob(f"{kind}-*{target.suffix}") if path.name.rpartition("-")[0] == kind]
    for old in sorted(same, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        old.unlink(missing_ok=True)
    return target


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def add_file(tar: tarfile.TarFile, path: Path, name: str, *, mode: int) -> None:
    """Add a file, owned by root."""
    info = tarfile.TarInfo(name)
    info.size = path.stat().st_size
    info.mode = mode
    with path.open("rb") as content:
        tar.addfile(info, content)


def add_folder(tar: tarfile.TarFile, name: str, *, owner: int, mode: int = 0o755) -> None:
    """Add an empty folder, owned by the user and group `owner`."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, owner, owner
    tar.addfile(info)


def add_text(tar: tarfile.TarFile, name: str, content: str) -> None:
    """Add a file with this content, owned by root, with the permissions 0644."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content.encode()), 0o644
    tar.addfile(info, io.BytesIO(content.encode()))


def digest(*content: bytes) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of the contents, each preceded by its length."""
    found = hashlib.sha256()
    for each in content:
        found.update(len(each).to_bytes(8, "big") + each)
    return found.hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class FolderFor:
    """A temporary folder beside a file of the cache. The complete file is moved out of it; the folder is removed."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Path:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="making-", dir=self._target.parent))
        return self._folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def run_program(command: Sequence[str], *, cwd: Path, missing: str) -> None:
    """Run a program.

    Raises `StartError` with the text `missing` if the program is not installed, or with the last lines of its output if
    it fails.
    """
    if shutil.which(command[0]) is None:
        raise StartError(f"{command[0]} was not found, and the node's images need it: install {missing}")
    done = subprocess.run(list(command), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise StartError(f"{command[0]} failed with status {done.returncode}: {' / '.join(last)}")
