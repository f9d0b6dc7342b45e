"""Position in the log of a container, so that each byte is passed on once although the log is read several times.

The API server can return the lines since a second, each with its time. A line is therefore known by its time, and by
its number among the lines with this time. Of the last line, the number of bytes that have arrived is known too. Lines
are not stored, so a long line needs no memory.

If the clock of the node is set back between two lines, and the connection is lost soon after, lines can be passed on
twice or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

from ostler.errors import Retryable

_LONGEST_TIME = 64
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_NANOSECONDS = 10**9


class LogLines:
    """Reads a log with times, and passes on its bytes without the times. `passed` is the number of these bytes."""

    def __init__(self, output: Callable[[bytes], None]) -> None:
        """Pass the bytes on to `output`."""
        self._output = output
        self.passed = 0
        self._last = (-1, 0)  # time of the line, and its number among the lines with this time
        self._arrived = 0  # bytes of this line
        self.begin()

    @property
    def since(self) -> int | None:
        """Return the second of the last line, where the next read must begin, or None if nothing has arrived."""
        return None if self._last[0] < 0 else self._last[0] // _NANOSECONDS

    def begin(self) -> None:
        """Begin another read of the log, at the second `since`."""
        self._head = b""
        self._in_line = False
        self._line = (-1, 0)
        self._skip: float = 0  # bytes of the present line that are not passed on
        self._known = self._last[0] >= 0  # all lines until now have arrived in an earlier read

    def read(self, data: bytes) -> None:
        """Read a piece. Raises `Retryable` if a line has no time: then the node reports a failure in the log."""
        while data:
            if not self._in_line:
                data = self._read_time(data)
                continue
            line, feed, data = data.partition(b"\n")
            self._pass_on(line + feed)
            self._in_line = not feed

    def _read_time(self, data: bytes) -> bytes:
        """Read the time of a line, and return the rest of the piece."""
        text, space, rest = (self._head + data).partition(b" ")
        if not space and len(text) <= _LONGEST_TIME and b"\n" not in text:
            self._head = text
            return b""
        at = _nanoseconds(text) if space else None
        if at is None:
            shown = (self._head + data)[:200].decode(errors="replace")
            raise Retryable(f"the log of the container has a line without a time: {shown!r}")
        self._head, self._in_line = b"", True
        self._line = (at, self._line[1] + 1 if at == self._line[0] else 0)
        if self._known and self._line < self._last:
            self._skip = float("inf")
        elif self._known and self._line == self._last:
            self._known, self._skip = False, self._arrived
        else:
            self._known, self._skip = False, 0
            self._last, self._arrived = self._line, 0
        return rest

    def _pass_on(self, data: bytes) -> None:
        skipped = int(min(self._skip, len(data)))
        self._skip -= skipped
        if new := data[skipped:]:
            self._output(new)
            self._arrived += len(new)
            self.passed += len(new)


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
