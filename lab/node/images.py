"""Container images of the node, made on this machine: nothing is pulled.

An image is an archive in the format of `docker save`, with one or two layers. The base layer is a small Debian root
made by mmdebstrap. The cache keeps each image under a hash of its contents.
"""

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

from lab.go_build import Say, cache_folder, quiet
from lab.processes import StartError

PAUSE = "lab.ostler.dev/pause:1"
"""The image that holds the namespaces of each Pod."""

_RUNNER_USER = 1001
_SUITE = "bookworm"
_PACKAGES = ("ca-certificates", "curl", "git", "python3-minimal", "python3", "procps")
_PAUSE_PROGRAM = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) {
    signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, reap);
    for (;;) pause();
}
"""
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image to be made: `layers` are tar files, the lowest first."""

    name: str
    layers: Sequence[Path]
    entrypoint: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_directory: str = "/"


def pause_image(say: Say = quiet) -> Path:
    """Return the archive of the pause image, made first if it is not cached. Raises `StartError`."""
    target = cache_folder("images") / f"pause-{_digest(_PAUSE_PROGRAM.encode())}.tar"
    if target.exists():
        return target
    say("images: compiling pause")
    with _FolderFor(target) as folder:
        (folder / "pause.c").write_text(_PAUSE_PROGRAM)
        _run(["gcc", "-static", "-Os", "-o", "pause", "pause.c"], cwd=folder, missing="a C compiler (Debian: gcc)")
        layer = folder / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            _add(tar, folder / "pause", "pause", mode=0o555)
        image = Image(name=PAUSE, layers=[layer], entrypoint=["/pause"], user="65535:65535")
        return _write(image, folder / "image.tar", target)


def runner_image(name: str, say: Say = quiet) -> Path:
    """Return the archive of the reference runner image over a stand-in base, under `name`. Raises `StartError`.

    The base has what GitHub's `actions-runner` image has and Ostler needs: a shell, curl, user 1001 with the home
    `/home/runner`, and the lab's runner as `run.sh` there. The three scripts of `poller/` are added to it as
    `poller/Dockerfile` does.
    """
    files = {
        "opt/ostler/poll.sh": _REPOSITORY / "poller" / "poll.sh",
        "opt/ostler/run.sh": _REPOSITORY / "poller" / "run.sh",
        "opt/ostler/job-started.sh": _REPOSITORY / "poller" / "job-started.sh",
        "home/runner/run.sh": _REPOSITORY / "lab" / "kubelet" / "runner" / "run.sh",
        "home/runner/runner.py": _REPOSITORY / "lab" / "kubelet" / "runner" / "runner.py",
    }
    content = [name.encode(), *(path.read_bytes() for path in files.values()), *map(str.encode, _PACKAGES)]
    target = cache_folder("images") / f"runner-{_digest(*content)}.tar"
    if target.exists():
        return target
    base = debian_base(say)
    say("images: packing the runner image")
    with _FolderFor(target) as folder:
        layer = folder / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            _add_folder(tar, "home/runner", owner=_RUNNER_USER)
            for inside, path in files.items():
                _add(tar, path, inside, mode=0o555)
            passwd = f"root:x:0:0:root:/root:/bin/sh\nrunner:x:{_RUNNER_USER}:{_RUNNER_USER}::/home/runner:/bin/bash\n"
            _add_text(tar, "etc/passwd", passwd)
            _add_text(tar, "etc/group", f"root:x:0:\nrunner:x:{_RUNNER_USER}:\n")
        image = Image(
            name=name,
            layers=[base, layer],
            entrypoint=["/opt/ostler/run.sh"],
            environment={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "ACTIONS_RUNNER_HOOK_JOB_STARTED": "/opt/ostler/job-started.sh",
                "OSTLER_RUNNER_HOME": "/home/runner",
            },
            user=str(_RUNNER_USER),
            working_directory="/home/runner",
        )
        return _write(image, folder / "image.tar", target)


def debian_base(say: Say = quiet) -> Path:
    """Return the tar file of a small Debian root, made by mmdebstrap if it is not cached. Raises `StartError`.

    `OSTLER_LAB_DEBIAN_SOURCES` names an apt sources file or a mirror. If it is empty, mmdebstrap uses this
    machine's own sources of that suite, or the public mirror if this machine is no such Debian.
    """
    target = _base_path()
    if target.exists():
        return target
    say(f"images: making a Debian {_SUITE} root with mmdebstrap, about a minute, once")
    with _FolderFor(target) as folder:
        tar = folder / "root.tar"
        command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", "--quiet", _SUITE, str(tar)]
        _run([*command, *_debian_sources()], cwd=folder, missing="mmdebstrap (Debian package mmdebstrap)")
        tar.rename(target)
    return target


def base_is_cached() -> bool:
    """Return whether the Debian root was already made."""
    return _base_path().exists()


def _base_path() -> Path:
    return cache_folder("images") / f"debian-{_SUITE}-{_digest(' '.join(_PACKAGES).encode())}.tar"


def _debian_sources() -> list[str]:
    named = os.environ.get("OSTLER_LAB_DEBIAN_SOURCES")
    if named:
        return [named]
    own = Path("/etc/apt/sources.list.d/debian.sources")
    return [str(own)] if own.exists() and _SUITE in own.read_text() else []


def _write(image: Image, partial: Path, target: Path) -> Path:
    """Write the archive of an image and move it to `target`, whole."""
    diffs = [_file_digest(layer) for layer in image.layers]
    config = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": list(image.entrypoint),
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
        _add_text(tar, config_name, config.decode())
        _add_text(tar, "manifest.json", manifest)
    partial.rename(target)
    return target


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _add(tar: tarfile.TarFile, path: Path, name: str, *, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = path.stat().st_size
    info.mode = mode
    with path.open("rb") as content:
        tar.addfile(info, content)


def _add_folder(tar: tarfile.TarFile, name: str, *, owner: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, 0o755, owner, owner
    tar.addfile(info)


def _add_text(tar: tarfile.TarFile, name: str, content: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content.encode()), 0o644
    tar.addfile(info, io.BytesIO(content.encode()))


def _digest(*content: bytes) -> str:
    found = hashlib.sha256()
    for each in content:
        found.update(len(each).to_bytes(8, "big") + each)
    return found.hexdigest()[:16]


def _file_digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class _FolderFor:
    """A folder beside a file of the cache, removed at the end; the file appears in one rename."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Path:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="making-", dir=self._target.parent))
        return self._folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _run(command: Sequence[str], *, cwd: Path, missing: str) -> None:
    if shutil.which(command[0]) is None:
        raise StartError(f"{command[0]} was not found, and the node's images need it: install {missing}")
    done = subprocess.run(list(command), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise StartError(f"{command[0]} failed with {done.returncode}: {' / '.join(last)}")
