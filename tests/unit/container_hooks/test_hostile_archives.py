"""Archives from a hostile container: `tar` unpacks exactly the entries that the filter accepted, and nothing else."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import subprocess
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path, PurePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container_hooks.archives import Entry, Tally, below, passed
from container_hooks.failures import HookFailed

FOLDER = "commands"
"""The folder below which entries are accepted, like `_runner_file_commands` of a step."""
USTAR, GNU, V7 = b"ustar\x0000", b"ustar  \0", b""
_BUSYBOX = shutil.which(os.environ.get("BUSYBOX", "busybox"))
UNPACKERS = {
    "hook.sh": ["tar", "-xof", "-", "--no-overwrite-dir"],
    "local": ["tar", "-xf", "-"],
    **({} if _BUSYBOX is None else {"busybox": [_BUSYBOX, "tar", "-xof", "-"]}),
}
"""The commands of `container_hooks/hook.sh` and of `LocalFiles`."""


def header(
    name: str, kind: bytes = b"0", size: int = 0, *, target: str = "", magic: bytes = USTAR, prefix: str = ""
) -> bytes:
    """Return one header block. A negative size is written in base 256."""
    digits = b"%011o\0" % size if size >= 0 else size.to_bytes(12, "big", signed=True)
    parts = [name.encode(), b"0000644\0", b"0001751\0", b"0001751\0", digits, bytes(12), b" " * 8, kind]
    parts += [target.encode(), magic, b"", b"", b"", b"", prefix.encode()]
    block = struct.pack("100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x", *parts)
    return signed(block)


def signed(block: bytes) -> bytes:
    """Return a header block with the correct checksum."""
    return block[:148] + b"%06o\0 " % (sum(block[:148]) + 8 * 0x20 + sum(block[156:])) + block[156:]


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def pax(*records: tuple[str, str], kind: bytes = b"x") -> bytes:
    """Return a pax header with these records."""
    content = b""
    for key, value in records:
        rest = f" {key}={value}\n".encode()
        size = next(n for n in range(len(rest), len(rest) + 9) if n == len(rest) + len(str(n)))
        content += str(size).encode() + rest
    return header("pax", kind, len(content)) + padded(content)


def long_name(name: str, kind: bytes = b"L") -> bytes:
    """Return a GNU header with a long name, or with a long target of a link if `kind` is K."""
    content = name.encode() + b"\0"
    return header("././@LongLink", kind, len(content), magic=GNU) + padded(content)


def sparse(name: str) -> tuple[tuple[str, str], ...]:
    return (
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.name", name),
        ("GNU.sparse.realsize", "4"),
    )


class Accepted:
    """The entries that the filter accepted, with their contents, and the archive that it passed on."""

    def __init__(self, raw: bytes) -> None:
        self.entries: list[tuple[Entry, bytearray]] = []
        self.archive = bytearray()
        self.failed = False
        begun = False

        def keep(entry: Entry) -> bool:
            nonlocal begun
            if not (entry.is_plain and below(entry.name, FOLDER)):
                return False
            self.entries.append((entry, bytearray()))
            begun = False
            return True

        try:
            for piece in passed([raw], keep=keep):
                self.archive += piece
                if begun:
                    self.entries[-1][1].extend(piece)
                begun = True
        except HookFailed:
            self.failed = True
        for entry, content in self.entries:
            del content[entry.size if entry.is_file else 0 :]


def unpacked(command: Sequence[str], archive: bytes, within: Path) -> int:
    return subprocess.run(command, input=archive, check=False, capture_output=True, cwd=within).returncode


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return the contents of the files below a folder. A folder has no content, and a link is an error."""
    found: dict[str, bytes | None] = {}
    for path in folder.rglob("*"):
        assert not path.is_symlink(), f"link {path}"
        found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else None
    return found


def above(name: str) -> set[str]:
    """Return the folders that contain this path."""
    return {str(folder) for folder in PurePath(name).parents} - {"."}


def expected(accepted: Accepted) -> dict[str, bytes | None]:
    """Return the files and folders that a program makes if it unpacks the accepted entries in their order."""
    made: dict[str, bytes | None] = {}
    for entry, content in accepted.entries:
        made |= dict.fromkeys(above(entry.name))
        made[entry.name] = bytes(content) if entry.is_file else None
    return made


def check(raw: bytes, *commands: Sequence[str]) -> None:
    """Compare the entries that the filter accepted with the files that each command unpacked."""
    accepted = Accepted(raw)
    if not accepted.archive:
        return
    for command in commands:
        with tempfile.TemporaryDirectory() as base:
            target, outside = Path(base, "target"), Path(base, "outside")
            target.mkdir()
            outside.mkdir()
            code = unpacked(command, bytes(accepted.archive), target)
            found = tree(target)
            assert set(Path(base).rglob("*")) - set(target.rglob("*")) == {target, outside}
        files = {entry.name for entry, _content in accepted.entries if entry.is_file}
        folders = {entry.name for entry, _content in accepted.entries if entry.is_folder}
        folders = folders.union(*(above(entry.name) for entry, _content in accepted.entries))
        if code == 0 and not accepted.failed and not files & folders:
            assert found == expected(accepted)
            continue
        # The command has failed at some entry, or it does not replace a file by a folder, as BusyBox.
        assert {name for name, content in found.items() if content is None} <= folders
        for name, content in found.items():
            own = [each for entry, each in accepted.entries if entry.is_file and entry.name == name]
            assert content is None or any(each.startswith(content) for each in own)


LINK = header("escaped", b"2", target="../outside")
ATTACKS = {
    "entries in a file whose name ends with a slash": header(f"{FOLDER}/d/", size=len(LINK)) + LINK,
    "entries in a file of the size in a replaced pax header": pax(("size", str(len(LINK))))
    + pax(("path", f"{FOLDER}/ok"))
    + header("y")
    + LINK,
    "pax path before a GNU long name": pax(("path", "escaped"))
    + long_name(f"{FOLDER}/ok")
    + header("y", size=4)
    + padded(b"evil"),
    "name of a sparse file": pax(("path", f"{FOLDER}/ok"), *sparse("escaped"))
    + header("y", size=516)
    + padded(b"1\n0\n4\n".ljust(512, b"\0") + b"evil"),
    "global pax header": pax(("path", "escaped"), kind=b"g") + header(f"{FOLDER}/ok", size=4) + padded(b"evil"),
    "size of a file that is negative for tar": header(f"{FOLDER}/ok", size=-1) + LINK,
    "zero byte in a pax path": pax(("path", "escaped\0/../commands/ok")) + header("y", size=4) + padded(b"evil"),
}


@pytest.mark.parametrize("command", UNPACKERS.values(), ids=UNPACKERS)
@pytest.mark.parametrize("what", ATTACKS)
def test_tar_unpacks_only_what_the_filter_accepted(what: str, command: list[str]) -> None:
    check(ATTACKS[what] + bytes(1024), command)


@pytest.mark.parametrize("command", UNPACKERS.values(), ids=UNPACKERS)
def test_second_copy_does_not_follow_a_link_of_the_first_copy(tmp_path: Path, command: list[str]) -> None:
    """The first archive smuggled a link to a folder of the runner, and the second archive a file below this link."""
    target, home = tmp_path / "_temp", tmp_path / "home"
    target.mkdir()
    home.mkdir()
    (home / "run.sh").write_text("own")
    smuggled = [header("link", b"2", target=str(home)), header("link/run.sh", size=4) + padded(b"evil")]
    for each in smuggled:
        raw = header(f"{FOLDER}/d/", size=len(each)) + each + bytes(1024)
        unpacked(command, bytes(Accepted(raw).archive), target)

    assert (home / "run.sh").read_text() == "own"
    assert not (target / "link").is_symlink()


@pytest.mark.parametrize(
    "raw",
    [
        header(f"{FOLDER}/bomb", b"S", 512) + bytes(512),
        pax(("path", f"{FOLDER}/bomb"), *sparse(f"{FOLDER}/bomb")) + header("x", size=0),
        pax(("GNU.sparse.map", "0,1"), ("GNU.sparse.size", str(2**50))) + header(f"{FOLDER}/bomb", size=1) + bytes(512),
    ],
    ids=["old GNU format", "pax format 1.0", "pax format 0.1"],
)
def test_sparse_file_is_refused(raw: bytes) -> None:
    """A few bytes would become a file of any size."""
    with pytest.raises(HookFailed, match=r"sparse file|unknown kind"):
        list(passed([raw, bytes(1024)]))


def test_archive_with_very_many_entries_needs_little_memory() -> None:
    """The entries are empty, so each of them costs the sender only its header."""
    count, tally = 100_000, Tally()
    entry, folder = header(f"{FOLDER}/a"), header(f"{FOLDER}/b", b"5")
    chunks = itertools.chain(itertools.repeat((entry + folder) * 50, count // 100), [bytes(1024)])

    tracemalloc.start()
    try:
        seen = sum(len(piece) for piece in passed(chunks, tally=tally))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (tally.files, seen) == (count // 2, 512 * count + 1024)
    assert most < 2 * 1024 * 1024


INSIDE = st.sampled_from(
    [f"{FOLDER}{rest}" for rest in ("", "/", "/a", "/a/", "/a/b", "/d/", "//a", "/./a", "/a/.", f"/{'n' * 120}")]
)
OUTSIDE = st.sampled_from(
    [
        *(f"{FOLDER}/../x", f"{FOLDER}/a/../..", f"{FOLDER}-x", f"/{FOLDER}/a", f"{FOLDER}/a\0b", f"{FOLDER}/\\141"),
        *("x", "x/y", ".", "", "..", "../outside/x", "../x", "/ostler-escaped", "-x"),
    ]
)
NAMES = INSIDE | OUTSIDE
TARGETS = st.sampled_from(["../outside", "..", f"{FOLDER}/a", "x", "/etc/passwd", ""])
SIZES = st.sampled_from([0, 1, 4, 511, 512, 513, 1024, 1536, -1, 8**11 - 1])
KINDS = st.sampled_from([bytes([each]) for each in b"0000\x005712346S"])
RECORDS = st.one_of(
    st.tuples(st.just("path"), NAMES),
    st.tuples(st.just("linkpath"), TARGETS),
    st.tuples(st.just("size"), SIZES.map(str) | st.sampled_from(["", "x", "1e3", "00", "9" * 30])),
    st.tuples(st.sampled_from(["uid", "gid", "mtime"]), st.sampled_from(["0", "-1", "1.5", "9" * 30, ""])),
    st.tuples(st.just("GNU.sparse.name"), NAMES),
    st.sampled_from(
        [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.map", "0,4"), ("comment", "c")]
    ),
)
PREFIXES = st.builds(long_name, NAMES, st.sampled_from([b"L", b"K"])) | st.builds(
    lambda records, kind: pax(*records, kind=kind), st.lists(RECORDS, max_size=3), st.sampled_from([b"x", b"x", b"g"])
)


@st.composite
def entries(draw: st.DrawFn, depth: int = 1) -> bytes:
    """Draw the headers and the content of one entry. The content might be further entries, hidden in a file."""
    content = draw(st.binary(max_size=8) | archives(depth - 1) if depth else st.binary(max_size=8))
    if draw(st.booleans()):
        return header(draw(INSIDE)[:100], size=len(content)) + padded(content)
    block = header(
        draw(NAMES)[:100],
        draw(KINDS),
        draw(st.just(len(content)) | SIZES),
        target=draw(TARGETS),
        magic=draw(st.sampled_from([USTAR, GNU, V7])),
        prefix=draw(st.sampled_from(["", "", "", FOLDER, ".."])),
    )
    return b"".join(draw(st.lists(PREFIXES, max_size=2))) + block + padded(content)


def archives(depth: int = 1) -> st.SearchStrategy[bytes]:
    return st.lists(entries(depth), min_size=1, max_size=3).map(b"".join)


def damaged(raw: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Return an archive with changed bytes, and with correct checksums of the blocks that look like headers."""
    data = bytearray(raw)
    for place, value in changes:
        data[place % len(data)] = value
    blocks = [bytes(data[begin : begin + 512]) for begin in range(0, len(data), 512)]
    return b"".join(signed(block) if block[154:156] == b"\0 " else block for block in blocks)


CHANGES = st.lists(
    st.tuples(st.integers(0, 4095), st.integers(0, 255) | st.sampled_from(b"\0/.0125xgLKS \x80\xff")), max_size=4
)


@given(raw=archives(), changes=st.just([]) | CHANGES)
@settings(max_examples=120, derandomize=True, database=None)
def test_tar_unpacks_no_drawn_archive_differently(raw: bytes, changes: list[tuple[int, int]]) -> None:
    check(damaged(raw, changes) + bytes(1024), *UNPACKERS.values())
