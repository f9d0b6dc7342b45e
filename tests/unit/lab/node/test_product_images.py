"""The product's image without a container engine, compared with the stages of `compose/Dockerfile`."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lab.node import product_images, python_layers
from lab.node.archive import add_text, publish
from lab.processes import StartError
from tests.unit.lab.node.test_images import content

DOCKERFILE = (Path(__file__).parents[4] / "compose" / "Dockerfile").read_text()


STATUS = """\
Package: python3-minimal
Version: 3.11.2-1

Package: python3.11-minimal
Status: install ok installed
Version: 3.11.2-6+deb12u6
"""


def stage(name: str) -> str:
    """Return the lines of a stage of the Dockerfile, with continued lines joined."""
    found = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].replace("\\\n", " ")


def instruction(name: str, lines: str) -> str:
    found = re.search(rf"^{name} (.*)$", lines, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture(autouse=True)
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base = tmp_path / "base.tar"
    with tarfile.open(base, "w") as tar:
        for name in ("passwd", "group"):
            add_text(tar, f"./etc/{name}", "root:x:0:0\n")
        add_text(tar, "./var/lib/dpkg/status", STATUS)
    monkeypatch.setattr(product_images, "debian_base", lambda _say: base)
    for name in ("packages_layer", "product_layer", "lab_layer"):
        layer = tmp_path / f"{name}.tar"
        with tarfile.open(layer, "w"):
            pass
        monkeypatch.setattr(product_images, name, lambda _say, layer=layer: layer)


def config_of(archive: Path) -> dict[str, object]:
    with tarfile.open(archive) as tar:
        manifest = json.loads(content(tar, "manifest.json"))[0]
        found: dict[str, object] = json.loads(content(tar, manifest["Config"]))["config"]
        return found


@pytest.mark.parametrize("name", ["ostler", "lab"])
def test_image_starts_as_the_stage_of_the_dockerfile_does(name: str) -> None:
    own = stage(name)
    archive = product_images.product_image() if name == "ostler" else product_images.lab_image()

    config = config_of(archive)

    assert config["Entrypoint"] == json.loads(instruction("ENTRYPOINT", own))
    assert config["Cmd"] == json.loads(instruction("CMD", own))
    assert config["User"] == re.findall(r"^USER (\d.*)$", own, re.MULTILINE)[0]
    assert config["WorkingDir"] == instruction("WORKDIR", stage("ostler"))


def test_image_has_the_environment_of_the_dockerfile() -> None:
    wanted = dict(each.split("=", 1) for each in instruction("ENV", stage("ostler")).split())

    assert set(product_images.VARIABLES) == set(wanted)
    assert product_images.VARIABLES["PATH"].startswith(wanted.pop("PATH").replace("$PATH", ""))
    assert {name: product_images.VARIABLES[name] for name in wanted} == wanted


def test_wheel_is_built_from_what_the_dockerfile_copies() -> None:
    copied = [
        each for line in re.findall(r"^COPY (?!--)(.*) \S+$", stage("build"), re.MULTILINE) for each in line.split()
    ]

    assert sorted(copied) == sorted(["requirements", *python_layers.SOURCES])


def test_image_adds_the_user_and_its_folder() -> None:
    archive = product_images.product_image()

    with tarfile.open(archive) as tar:
        name = json.loads(content(tar, "manifest.json"))[0]["Layers"][1]
        with tarfile.open(fileobj=io.BytesIO(content(tar, name))) as layer:
            home = layer.getmember("var/lib/ostler")
            users = content(layer, "etc/passwd").decode().splitlines()
    assert (home.uid, home.gid, home.mode) == (10001, 10001, 0o700)
    assert users[0] == "root:x:0:0"
    assert users[1].startswith("ostler:x:10001:10001:")


def test_base_with_another_patch_level_of_python_is_refused() -> None:
    with pytest.raises(StartError, match=r"has Python 3\.11\.9, not 3\.11\.2"):
        product_images._check_python(STATUS.replace("3.11.2-6", "3.11.9-6"))
    with pytest.raises(StartError, match="has no Python"):
        product_images._check_python("")


def test_dockerfile_removes_only_a_package_that_ostler_never_imports() -> None:
    program = "import sys, cli, tasks, web, watch, k8s_adapters.calls.client; print('kubernetes.aio' in sys.modules)"

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said == "False\n"
    assert f"site-packages/{python_layers.UNUSED}" in stage("build")


def test_scripts_start_with_the_python_of_the_image(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "ostler"
    script.parent.mkdir()
    for first in ("#!/some/where/bin/python3", "#!/bin/sh\n'''exec' '/long/python' \"$0\" \"$@\"\n' '''"):
        script.write_text(f"{first}\nimport sys\n")
        archive = tmp_path / "layer.tar"

        with tarfile.open(archive, "w") as tar:
            python_layers._add_installed(tar, script, "opt/ostler/bin/ostler")

        with tarfile.open(archive) as tar:
            assert content(tar, "opt/ostler/bin/ostler") == b"#!/opt/ostler/bin/python\nimport sys\n"


def test_cache_holds_only_the_newest_files_of_one_kind(tmp_path: Path) -> None:
    for number in range(6):
        partial = tmp_path / "partial"
        partial.write_text(str(number))
        publish(partial, tmp_path / f"product-{number}.tar")
    (tmp_path / "product-x-0.tar").touch()

    assert len(list(tmp_path.glob("product-[0-9].tar"))) == 4
    assert (tmp_path / "product-5.tar").exists()
