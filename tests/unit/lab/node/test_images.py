from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from lab.go_build import Say
from lab.node import images
from lab.node.archive import Image, write_archive
from lab.node.build_images import size_over
from lab.processes import StartError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ostler" / "images"


def base(cache: Path) -> Path:
    cache.mkdir(parents=True)
    path = cache / "base.tar"
    with tarfile.open(path, "w"):
        pass
    return path


def content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def test_archive_of_an_image_names_its_layers_by_their_digests(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = base(cache)
    monkeypatch.setattr(images, "debian_base", lambda _say: layer)

    archive = images.runner_image("registry.example/runner:1")

    with tarfile.open(archive) as tar:
        manifest = json.loads(content(tar, "manifest.json"))[0]
        config = json.loads(content(tar, manifest["Config"]))
        digests = [f"sha256:{hashlib.sha256(content(tar, name)).hexdigest()}" for name in manifest["Layers"]]
    assert manifest["RepoTags"] == ["registry.example/runner:1"]
    assert config["rootfs"]["diff_ids"] == digests
    assert config["config"]["User"] == "1001"


def test_packed_image_gets_a_layer_of_programs_and_is_made_anew_when_one_changes(cache: Path, tmp_path: Path) -> None:
    image = Image(name="registry.example/tool:1", layers=[base(cache)], entrypoint=["/tool"])
    program = tmp_path / "program"
    program.write_bytes(b"first")

    def pack(script: str = "#!/bin/sh\n") -> Path:
        programs: dict[str, Path | str] = {"tool": program, "entry.sh": script}
        return images.packed("tool", image, lambda _line: None, programs=programs, open_folders=["run/tool"])

    archive = pack()

    with tarfile.open(archive) as tar:
        manifest = json.loads(content(tar, "manifest.json"))[0]
        with tarfile.open(fileobj=io.BytesIO(content(tar, manifest["Layers"][-1]))) as layer:
            assert (content(layer, "tool"), content(layer, "entry.sh")) == (b"first", b"#!/bin/sh\n")
            modes = {each.name: each.mode for each in layer}
    assert modes == {"tool": 0o755, "entry.sh": 0o755, "run/tool": 0o1777}
    assert len(manifest["Layers"]) == 2
    assert pack() == archive
    assert pack("#!/bin/bash\n") != archive
    program.write_bytes(b"second")
    assert pack() != archive


def test_packed_image_without_programs_has_no_layer_of_its_own(cache: Path) -> None:
    image = Image(name="registry.example/plain:1", layers=[base(cache)], entrypoint=[])

    with tarfile.open(images.packed("plain", image, lambda _line: None)) as tar:
        assert len(json.loads(content(tar, "manifest.json"))[0]["Layers"]) == 1


def test_runner_image_holds_the_home_of_the_runner_and_no_file_of_ostler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = base(cache)
    monkeypatch.setattr(images, "debian_base", lambda _say: layer)

    archive = images.runner_image("registry.example/runner:1")

    with tarfile.open(archive) as tar:
        name = json.loads(content(tar, "manifest.json"))[0]["Layers"][-1]
        with tarfile.open(fileobj=io.BytesIO(content(tar, name))) as inner:
            found = {each.name: (each.mode, each.uid) for each in inner.getmembers()}
    assert found["home/runner"] == (0o755, 1001)
    assert found["home/runner/run.sh"] == (0o555, 0)
    assert not [each for each in found if "ostler" in each]


def test_image_that_is_cached_is_not_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = base(cache)
    made: list[Path] = []

    def debian_base(_say: Say) -> Path:
        made.append(layer)
        return layer

    monkeypatch.setattr(images, "debian_base", debian_base)

    first = images.runner_image("registry.example/runner:1")

    assert images.runner_image("registry.example/runner:1") == first
    assert len(made) == 1
    assert images.runner_image("registry.example/runner:2") != first


def test_missing_mmdebstrap_is_named_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(StartError, match="install mmdebstrap"):
        images.debian_base()


def test_size_of_an_image_is_what_it_adds_to_the_base(tmp_path: Path) -> None:
    root, small, large = tmp_path / "root.tar", tmp_path / "small.tar", tmp_path / "large.tar"
    for path, size in ((root, 1000), (small, 300), (large, 1400)):
        path.write_bytes(b"x" * size)
    over = {}
    for layers in ([root, small], [large, small]):
        archive = tmp_path / "archive.tar"
        write_archive(Image(name="x:1", layers=layers, entrypoint=["x"]), tmp_path / "partial", archive)
        over[layers[0].name] = size_over(root, archive)

    assert over == {"root.tar": 300, "large.tar": 700}
