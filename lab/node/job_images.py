"""Images of jobs in tests: the container of a job, a Docker action, and a runner image whose user has `sudo`."""

from __future__ import annotations

import tarfile
from pathlib import Path

from lab.go_build import Say, cache_folder, quiet
from lab.node.archive import FolderFor, Image, add_file, digest, write_archive
from lab.node.images import debian_base, debian_root

JOB = "lab.ostler.dev/job:1"
ACTION = "lab.ostler.dev/action:1"
SUDO = "lab.ostler.dev/sudo:1"
"""An image in which user 1001 may do everything with `sudo`, as in GitHub's stock image."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENTRY = """\
#!/bin/sh
# A Docker action: read a file of the workspace, write another, and set an output.
set -eu
echo "action: $*"
tr a-z A-Z < "$GITHUB_WORKSPACE/$1" > "$GITHUB_WORKSPACE/$2"
echo "shouted=$2" >> "$GITHUB_OUTPUT"
"""

_SUDO_PACKAGES = ("ca-certificates", "iproute2", "iputils-ping", "libcap2-bin", "procps", "python3", "sudo")
_SUDO_USER = (
    'chroot "$1" useradd --uid 1001 --create-home --shell /bin/bash runner'
    ' && echo "runner ALL=(ALL) NOPASSWD:ALL" > "$1/etc/sudoers.d/runner"'
)


def job_image(name: str = JOB, say: Say = quiet) -> Path:
    """Return the archive of an image with a shell, Python and git, under `name`. Raises `StartError`."""
    return _image("job", name, "", say)


def action_image(name: str = ACTION, say: Say = quiet) -> Path:
    """Return the archive of an image with the program of an action, `/entry.sh`. Raises `StartError`."""
    return _image("action", name, _ENTRY, say)


def sudo_image(name: str = SUDO, say: Say = quiet) -> Path:
    """Return the archive of an image with `sudo` and tools of administrators, under `name`. Raises `StartError`."""
    root = debian_root(_SUDO_PACKAGES, say, last_hooks=[_SUDO_USER])
    target = cache_folder("images") / f"sudo-{digest(name.encode(), root.name.encode())}.tar"
    if target.exists():
        return target
    say("images: packing the image with sudo")
    with FolderFor(target) as folder:
        image = Image(name=name, layers=[root], entrypoint=["/bin/bash"], environment={"PATH": _PATH}, user="1001")
        return write_archive(image, folder / "image.tar", target)


def _image(kind: str, name: str, script: str, say: Say) -> Path:
    base = debian_base(say)
    target = cache_folder("images") / f"{kind}-{digest(name.encode(), base.name.encode(), script.encode())}.tar"
    if target.exists():
        return target
    say(f"images: packing the image of {kind}s")
    with FolderFor(target) as folder:
        layers = [base]
        if script:
            entry, layer = folder / "entry.sh", folder / "layer.tar"
            entry.write_text(script)
            with tarfile.open(layer, "w") as tar:
                add_file(tar, entry, "entry.sh", mode=0o755)
            layers.append(layer)
        image = Image(
            name=name,
            layers=layers,
            entrypoint=["/entry.sh"] if script else [],
            command=[] if script else ["/bin/sh"],
            environment={"PATH": _PATH},
        )
        return write_archive(image, folder / "image.tar", target)
