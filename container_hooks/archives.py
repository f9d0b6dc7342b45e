"""Tar archives as streams: filter the entries, count them, and add files, without storing the archive.

The reader supports the formats that GNU tar and BusyBox write: ustar, GNU long names, and pax headers. Only the headers
are parsed. The content passes through unchanged.
"""

from __future__ import annotations

import posixpath
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from container_hooks.failures import HookFailed

BLOCK = 512
_END = bytes(2 * BLOCK)
_LONGEST_HEADER = 1024 * 1024  # bytes of a long name or of a pax header
_LONGEST_HEADERS = 4 * _LONGEST_HEADER  # bytes of all headers of one entry
_FILES = frozenset({b"0", b"\0", b"7"})
_WITHOUT_CONTENT = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})  # links, devices, folders and pipes
_PREFIXES = frozenset({b"L", b"K", b"x"})  # headers that describe the next entry
_CHANGED = re.compile(rb"changed as we read it|removed before we read it|shrank by")
_PAX_RECORD = re.compile(rb"(\d{1,8}) ([^=]+)=")
_SIZE = re.compile(rb"\d{1,19}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an archive. `name` has no leading `./` and no trailing `/`. The root folder has an empty name."""

    name: str
    kind: bytes
    size: int

    @property
    def is_file(self) -> bool:
        """Return whether the entry is a regular file."""
        return self.kind in _FILES

    @property
    def is_folder(self) -> bool:
        """Return whether the entry is a folder."""
        return self.kind == b"5"

    @property
    def is_plain(self) -> bool:
        """Return whether the entry is a file or folder that stays inside the folder where it is unpacked."""
        parts = self.name.split("/")
        return (self.is_file or self.is_folder) and not self.name.startswith("/") and ".." not in parts


@dataclass
class Tally:
    """Progress of an archive.

    `files` and `content` are the number and the total bytes of the regular files that were passed on. `seen` is the
    number of bytes that were read from the stream. `complete` is True after the end of the archive.
    """

    files: int = 0
    content: int = 0
    seen: int = 0
    complete: bool = False


def passed(
    chunks: Iterable[bytes],
    *,
    keep: Callable[[Entry], bool] = lambda _entry: True,
    tally: Tally | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Iterator[bytes]:
    """Yield the archive with the entries that `keep` accepts, and with the files of `extra` at the end.

    The entry of the root folder is always left out, because the user of a container might not own the folder into which
    the archive is unpacked. Raises `HookFailed` if the archive is truncated or damaged.
    """
    tally = tally or Tally()
    reader = _Reader(chunks, tally)
    while (found := reader.header()) is not None:
        entry, raw = found
        wanted = bool(entry.name) and keep(entry)
        if wanted:
            yield raw
            if entry.is_file:
                tally.files += 1
                tally.content += entry.size
        for piece in reader.body(entry.size):
            if wanted:
                yield piece
    reader.drain()
    tally.complete = True
    for name, content in (extra or {}).items():
        tally.files += 1
        tally.content += len(content)
        yield file_entry(name, content)
    yield _END


def file_entry(name: str, content: bytes) -> bytes:
    """Return the entry of one file with mode 0644, without the blocks that end an archive."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uid, info.gid = len(content), 0o644, 1001, 1001
    return b"".join((info.tobuf(tarfile.GNU_FORMAT), content, bytes(-len(content) % BLOCK)))


@dataclass
class _Reader:
    chunks: Iterable[bytes]
    tally: Tally
    held: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._iterator = iter(self.chunks)

    def header(self) -> tuple[Entry, bytes] | None:
        """Return the next entry with its raw headers, or None at the end of the archive."""
        raw, name, size = bytearray(), None, None
        while True:
            block = self._take(BLOCK)
            if block == bytes(BLOCK):
                if raw:
                    raise _damaged("it ends after the header of a long name")
                return None
            raw += block
            kind = block[156:157]
            length = _number(block[124:136])
            _verify(block)
            if kind in _PREFIXES:
                if length > _LONGEST_HEADER or len(raw) > _LONGEST_HEADERS:
                    raise _damaged("the headers of an entry are too long")
                content = self._take(length + -length % BLOCK)
                raw += content
                if kind == b"L":
                    name = content[:length].rstrip(b"\0")
                elif kind == b"x":
                    name, size = _pax(content[:length], name, size)
                continue
            if kind in _WITHOUT_CONTENT:
                length, size = 0, None
            elif kind not in _FILES and kind != b"g":
                raise _damaged("it has an entry of an unknown kind")
            own = _own_name(block) if name is None else name
            return Entry(_clean(own), kind, length if size is None else size), bytes(raw)

    def body(self, size: int) -> Iterator[bytes]:
        """Yield the content of an entry with its padding."""
        left = size + -size % BLOCK
        while left:
            if not self.held:
                self._more()
            piece = bytes(self.held[:left])
            del self.held[:left]
            left -= len(piece)
            yield piece

    def drain(self) -> None:
        """Read the rest of the stream, which contains only padding. The sender then ends without an error."""
        self.held.clear()
        for chunk in self._iterator:
            self.tally.seen += len(chunk)

    def _take(self, count: int) -> bytes:
        while len(self.held) < count:
            self._more()
        taken = bytes(self.held[:count])
        del self.held[:count]
        return taken

    def _more(self) -> None:
        for chunk in self._iterator:
            if chunk:
                self.tally.seen += len(chunk)
                self.held += chunk
                return
        raise _damaged("it is truncated")


def _verify(block: bytes) -> None:
    stated = _number(block[148:156])
    if stated != sum(block[:148]) + sum(block[156:]) + 8 * 0x20:
        raise _damaged("the checksum of a header is wrong")


def _number(digits: bytes) -> int:
    """Return a number of a header: octal digits, or base 256 if the first bit is set."""
    if digits[0] & 0x80:
        return int.from_bytes(digits, "big") & ~(0x80 << 8 * (len(digits) - 1))
    text = digits.split(b"\0")[0].strip()
    try:
        return int(text or b"0", 8)
    except ValueError as error:
        raise _damaged("a number in a header is wrong") from error


def _own_name(block: bytes) -> bytes:
    name = block[:100].split(b"\0")[0]
    prefix = block[345:500].split(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(content: bytes, name: bytes | None, size: int | None) -> tuple[bytes | None, int | None]:
    """Return the name and the size of the next entry after a pax header with this content."""
    begin = 0
    while begin < len(content):
        match = _PAX_RECORD.match(content, begin)
        end = begin + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(content):
            raise _damaged("a pax header is wrong")
        value = content[match.end() : end - 1]
        if match[2] == b"path":
            name = value
        elif match[2] == b"size":
            size = int(value) if _SIZE.fullmatch(value) else None
        begin = end
    return name, size


def _clean(name: bytes) -> str:
    text = name.decode("utf-8", "surrogateescape")
    absolute = text.startswith("/")
    while text.startswith("./"):
        text = text[2:]
    text = text.rstrip("/")
    return "/" + text.lstrip("/") if absolute else ("" if text == "." else text)


def _damaged(why: str) -> HookFailed:
    return HookFailed(f"an archive of copied files is damaged: {why}; run the job again")


def is_whole(code: int, said: bytes | bytearray) -> bool:
    """Return whether `tar` has written a whole archive. `said` is the end of the error output of `tar`.

    GNU tar ends with code 1 if another process changed or removed files while `tar` read them.
    """
    return code == 0 or (code == 1 and _CHANGED.search(said) is not None)


def below(name: str, folder: str) -> bool:
    """Return whether a path is `folder` or is below it. Both are relative paths without `..`."""
    return name == folder or name.startswith(posixpath.join(folder, ""))
