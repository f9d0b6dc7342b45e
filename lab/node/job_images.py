"""Images for container jobs in tests: the container of a job, and a Docker action."""

from __future__ import annotations

import tarfile
from pathlib import Path

from lab.go_build import Say, cache_folder, quiet
from lab.node.archive import FolderFor, Image, add_file, digest, write_archive
from lab.node.images import debian_base

JOB = "lab.ostler.dev/job:1"
ACTION = "lab.ostler.dev/action:1"

_ENTRY = """\
#!/bin/sh
# A Docker action: read a file of the workspace, write another, and set an output.
set -eu
echo "action: $*"
tr a-z A-Z < "$GITHUB_WORKSPACE/$1" > "$GITHUB_WORKSPACE/$2"
echo "shouted=$2" >> "$GITHUB_OUTPUT"
"""


def job_image(name: str = JOB, say: Say = quiet) -> Path:
    """Return the archive of an image with a shell, Python and git, under `name`. Raises `StartError`."""
    return _image("job", name, "", say)


def action_image(name: str = ACTION, say: Say = quiet) -> Path:
    """Return the archive of an image with the program of an action, `/entry.sh`. Raises `StartError`."""
    return _image("action", name, _ENTRY, say)


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
            environment={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        return write_archive(image, folder / "image.tar", target)
