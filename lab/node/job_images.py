"""Images of jobs in tests: the container of a job, a Docker action, and a runner image whose user has `sudo`."""

from __future__ import annotations

from pathlib import Path

from lab.go_build import Say, quiet
from lab.node.archive import Image
from lab.node.images import PATH, debian_base, debian_root, packed

JOB = "lab.ostler.dev/job:1"
ACTION = "lab.ostler.dev/action:1"
SUDO = "lab.ostler.dev/sudo:1"
"""An image in which user 1001 can run any command with `sudo`, as in GitHub's stock image."""

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
    image = Image(name=name, layers=[root], entrypoint=["/bin/bash"], environment={"PATH": PATH}, user="1001")
    return packed("sudo", image, say)


def _image(kind: str, name: str, script: str, say: Say) -> Path:
    image = Image(
        name=name,
        layers=[debian_base(say)],
        entrypoint=["/entry.sh"] if script else [],
        command=[] if script else ["/bin/sh"],
        environment={"PATH": PATH},
    )
    return packed(kind, image, say, programs={"entry.sh": script} if script else {})
