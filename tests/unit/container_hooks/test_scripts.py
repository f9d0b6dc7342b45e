"""Scripts of the containers with the tools of different images: GNU with dash, and BusyBox."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from container_hooks.archives import passed
from container_hooks.copies import Listing
from container_hooks.scripts import add, merge_files_into, merge_into, pack, pack_present, place, run_script, words

TOOLS = ("sh", "tar", "find", "stat", "mv", "rm", "mkdir", "chmod", "ln", "cat", "cp", "dd", "env", "id")


@pytest.fixture(params=["gnu", "busybox"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of an image with these tools and no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    if request.param == "busybox" and shutil.which(os.environ.get("BUSYBOX", "busybox")) is None:
        pytest.skip("busybox is not installed")
    for tool in TOOLS:
        found = shutil.which(os.environ.get("BUSYBOX", "busybox") if request.param == "busybox" else tool)
        assert found is not None, f"{tool} is missing"
        (folder / tool).symlink_to(found)
    return {"PATH": str(folder)}


def run(command: list[str], environment: dict[str, str], given: bytes = b"") -> bytes:
    program = os.path.join(environment["PATH"], command[0])  # noqa: PTH118  the first word is a name
    done = subprocess.run(
        command, executable=program, env=environment, input=given, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def counted(listing: bytes) -> tuple[int, int]:
    found = Listing(most=lambda: 100)
    found.read(listing)
    found.end()
    return found.files, found.content


def test_merge_replaces_items_of_the_archive_and_leaves_others(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "w"
    (folder / "kept").mkdir(parents=True)
    (folder / "replaced").mkdir()
    (folder / "replaced" / "old").write_text("old")

    listing = run(merge_into(str(folder)), environment, archive({"replaced/new": b"abc", "-x": b"", "a b": b"d"}))

    assert counted(listing) == (3, 4)
    assert sorted(path.name for path in folder.iterdir()) == ["-x", "a b", "kept", "replaced"]
    assert [path.name for path in (folder / "replaced").iterdir()] == ["new"]


def test_place_moves_each_path_and_makes_missing_ones(tmp_path: Path, environment: dict[str, str]) -> None:
    there = tmp_path / "g"
    (there / "workspace").mkdir(parents=True)
    (there / "workspace" / "old").write_text("old")
    places = {"shop/shop": f"{there}/workspace", "_temp/none": f"{there}/deep/home"}

    listing = run(place(str(there), places), environment, archive({"shop/shop/file": b"abc"}))

    assert counted(listing) == (1, 3)
    assert [path.name for path in (there / "workspace").iterdir()] == ["file"]
    assert (there / "deep" / "home").is_dir()
    assert sorted(path.name for path in there.iterdir()) == ["deep", "workspace"]


def test_merged_files_replace_files_and_leave_the_rest_of_their_folders(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "t"
    (folder / "commands").mkdir(parents=True)
    (folder / "commands" / "of another step").write_text("kept")
    (folder / "commands" / "own").mkdir()
    (folder / "event").write_text("a file where a folder comes")
    files = {"commands/own": b"new", "event/a b.json": b"{}", "-x.sh": b"exit"}

    listing = run(merge_files_into(str(folder), name="1a"), environment, archive(files))

    assert counted(listing) == (3, 9)
    assert sorted(path.name for path in folder.iterdir()) == ["-x.sh", "commands", "event"]
    assert (folder / "commands" / "of another step").read_text() == "kept"
    assert (folder / "commands" / "own").read_text() == "new"
    assert (folder / "event" / "a b.json").read_text() == "{}"


def test_added_files_leave_the_others_at_their_place(tmp_path: Path, environment: dict[str, str]) -> None:
    there = tmp_path / "w"
    (there / "shop").mkdir(parents=True)
    (there / "shop" / "of another step").write_text("kept")
    (there / "shop" / "changed").write_text("old")
    places = {"workspace": f"{there}/shop", "none": f"{there}/deep/home"}

    listing = run(add(str(there), places), environment, archive({"workspace/changed": b"new", "workspace/.a": b""}))

    assert counted(listing) == (2, 3)
    assert (there / "shop" / "of another step").read_text() == "kept"
    assert (there / "shop" / "changed").read_text() == "new"
    assert sorted(path.name for path in (there / "shop").iterdir()) == [".a", "changed", "of another step"]
    assert (there / "deep" / "home").is_dir()
    assert sorted(path.name for path in there.iterdir()) == ["deep", "shop"]


@pytest.mark.parametrize("present", [["-a", "b c"], []], ids=len)
def test_packed_files_are_those_that_exist(tmp_path: Path, environment: dict[str, str], present: list[str]) -> None:
    for name in [*present, "not asked"]:
        (tmp_path / name).write_text(name)

    packed = run(pack_present(str(tmp_path), ["-a", "b c", "gone"]), environment)

    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == present


def test_packed_folder_can_be_read_and_merged_again(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "from" / "sub").mkdir(parents=True)
    (tmp_path / "from" / "sub" / ("n" * 150)).write_text("content")
    (tmp_path / "from" / "link").symlink_to("sub")
    packed = run(pack(str(tmp_path / "from"), ["."]), environment)

    run(merge_into(str(tmp_path / "to")), environment, b"".join(passed([packed])))

    assert (tmp_path / "to" / "link" / ("n" * 150)).read_text() == "content"


def test_script_passes_values_without_expansion(tmp_path: Path, environment: dict[str, str]) -> None:
    script = tmp_path / "x.sh"
    value = "a'b\"c$HOME`id`\\n\nline"
    script.write_bytes(
        run_script(
            folder=str(tmp_path), entry_point="sh", arguments=["-c", '\'printf "%s" "$V"\''], variables={"V": value}
        )
    )
    assert run(["sh", "-e", str(script)], environment).decode() == value
    assert not script.exists()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, []),
        (["--noprofile", "-e", "/x.sh"], ["--noprofile", "-e", "/x.sh"]),
        (['"/a', 'b.js"', "c"], ["/a b.js", "c"]),
        (["it's"], ["it's"]),
        (["sh", "-c", "echo  two  spaces"], ["sh", "-c", "echo  two  spaces"]),
    ],
)
def test_arguments_are_split_as_the_runner_joined_them(given: list[str] | None, found: list[str]) -> None:
    assert words(given) == found
