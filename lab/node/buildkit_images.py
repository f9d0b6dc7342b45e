"""Images for pools that build images: the BuildKit daemon, and a runner with the clients of BuildKit.

The programs are built from Go modules once per machine, as those of the node.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from lab.go_build import GoPrograms, Say, cache_folder, quiet
from lab.node.archive import FolderFor, Image, add_file, digest, write_archive
from lab.node.images import debian_base, runner_image
from lab.node.programs import build

BUILDKIT = "lab.ostler.dev/buildkit:1"
BUILDING_RUNNER = "lab.ostler.dev/runner-with-buildx:1"
"""The stand-in of GitHub's runner image, with `buildctl` and Docker Buildx as `buildx`."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def buildkit_image(name: str = BUILDKIT, say: Say = quiet) -> Path:
    """Return the archive of an image with the programs of `moby/buildkit`, under `name`. Raises `StartError`."""
    built = _programs().had(say)
    files = {
        "buildkitd": built / "buildkitd",
        "buildctl": built / "buildctl",
        "buildkit-runc": build(say).containers / "runc",
    }
    base = debian_base(say)
    keys = [base.name, *map(str, files.values())]
    target = cache_folder("images") / f"buildkit-{digest(name.encode(), *map(str.encode, keys))}.tar"
    if target.exists():
        return target
    say("images: packing the image of BuildKit")
    with FolderFor(target) as folder:
        layer = folder / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            for program, path in files.items():
                add_file(tar, path, f"usr/local/bin/{program}", mode=0o755)
        image = Image(name=name, layers=[base, layer], entrypoint=["buildkitd"], environment={"PATH": _PATH})
        return write_archive(image, folder / "image.tar", target)


def building_runner_image(name: str = BUILDING_RUNNER, say: Say = quiet) -> Path:
    """Return the archive of a runner image with clients of BuildKit, under `name`. Raises `StartError`."""
    built = _programs().had(say)
    return runner_image(name, say, programs=[built / "buildctl", built / "buildx"])


def _programs() -> GoPrograms:
    return GoPrograms(
        name="node-buildkit",
        what="BuildKit and Buildx",
        module=Path(__file__).parent / "buildkit",
        packages={
            "buildkitd": "github.com/moby/buildkit/cmd/buildkitd",
            "buildctl": "github.com/moby/buildkit/cmd/buildctl",
            "buildx": "github.com/docker/buildx/cmd/buildx",
        },
        takes="about six minutes",
    )
