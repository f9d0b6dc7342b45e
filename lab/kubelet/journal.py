"""Journal of the kubelet: one JSON object per line, flushed at once. The verdict on a run is computed from it.

The journal never contains a JIT config or a token.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self


class Journal:
    """An append-only file; a context manager.

    `seq` increases by one with each line. `at` is in UTC.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seq = 0
        self._file: IO[str] | None = None

    def write(self, event: str, **facts: Any) -> None:
        """Write one event with its facts."""
        if self._file is None:
            raise AssertionError("the journal is not open")
        self._seq += 1
        line = {"seq": self._seq, "at": datetime.now(UTC).isoformat(), "event": event, **facts}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._file is not None:
            self._file.close()
