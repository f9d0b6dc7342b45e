"""Log of the events on this GitHub, one JSON object per line. The verdict on a run is computed from it.

Every line has `seq` (1, 2, 3 …), `at` (Unix seconds) and `event`. It contains no secret.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO


class Journal:
    """Counts events and appends them to a file, which is flushed after each line. Without a file it only counts."""

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = path.open("a", encoding="utf-8") if path else None
        self._seq = 0
        self.counts: dict[str, int] = {}

    def write(self, event: str, **facts: Any) -> None:
        """Append one event with its facts."""
        self._seq += 1
        self.counts[event] = self.counts.get(event, 0) + 1
        if self._file:
            line = json.dumps({"seq": self._seq, "at": round(time.time(), 6), "event": event, **facts})
            self._file.write(line + "\n")
            self._file.flush()
