"""Images of the product and of the lab, with the content of the final stages of `compose/Dockerfile`."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from lab.go_build import Say, cache_folder, quiet
from lab.node.archive import FolderFor, Image, add_folder, add_text, digest, write_archive
from lab.node.images import debian_base
from lab.node.python_layers import ENVIRONMENT, FULL_PYTHON, PYTHON, lab_layer, packages_layer, product_layer
from lab.processes import StartError

PRODUCT = "lab.ostler.dev/ostler:1"
LAB = "lab.ostler.dev/ostler-lab:1"

USER = 10001
HOME = "/var/lib/ostler"
VARIABLES = {
    "PATH": f"{ENVIRONMENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def product_image(name: str = PRODUCT, say: Say = quiet) -> Path:
    """Return the archive of the product's image over a stand-in base, under `name`. Raises `StartError`.

    The image has the user, paths, entry point and environment of the stage `ostler`. It contains neither the lab nor a
    compiler.
    """
    layers = [packages_layer(say), product_layer(say)]
    return _image("product", name, layers, entrypoint="ostler", command="--help", say=say)


def lab_image(name: str = LAB, say: Say = quiet) -> Path:
    """Return the archive of the stage `lab`: the product's image, and the lab. Raises `StartError`."""
    layers = [packages_layer(say), product_layer(say), lab_layer(say)]
    return _image("lab", name, layers, entrypoint="ostler-lab", command="environment", say=say)


def _image(kind: str, name: str, layers: Sequence[Path], *, entrypoint: str, command: str, say: Say) -> Path:
    base = debian_base(say)
    parts = (name, base.name, *(each.name for each in layers), *VARIABLES.values(), entrypoint, command)
    target = cache_folder("images") / f"{kind}-{digest(*map(str.encode, parts))}.tar"
    if target.exists():
        return target
    say(f"images: packing the image of the {kind}")
    with FolderFor(target) as folder:
        image = Image(
            name=name,
            layers=[base, _user_layer(base, folder / "user.tar"), *layers],
            entrypoint=[entrypoint],
            command=[command],
            environment=VARIABLES,
            user=f"{USER}:{USER}",
            working_directory=HOME,
        )
        return write_archive(image, folder / "image.tar", target)


def _user_layer(base: Path, layer: Path) -> Path:
    """Write a layer that adds the user `ostler` and its folder to the base."""
    with tarfile.open(base) as root, tarfile.open(layer, "w") as tar:
        _check_python(_text(root, "./var/lib/dpkg/status"))
        users, groups = (_text(root, f"./etc/{each}") for each in ("passwd", "group"))
        add_text(tar, "etc/passwd", f"{users}ostler:x:{USER}:{USER}::/home/ostler:/usr/sbin/nologin\n")
        add_text(tar, "etc/group", f"{groups}ostler:x:{USER}:\n")
        add_folder(tar, HOME.removeprefix("/"), owner=USER, mode=0o700)
    return layer


def _check_python(packages: str) -> None:
    """Raise `StartError` if the base has another patch level of Python than the packages were selected for."""
    found = re.search(rf"^Package: python{PYTHON}-minimal\n(?:.+\n)*?Version: ([\d.]+)", packages, re.MULTILINE)
    if found is None or found[1] != FULL_PYTHON:
        version = "no Python" if found is None else f"Python {found[1]}"
        raise StartError(f"the Debian base has {version}, not {FULL_PYTHON}: correct lab/node/python_layers.py")


def _text(tar: tarfile.TarFile, name: str) -> str:
    return (tar.extractfile(name) or io.BytesIO()).read().decode()
