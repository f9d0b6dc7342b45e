"""Position in the log of a container, so that each byte is passed on once although the log is read several times.

The API server can return the lines since a second, each with its time. The position is the highest second that has
arrived, the number of lines since its first line, and the number of bytes of the last of them. Another read begins at
this second, and skips these lines. Lines are not stored, so a long line needs no memory.

A node writes both output streams into one log, so a line can have an earlier time than the line before it. If such a
line belongs to an earlier second, and the connection is lost soon after, lines can be passed on twice or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

from ostler.errors import Retryable

_LONGEST_TIME = 64
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_NANOSECONDS = 10**9
_ALL = float("inf")
_SLICE = 32 * 1024  # bytes that are parsed at once, because each line copies the rest
_FAILURES = (b"failed to ", b"unable to retrieve ")
"""Beginnings of the messages that a node writes into the answer if it cannot read the log."""


class LogLines:
    """Reads a log with times, and passes on its bytes without the times.

    `passed` is the number of these bytes. `open` is True if the last of them ended no line.
    """

    def __init__(self, output: Callable[[bytes], None]) -> None:
        """Pass the bytes on to `output`."""
        self._output = output
        self.passed = 0
        self.open = False
        self._second = -1  # highest second of a line
        self._count = 0  # lines since the first line of this second, without those of earlier seconds
        self._latest = -1  # highest time of a line
        self._arrived: float = 0  # bytes of the last line that is counted; all of them if another line came after it
        self.begin()

    @property
    def since(self) -> int | None:
        """Return the second where the next read must begin, or None if nothing has arrived."""
        return None if self._second < 0 else self._second

    def begin(self) -> None:
        """Begin another read of the log, at the second `since`."""
        self._head = b""
        self._in_line = False
        self._skip: float = 0  # bytes of the present line that are not passed on
        self._again = 0  # lines of this read that have arrived in an earlier read
        self._known = self._count > 0  # all lines until now have arrived in an earlier read
        self._counts = False  # whether the present line is the last that is counted
        self._first = True  # whether the next line is the first of this read

    def read(self, data: bytes) -> None:
        """Read a piece. Raises `Retryable` if a line has no time: then the node reports a failure in the log."""
        for begin in range(0, len(data), _SLICE):
            self._read(data[begin : begin + _SLICE])

    def _read(self, data: bytes) -> None:
        while data:
            if not self._in_line:
                data = self._read_time(data)
                continue
            line, feed, data = data.partition(b"\n")
            self._pass_on(line + feed)
            self._in_line = not feed

    def _read_time(self, data: bytes) -> bytes:
        """Read the time of a line, and return the rest of the piece."""
        whole = self._head + data
        text, space, rest = whole.partition(b" ")
        if not space and len(text) <= _LONGEST_TIME and b"\n" not in text:
            self._head = text
            return b""
        at = _nanoseconds(text) if space else None
        failure = any(whole.startswith(each) or each.startswith(whole) for each in _FAILURES)
        if at is None and self._known and self._first and not failure:
            # The line began before the second. The node left out its first part, with the time.
            self._head, self._in_line, self._first, self._skip = b"", True, False, _ALL
            return whole
        if at is None:
            # Anything else is output of the step, which the runner could not mask here.
            shown = f": {whole[:200].decode(errors='replace')!r}" if failure else ""
            raise Retryable(f"the log of the container has a line without a time{shown}")
        self._head, self._in_line, self._first = b"", True, False
        if self._known and self._again < self._count and at <= self._latest:
            self._again += 1
            self._counts = self._again == self._count
            self._skip = self._arrived if self._counts else _ALL
            self._known = not self._counts
        else:
            self._known, self._skip = False, 0
            self._count_line(at)
        return rest

    def _count_line(self, at: int) -> None:
        second = at // _NANOSECONDS
        self._latest = max(self._latest, at)
        self._counts = second >= self._second
        if not self._counts:
            self._arrived = _ALL
            return
        self._count = self._count + 1 if second == self._second else 1
        self._second, self._arrived = second, 0

    def _pass_on(self, data: bytes) -> None:
        skipped = int(min(self._skip, len(data)))
        self._skip -= skipped
        if new := data[skipped:]:
            self._output(new)
            self.open = not new.endswith(b"\n")
            self.passed += len(new)
            if self._counts:
                self._arrived += len(new)


def _nanoseconds(text: bytes) -> int | None:
    """Return a time of RFC 3339 in nanoseconds since 1970, or None if the text is no time."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    second, fraction, zone = found.groups()
    try:
        whole = datetime.fromisoformat((second + (b"+00:00" if zone == b"Z" else zone)).decode())
    except ValueError:
        return None
    return int(whole.timestamp()) * _NANOSECONDS + int((fraction or b"").ljust(9, b"0"))
