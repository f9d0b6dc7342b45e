"""Tar archives as streams: filter the entries, count them, and add files, without storing the archive.

The reader supports the formats that GNU tar and BusyBox write: ustar, GNU long names, and pax headers. The headers that
are passed on are new, in the GNU format, and contain only what the reader has read. Programs disagree about unusual
headers, for example about a pax path before a GNU long name. With the original headers, `tar` could unpack other
entries than the filter has accepted. The content passes through unchanged.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from container_hooks.failures import HookFailed

BLOCK = 512
_NAME = 100  # bytes of a name in a header block
_END = bytes(2 * BLOCK)
_LARGEST = 2**60  # the size of a file
_LONGEST_HEADER = 1024 * 1024  # bytes of a long name or of a pax header
_LONGEST_HEADERS = 4 * _LONGEST_HEADER  # bytes of all headers of one entry
_FILES = frozenset({b"0", b"\0", b"7"})
_WITHOUT_CONTENT = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})  # links, devices, folders and pipes
_WITH_TARGET = frozenset({b"1", b"2"})
_PREFIXES = {b"L": b"path", b"K": b"linkpath", b"x": b""}  # headers that describe the next entry
_OWN = bytes(100) + b"0000644\0" + 2 * b"0001751\0" + bytes(12) + b"%011o\0" % 0 + bytes(364)
"""Header block with mode 0644 and the user 1001, which other blocks are made from."""
_CHANGED = re.compile(rb"changed as we read it|removed before we read it|shrank by")
_PAX_RECORD = re.compile(rb"(\d{1,8}) ([^=]+)=")
_PAX_NUMBER = re.compile(rb"\d{1,15}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an archive. `name` has no part `.` and no trailing `/`. The root folder has an empty name."""

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
        entry, header = found
        wanted = bool(entry.name) and keep(entry)
        if wanted:
            yield header
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
    return b"".join((_header(_OWN, name.encode(), b"0", len(content), b""), content, bytes(-len(content) % BLOCK)))


@dataclass
class _Reader:
    chunks: Iterable[bytes]
    tally: Tally
    held: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._iterator = iter(self.chunks)

    def header(self) -> tuple[Entry, bytes] | None:
        """Return the next entry with new headers, or None at the end of the archive."""
        told: dict[bytes, bytes] = {}
        length = 0
        while True:
            block = self._take(BLOCK)
            if block == bytes(BLOCK):
                if length:
                    raise _damaged("it ends after the header of a long name")
                return None
            kind, size = block[156:157], _number(block[124:136])
            _verify(block)
            if kind not in _PREFIXES:
                return _entry(block, kind, size, told)
            length += BLOCK + size
            if size > _LONGEST_HEADER or length > _LONGEST_HEADERS:
                raise _damaged("the headers of an entry are too long")
            content = self._take(size + -size % BLOCK)[:size]
            key = _PREFIXES[kind]
            told |= {key: _until_zero(content)} if key else _pax(content)

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
    """Return a number of a header: octal digits, or base 256 if the first bit is set.

    Numbers that are negative or too large for `tar` are refused.
    """
    if digits[0] & 0x80:
        number = int.from_bytes(digits, "big") & ~(0x80 << 8 * (len(digits) - 1))
        if number > _LARGEST:
            raise _damaged("a number in a header is too large")
        return number
    text = _until_zero(digits).strip()
    try:
        return int(text or b"0", 8)
    except ValueError as error:
        raise _damaged("a number in a header is wrong") from error


def _entry(block: bytes, kind: bytes, size: int, told: Mapping[bytes, bytes]) -> tuple[Entry, bytes]:
    """Return the entry with this header block, and new headers of it. `told` has the records of earlier headers."""
    if kind not in _FILES | _WITHOUT_CONTENT:
        raise _damaged("it has an entry of an unknown kind")
    if any(key.startswith(b"GNU.sparse.") for key in told):
        raise _damaged("it has a sparse file")
    name = _clean(told.get(b"path") or _own_name(block))
    kind = b"0" if kind in _FILES else kind
    size = _pax_number(told.get(b"size"), size) if kind == b"0" else 0
    target = (told.get(b"linkpath") or _until_zero(block[157:257])) if kind in _WITH_TARGET else b""
    if b"\0" in name + target:
        raise _damaged("a path has a zero byte")
    for key, begin in ((b"uid", 108), (b"gid", 116)):
        if told.get(key):
            block = block[:begin] + _digits(_pax_number(told[key], 0), 8) + block[begin + 8 :]
    entry = Entry(name.decode("utf-8", "surrogateescape"), kind, size)
    return entry, _header(block, name + b"/" if entry.is_folder else name, kind, size, target)


def _header(like: bytes, name: bytes, kind: bytes, size: int, target: bytes) -> bytes:
    """Return new headers of an entry, in the GNU format. BusyBox ignores the names in pax headers.

    The mode, owner, time and device are those of the header block `like`. All else is new.
    """
    long = b""
    for each, long_kind in ((target, b"K"), (name, b"L")):
        if len(each) > _NAME:
            content = each + b"\0"
            long += _block(_OWN, b"././@LongLink", long_kind, len(content), b"")
            long += content + bytes(-len(content) % BLOCK)
    return long + _block(like, name[:_NAME], kind, size, target[:_NAME])


def _block(like: bytes, name: bytes, kind: bytes, size: int, target: bytes) -> bytes:
    names = name.ljust(_NAME, b"\0"), target.ljust(_NAME, b"\0")
    start = names[0] + like[100:124] + _digits(size, 12) + like[136:148]
    end = kind + names[1] + b"ustar  \0" + like[265:345] + bytes(167)
    return start + b"%06o\0 " % (sum(start) + 8 * 0x20 + sum(end)) + end


def _digits(number: int, length: int) -> bytes:
    """Return the field with this number: octal digits, or base 256 for a large number."""
    if number < 8 ** (length - 1):
        return b"%0*o\0" % (length - 1, number)
    return (number | 0x80 << 8 * (length - 1)).to_bytes(length, "big")


def _own_name(block: bytes) -> bytes:
    name = _until_zero(block[:_NAME])
    prefix = _until_zero(block[345:500]) if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _until_zero(text: bytes) -> bytes:
    return text.split(b"\0", 1)[0]


def _pax(content: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header. A record without a value removes an earlier record."""
    records, begin = dict[bytes, bytes](), 0
    while begin < len(content):
        match = _PAX_RECORD.match(content, begin)
        end = begin + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(content):
            raise _damaged("a pax header is wrong")
        records[match[2]] = content[match.end() : end - 1]
        begin = end
    return records


def _pax_number(value: bytes | None, otherwise: int) -> int:
    if not value:
        return otherwise
    if not _PAX_NUMBER.fullmatch(value):
        raise _damaged("a number in a pax header is wrong")
    return int(value)


def _clean(name: bytes) -> bytes:
    """Return a name without empty parts and parts `.`, so that the caller judges the path that `tar` writes."""
    parts = b"/".join(part for part in name.split(b"/") if part not in {b"", b"."})
    return b"/" + parts if name.startswith(b"/") else parts


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
