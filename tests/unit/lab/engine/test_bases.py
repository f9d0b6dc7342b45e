"""Stand-ins for base images: their names, and the certificate authorities that the image of Python trusts."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from lab.engine import bases
from lab.engine.project import FILE
from tests.unit.lab.node.test_images import content


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "root.tar"
    with tarfile.open(path, "w"):
        pass
    monkeypatch.setattr(bases, "debian_root", lambda *_arguments, **_options: path)
    return path


def test_stand_ins_have_the_names_that_the_compose_file_has() -> None:
    defaults = dict(re.findall(r"\$\{(PYTHON|POSTGRES|REDIS)_IMAGE:-([^}]+)\}", FILE.read_text()))
    assert defaults == {"PYTHON": bases.PYTHON, "POSTGRES": bases.POSTGRES, "REDIS": bases.REDIS}
    assert f"ARG PYTHON={bases.PYTHON}\n" in (FILE.parent / "Dockerfile").read_text()


def test_bundle_is_the_first_that_the_environment_names() -> None:
    assert bases.ca_bundle({}) is None
    assert bases.ca_bundle({"SSL_CERT_FILE": "", "PIP_CERT": "/a.pem"}) == Path("/a.pem")
    assert bases.ca_bundle({"SSL_CERT_FILE": "/b.pem", "PIP_CERT": "/a.pem"}) == Path("/b.pem")


def test_image_of_python_trusts_the_bundle_and_nothing_else_if_there_is_none(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("PEM")

    plain, trusting = bases.python_image("python:x", None), bases.python_image("python:x", bundle)

    assert plain != trusting
    assert len(layers(plain)) == 1
    assert layers(trusting)[1:] == [
        {
            "etc/ssl/certs/ca-certificates.crt": "PEM",
            "etc/pip.conf": "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n",
        }
    ]


def layers(archive: Path) -> list[dict[str, str]]:
    """Return the files of each layer of an archive."""
    with tarfile.open(archive) as tar:
        names = json.loads(content(tar, "manifest.json"))[0]["Layers"]
        found = []
        for name in names:
            with tarfile.open(fileobj=io.BytesIO(content(tar, name))) as inner:
                found.append({each.name: content(inner, each.name).decode() for each in inner.getmembers()})
    return found
