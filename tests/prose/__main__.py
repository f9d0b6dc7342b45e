"""`python -m tests.prose`: report the idioms of all files in the list, or of the given files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.prose.clean import CLEAN
from tests.prose.idioms import in_markdown, in_python

ROOT = Path(__file__).parents[2]


def main(names: Sequence[str]) -> int:
    """Print one line per finding; return 1 if there is any, 2 if a file is neither Markdown nor Python, else 0."""
    paths = [Path(name) for name in names] or [path for pattern in CLEAN for path in sorted(ROOT.glob(pattern))]
    count = 0
    for path in paths:
        if path.suffix not in {".md", ".py"}:
            sys.stderr.write(f"{path}: only Markdown and Python files have prose to check\n")
            return 2
        read = in_markdown if path.suffix == ".md" else in_python
        for finding in read(path.read_text()):
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            sys.stdout.write(f'{shown}:{finding.line}: "{finding.words}": {finding.advice}\n')
            count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
