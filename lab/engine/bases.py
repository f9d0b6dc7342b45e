"""Stand-ins for the base images of the compose file, under the names that the file uses. No image is pulled.

The stand-ins are made of Debian's packages. The stand-in for Python has Debian's Python, and in `/usr/local` a virtual
environment with pip, because the build runs `python -m pip`. If the caller's environment names a bundle of certificate
authorities, programs in this image trust this bundle too. A build needs the bundle if a proxy terminates TLS.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path

from lab.go_build import Say, cache_folder, quiet
from lab.node.archive import FolderFor, Image, add_file, add_text, digest, write_archive
from lab.node.images import debian_root
from lab.node.store_images import postgres_image, redis_image

PYTHON = "python:3.11-slim-bookworm"
POSTGRES = "postgres:17-bookworm"
REDIS = "redis:7.4-bookworm"

_PACKAGES = ("ca-certificates", "python3-venv")
_ENVIRONMENT = 'chroot "$1" python3 -m venv /usr/local'
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_BUNDLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name a bundle of certificate authorities. The first one that is set is used."""


def ca_bundle(environment: Mapping[str, str]) -> Path | None:
    """Return the bundle of certificate authorities that the environment names, or None."""
    named = [environment[name] for name in _BUNDLES if environment.get(name)]
    return Path(named[0]) if named else None


def base_images(environment: Mapping[str, str], say: Say = quiet) -> list[Path]:
    """Return the archives of all base images, made first if they are not cached. Raises `StartError`."""
    return [
        python_image(PYTHON, ca_bundle(environment), say),
        postgres_image(POSTGRES, say),
        redis_image(REDIS, say),
    ]


def python_image(name: str, bundle: Path | None, say: Say = quiet) -> Path:
    """Return the archive of an image with Debian's Python and pip, under `name`. Raises `StartError`."""
    root = debian_root(_PACKAGES, say, last_hooks=[_ENVIRONMENT])
    trusted = b"" if bundle is None else bundle.read_bytes()
    target = cache_folder("images") / f"python-{digest(name.encode(), root.name.encode(), trusted)}.tar"
    if target.exists():
        return target
    say("images: packing the image of python")
    with FolderFor(target) as folder:
        layers = [root]
        if bundle is not None:
            layers.append(folder / "layer.tar")
            with tarfile.open(layers[-1], "w") as tar:
                add_file(tar, bundle, _BUNDLE, mode=0o644)
                add_text(tar, "etc/pip.conf", f"[global]\ncert = /{_BUNDLE}\n")
        image = Image(name=name, layers=layers, entrypoint=[], command=["python3"], environment={"PATH": _PATH})
        return write_archive(image, folder / "image.tar", target)
