"""`ostler-lab images`: build every image of the real node, and print its size over its base and the time it took."""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from lab.bootstrap import RUNNER_IMAGE
from lab.go_build import Say
from lab.node.builder_images import (
    BUILDING_RUNNER,
    BUILDKIT,
    DIND,
    building_runner_image,
    buildkit_image,
    dind_image,
)
from lab.node.images import PAUSE, debian_base, pause_image, runner_image
from lab.node.job_images import SUDO, sudo_image
from lab.node.product_images import LAB, PRODUCT, lab_image, product_image
from lab.node.store_images import POSTGRES, REDIS, postgres_image, redis_image
from lab.processes import StartError

MEGABYTE = 1_000_000
"""Number of bytes."""

IMAGES: dict[str, Callable[[str, Say], Path]] = {
    PRODUCT: product_image,
    LAB: lab_image,
    RUNNER_IMAGE: runner_image,
    PAUSE: lambda _name, say: pause_image(say),
    POSTGRES: postgres_image,
    REDIS: redis_image,
    SUDO: sudo_image,
    BUILDKIT: buildkit_image,
    DIND: dind_image,
    BUILDING_RUNNER: building_runner_image,
}


def main() -> int:
    """Build what is not cached. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="ostler-lab images", description=__doc__)
    parser.parse_args()
    try:
        began = time.monotonic()
        base = debian_base(_say)
        _report("base of all but pause", base.stat().st_size, began)
        for name, build in IMAGES.items():
            began = time.monotonic()
            archive = build(name, _say)
            _report(name, size_over(base, archive), began)
    except StartError as error:
        sys.stderr.write(f"ostler-lab images: {error}\n")
        return 1
    return 0


def size_over(base: Path, archive: Path) -> int:
    """Return the size of an image without the base in bytes, or its whole size if it is smaller than the base."""
    with tarfile.open(archive) as tar:
        layers = json.load(tar.extractfile("manifest.json") or sys.stdin)[0]["Layers"]
        size = sum(tar.getmember(layer).size for layer in layers)
    whole = base.stat().st_size
    return size if size < whole else size - whole


def _report(name: str, size: int, began: float) -> None:
    sys.stdout.write(f"{name:45} {size / MEGABYTE:8.1f} MB {time.monotonic() - began:7.1f} s\n")
    sys.stdout.flush()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
