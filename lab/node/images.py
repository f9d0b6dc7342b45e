"""Container images of the node, made on this machine: nothing is pulled.

An image is an archive in the format of `docker save`. The base layer of every image except the pause image is a small
Debian root made by mmdebstrap. The name of an image in the cache contains a hash of its inputs. The cache has the
newest four archives of each kind of image.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from lab.go_build import Say, cache_folder, quiet
from lab.node.archive import (
    FolderFor,
    Image,
    add_file,
    add_folder,
    add_text,
    digest,
    file_digest,
    run_program,
    write_archive,
)

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path of programs in the images."""

PAUSE = "lab.ostler.dev/pause:1"
"""The image that holds the namespaces of each Pod."""

_RUNNER_USER = 1001
_EXTERNAL = "node24/bin/node"
"""A file of the folder that the runner mounts as `/__e` in containers of jobs."""
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


def pause_image(say: Say = quiet) -> Path:
    """Return the archive of the pause image, made first if it is not cached. Raises `StartError`."""
    target = cache_folder("images") / f"pause-{digest(_PAUSE_PROGRAM.encode())}.tar"
    if target.exists():
        return target
    say("images: compiling pause")
    with FolderFor(target) as folder:
        (folder / "pause.c").write_text(_PAUSE_PROGRAM)
        run_program(
            ["gcc", "-static", "-Os", "-o", "pause", "pause.c"], cwd=folder, missing="a C compiler (Debian: gcc)"
        )
        layer = folder / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            add_file(tar, folder / "pause", "pause", mode=0o555)
        image = Image(name=PAUSE, layers=[layer], entrypoint=["/pause"], user="65535:65535")
        return write_archive(image, folder / "image.tar", target)


def runner_image(name: str, say: Say = quiet, *, programs: Sequence[Path] = ()) -> Path:
    """Return the archive of a stand-in for GitHub's stock image, under `name`. Raises `StartError`.

    The image has the parts of GitHub's `actions-runner` image that Ostler needs: a shell, curl, user 1001 with the home
    `/home/runner`, and the lab's runner as `config.sh` and `run.sh` there. The image contains no file of Ostler.
    `programs` are files for `/usr/local/bin`, whose paths identify their contents.
    """
    names = ("config.sh", "config.py", "run.sh", "runner.py", "container_job.py")
    files = {f"home/runner/{name}": _REPOSITORY / "lab" / "kubelet" / "runner" / name for name in names}
    content = [
        name.encode(),
        _EXTERNAL.encode(),
        *(path.read_bytes() for path in files.values()),
        *map(str.encode, _PACKAGES),
        *(str(path).encode() for path in programs),
    ]
    target = cache_folder("images") / f"runner-{digest(*content)}.tar"
    if target.exists():
        return target
    base = debian_base(say)
    say("images: packing the runner image")
    with FolderFor(target) as folder:
        layer = folder / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            add_folder(tar, "home/runner", owner=_RUNNER_USER)
            for inside, path in files.items():
                add_file(tar, path, inside, mode=0o555)
            for path in programs:
                add_file(tar, path, f"usr/local/bin/{path.name}", mode=0o755)
            add_text(tar, f"home/runner/externals/{_EXTERNAL}", "")
            passwd = f"root:x:0:0:root:/root:/bin/sh\nrunner:x:{_RUNNER_USER}:{_RUNNER_USER}::/home/runner:/bin/bash\n"
            add_text(tar, "etc/passwd", passwd)
            add_text(tar, "etc/group", f"root:x:0:\nrunner:x:{_RUNNER_USER}:\n")
        image = Image(
            name=name,
            layers=[base, layer],
            entrypoint=["/bin/bash"],
            environment={
                "PATH": PATH,
                "RUNNER_MANUALLY_TRAP_SIG": "1",
                "ACTIONS_RUNNER_PRINT_LOG_TO_STDOUT": "1",
            },
            user=str(_RUNNER_USER),
            working_directory="/home/runner",
        )
        return write_archive(image, folder / "image.tar", target)


def packed(
    kind: str,
    image: Image,
    say: Say,
    *,
    programs: Mapping[str, Path | str] = MappingProxyType({}),
    open_folders: Sequence[str] = (),
) -> Path:
    """Return the archive of an image, made if it is not cached. The cache keeps the newest few of each kind.

    One more layer has `programs` and `open_folders`, if there are any. `programs` maps a path in the image to a program
    of this machine or to the text of a script. Every user may write to `open_folders`.
    """
    content = [repr(replace(image, layers=())), *(layer.name for layer in image.layers), *open_folders]
    for inside, program in programs.items():
        content += [inside, program if isinstance(program, str) else file_digest(program)]
    target = cache_folder("images") / f"{kind}-{digest(*map(str.encode, content))}.tar"
    if target.exists():
        return target
    say(f"images: packing {image.name}")
    with FolderFor(target) as folder:
        layers = list(image.layers)
        if programs or open_folders:
            layers.append(folder / "layer.tar")
            with tarfile.open(layers[-1], "w") as tar:
                for inside, program in programs.items():
                    path = folder / "script" if isinstance(program, str) else program
                    if isinstance(program, str):
                        path.write_text(program)
                    add_file(tar, path, inside, mode=0o755)
                for inside in open_folders:
                    add_folder(tar, inside, owner=0, mode=0o1777)
        return write_archive(replace(image, layers=layers), folder / "image.tar", target)


def debian_base(say: Say = quiet) -> Path:
    """Return the tar file of the small Debian root that the images have in common. Raises `StartError`."""
    return debian_root(_PACKAGES, say)


def debian_root(
    packages: Sequence[str], say: Say = quiet, *, hooks: Sequence[str] = (), last_hooks: Sequence[str] = ()
) -> Path:
    """Return the tar file of a Debian root with these packages, made by mmdebstrap if it is not cached.

    `hooks` are commands for a shell that mmdebstrap runs before it installs the packages, with the folder of the root
    as `$1`. After the installation, mmdebstrap runs `last_hooks` in the same way. `OSTLER_LAB_DEBIAN_SOURCES` names an
    apt sources file or a mirror. If it is empty, mmdebstrap uses this machine's own sources of that suite, or the
    public mirror if this machine has no sources of that suite. Raises `StartError`.
    """
    target = _root_path(packages, [*hooks, *(f"last: {hook}" for hook in last_hooks)])
    if target.exists():
        return target
    say(f"images: making a Debian {_SUITE} root with {', '.join(packages)}: a minute or two, once")
    with FolderFor(target) as folder:
        tar = folder / "root.tar"
        command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}", "--quiet"]
        command += [f"--essential-hook={hook}" for hook in hooks]
        command += [f"--customize-hook={hook}" for hook in last_hooks]
        command += [_SUITE, str(tar), *_debian_sources()]
        run_program(command, cwd=folder, missing="mmdebstrap (Debian package mmdebstrap)")
        tar.rename(target)
    return target


def base_is_cached() -> bool:
    """Return whether the Debian root was already made."""
    return _root_path(_PACKAGES).exists()


def _root_path(packages: Sequence[str], hooks: Sequence[str] = ()) -> Path:
    return (
        cache_folder("images") / f"debian-{_SUITE}-{digest(' '.join(packages).encode(), *map(str.encode, hooks))}.tar"
    )


def _debian_sources() -> list[str]:
    named = os.environ.get("OSTLER_LAB_DEBIAN_SOURCES")
    if named:
        return [named]
    own = Path("/etc/apt/sources.list.d/debian.sources")
    return [str(own)] if own.exists() and _SUITE in own.read_text() else []
