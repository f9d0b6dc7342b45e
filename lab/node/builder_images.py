"""Images for pools that build images: a BuildKit daemon, a Docker daemon, and a runner with their clients.

BuildKit is built from Go modules once per machine, like the programs of the node. Docker is Debian's package.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from lab.go_build import GoPrograms, Say, cache_folder, quiet
from lab.node.archive import Image, digest
from lab.node.images import PATH, debian_base, debian_root, packed, runner_image
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


def buildkit_image(name: str = BUILDKIT, say: Say = quiet) -> Path:
    """Return the archive of an image with the programs of `moby/buildkit`, under `name`. Raises `StartError`."""
    built = _programs().had(say)
    image = Image(name=name, layers=[debian_base(say)], entrypoint=["buildkitd"], environment={"PATH": PATH})
    programs = {
        "usr/local/bin/buildkitd": built / "buildkitd",
        "usr/local/bin/buildctl": built / "buildctl",
        "usr/local/bin/buildkit-runc": build(say).containers / "runc",
    }
    return packed("buildkit", image, say, programs=programs)


def building_runner_image(name: str = BUILDING_RUNNER, say: Say = quiet) -> Path:
    """Return the archive of a runner image with clients of BuildKit, under `name`. Raises `StartError`."""
    built = _programs().had(say)
    return runner_image(name, say, programs=[built / "buildctl", built / "buildx", _docker_client(say)])


def dind_image(name: str = DIND, say: Say = quiet) -> Path:
    """Return the archive of an image with a Docker daemon, under `name`. Raises `StartError`."""
    root = debian_root(_DOCKER_PACKAGES, say)
    image = Image(name=name, layers=[root], entrypoint=["dockerd-entrypoint.sh"], environment={"PATH": PATH})
    return packed("dind", image, say, programs={"usr/local/bin/dockerd-entrypoint.sh": _DOCKER_ENTRY})


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
