"""Archives as streams: what GNU tar and Python write passes unchanged, and what is cut is an error."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_hooks.archives import Entry, Tally, _pax, below, passed
from container_hooks.copies import Listing
from container_hooks.failures import HookFailed

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(files: dict[str, bytes], *, form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def pieces(data: bytes, size: int = 700) -> Iterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


def content_of(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {each.name: tar.extractfile(each).read() for each in tar if each.isfile()}  # type: ignore[union-attr]


FILES = {"a": b"x" * 1500, "d/" + "long-name-" * 30: b"y", "empty": b"", "d/ä": b"z" * 512}


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("size", [1, 511, 512, 513, 100_000])
def test_archive_passes_unchanged_in_each_format(form: int, size: int) -> None:
    files = FILES if form != tarfile.USTAR_FORMAT else {"a": FILES["a"], "p" * 90 + "/" + "n" * 90: b"y"}
    tally = Tally()
    found = content_of(b"".join(passed(pieces(archive(files, form=form), size), tally=tally)))
    assert found == files
    assert (tally.files, tally.content) == (len(files), sum(map(len, files.values())))


def test_archive_of_a_real_folder_loses_only_its_root(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    (folder / "sub" / "deeper").mkdir(parents=True)
    (folder / "sub" / "file").write_text("content")
    (folder / "link").symlink_to("sub/file")
    (folder / "hard").hardlink_to(folder / "sub" / "file")
    (folder / ("n" * 200)).write_text("long")
    data = subprocess.run(["tar", "-cf", "-", "-C", str(folder), "."], check=True, capture_output=True).stdout
    tally = Tally()

    found = b"".join(passed(pieces(data), tally=tally))

    names = subprocess.run(["tar", "-tf", "-"], input=found, check=True, capture_output=True).stdout.decode().split()
    assert sorted(names) == sorted(["sub/", "sub/deeper/", "sub/file", "link", "hard", "n" * 200])
    assert tally.files == 2


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_new_headers_have_the_attributes_of_the_original_ones(form: Literal[0, 1, 2]) -> None:
    """The copies between containers need owners, modes, times and links. Users of OpenShift have large numbers."""
    user = 1_000_650_000 if form != tarfile.USTAR_FORMAT else 1001
    long = "t" * (200 if form != tarfile.USTAR_FORMAT else 90)
    given = [tarfile.TarInfo(name) for name in ("file", "folder", "link", "hard", "pipe", "disk")]
    kinds = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE)
    for info, kind in zip(given, kinds, strict=True):
        info.type, info.uid, info.gid, info.uname, info.gname = kind, user, user + 1, "runner", "docker"
        info.mode, info.mtime = 0o2751, 1_700_000_000
    given[2].linkname, given[3].linkname, given[5].devmajor, given[5].devminor = long, "file", 8, 1
    raw = b"".join(info.tobuf(form) for info in given) + bytes(1024)

    with tarfile.open(fileobj=io.BytesIO(b"".join(passed(pieces(raw))))) as tar:
        found = tar.getmembers()

    ignored = {"chksum"}
    assert [{**info.get_info(), **dict.fromkeys(ignored)} for info in found] == [
        {**info.get_info(), **dict.fromkeys(ignored)} for info in given
    ]


@pytest.mark.parametrize("name", ["./keep/./a", "keep//a", "././/keep/a"])
def test_filter_judges_the_path_that_tar_writes(name: str) -> None:
    """A name might have parts that change nothing."""
    found = content_of(b"".join(passed([archive({name: b"1"})], keep=lambda entry: below(entry.name, "keep"))))
    assert found == {"keep/a": b"1"}


def test_entries_are_filtered_and_files_are_added() -> None:
    data = archive({"keep/a": b"1", "drop/b": b"2" * 2000, "keep/c": b"3"})
    found = content_of(b"".join(passed([data], keep=lambda entry: below(entry.name, "keep"), extra={"x.sh": b"echo"})))
    assert found == {"keep/a": b"1", "keep/c": b"3", "x.sh": b"echo"}


@pytest.mark.parametrize("cut", [1, 100, 512, 600, 1024, 2000])
def test_archive_that_is_cut_short_is_an_error(cut: int) -> None:
    data = archive({"a": b"x" * 1500}).rstrip(b"\0")[:cut]
    with pytest.raises(HookFailed, match="damaged"):
        list(passed([data]))


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


def test_pax_header_is_read_without_a_copy_for_each_record() -> None:
    """The largest header has 200,000 records. A copy of the rest for each record would be 100 GB."""
    copied = 0

    class Counted(bytes):
        def __getitem__(self, key: Any) -> Any:
            nonlocal copied
            found = super().__getitem__(key)
            copied += len(found)
            return Counted(found)

    content = Counted(b"9 path=x\n" * 1000)

    assert _pax(content) == {b"path": b"x"}
    assert copied <= len(content)


@pytest.mark.parametrize("record", [b"9" * 9000 + b" size=1\n", b"6016 size=" + b"9" * 6005 + b"\n"])
def test_number_of_many_digits_in_a_pax_header_is_not_read(record: bytes) -> None:
    """Python raises an error for a number with more than 4,300 digits."""
    padded = record + bytes(-len(record) % 512)

    with contextlib.suppress(HookFailed):
        list(passed([header(b"x", len(record)) + padded + archive({"a": b"1"})]))


def test_endless_headers_of_one_entry_are_an_error() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield header(b"L", 1024 * 1024) + bytes(1024 * 1024)

    with pytest.raises(HookFailed, match="headers of an entry are too long"):
        list(passed(endless()))


def test_empty_stream_is_an_error() -> None:
    with pytest.raises(HookFailed, match="truncated"):
        list(passed([]))


def test_changed_header_is_an_error() -> None:
    data = bytearray(archive({"a": b"x"}))
    data[0] = ord("b")
    with pytest.raises(HookFailed, match="checksum"):
        list(passed([bytes(data)]))


@given(st.binary(max_size=3000))
def test_no_stream_breaks_the_reader(data: bytes) -> None:
    with contextlib.suppress(HookFailed):
        list(passed([data]))


@pytest.mark.parametrize(
    ("entry", "plain"),
    [
        (Entry("a/b", b"0", 1), True),
        (Entry("a", b"5", 0), True),
        (Entry("/etc/passwd", b"0", 1), False),
        (Entry("a/../../b", b"0", 1), False),
        (Entry("link", b"2", 0), False),
        (Entry("hard", b"1", 0), False),
        (Entry("device", b"3", 0), False),
    ],
)
def test_only_files_and_folders_inside_are_plain(entry: Entry, *, plain: bool) -> None:
    assert entry.is_plain is plain


def test_listing_counts_a_file_with_several_links_once() -> None:
    listing = Listing(most=lambda: 100)
    for piece in (b"1 5 10\n2 7 1", b"00\n2 7 100\n", b"1 6 1"):
        listing.read(piece)
    listing.end()
    assert (listing.files, listing.content) == (3, 111)


def test_listing_that_is_no_listing_is_an_error() -> None:
    with pytest.raises(HookFailed, match="the listing of the copied files is wrong"):
        Listing(most=lambda: 100).read(b"stat: not found\n")
