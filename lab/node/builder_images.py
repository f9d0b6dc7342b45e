"""Images for pools that build images: a BuildKit daemon, a Docker daemon, and a runner with their clients.

BuildKit is built from Go modules once per machine, as the programs of the node. Docker is Debian's package.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from lab.go_build import GoPrograms, Say, cache_folder, quiet
from lab.node.archive import FolderFor, Image, add_file, digest, write_archive
from lab.node.images import debian_base, debian_root, runner_image
from lab.node.programs import build

BUILDKIT = "lab.ostler.dev/buildkit:1"
DIND = "lab.ostler.dev/dind:1"
BUILDING_RUNNER = "lab.ostler.dev/building-runner:1"
"""The stand-in of GitHub's runner image, with `docker`, `buildctl` and Docker Buildx as `buildx`."""

_DOCKER_PACKAGES = ("ca-certificates", "docker.io", "iptables")
_DOCKER_ENTRY = """\
#!/bin/sh
# The entry point of Docker's own image also prepares control groups of version 2. The lab's node needs no such step.
set -eu
exec "$@"
"""

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
    return runner_image(name, say, programs=[built / "buildctl", built / "buildx", _docker_client(say)])


def dind_image(name: str = DIND, say: Say = quiet) -> Path:
    """Return the archive of an image with a Docker daemon, under `name`. Raises `StartError`."""
    root = debian_root(_DOCKER_PACKAGES, say)
    key = digest(name.encode(), root.name.encode(), _DOCKER_ENTRY.encode())
    target = cache_folder("images") / f"dind-{key}.tar"
    if target.exists():
        return target
    say("images: packing the image of a Docker daemon")
    with FolderFor(target) as folder:
        entry, layer = folder / "entry.sh", folder / "layer.tar"
        entry.write_text(_DOCKER_ENTRY)
        with tarfile.open(layer, "w") as tar:
            add_file(tar, entry, "usr/local/bin/dockerd-entrypoint.sh", mode=0o755)
        image = Image(
            name=name, layers=[root, layer], entrypoint=["dockerd-entrypoint.sh"], environment={"PATH": _PATH}
        )
        return write_archive(image, folder / "image.tar", target)


def _docker_client(say: Say) -> Path:
    """Return the program `docker`, taken out of the root file system with the daemon."""
    root = debian_root(_DOCKER_PACKAGES, say)
    folder = cache_folder("images") / f"docker-{digest(root.name.encode())}"
    target = folder / "docker"
    if not target.exists():
        folder.mkdir(exist_ok=True)
        with tarfile.open(root) as tar, tempfile.TemporaryDirectory(dir=folder) as partial:
            member = tar.getmember("./usr/bin/docker")
            tar.extract(member, partial, filter="data")
            (Path(partial) / member.name).rename(target)
    return target


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
