"""Print the figures of this tree, and with `--against COMMIT` those of a commit beside them.

Usage: `make house`, or `python -m tests.house [--against COMMIT] [--names] [--no-ways]`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.house import counts
from tests.house.ways import TREE, ways

UV = str(Path(sys.executable).parent / "uv")


def figures(tree: Path) -> dict[str, int | list[str]]:
    """Return each figure by its name: a number, or the things that it counts."""
    files = counts.sources(tree)
    lines = counts.code_lines(files)
    grades = counts.complexity(tree, uv=UV)
    found: dict[str, int | list[str]] = {
        "code lines": sum(lines.values()),
        **{f"code lines of {room}": number for room, number in lines.items()},
        **{
            f"classes with {word} in their name": [f"{name} ({fields} fields)" for name, fields in named.items()]
            for word in ("Pool", "Pod")
            for named in [counts.classes_named(files, word)]
        },
        "statements passed as SQL": counts.statements_from_outside(files),
        "untyped rows in tasks, web, cli": counts.untyped_rows(files),
        "functions at radon E or F": grades.get("E", []) + grades.get("F", []),
        "functions at radon D": grades.get("D", []),
        "functions at radon C or worse": [name for names in grades.values() for name in names],
        "functions with more than 8 parameters": counts.with_many_parameters(files),
    }
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--names", action="store_true", help="list what is counted")
    parser.add_argument("--no-ways", action="store_true", help="do not run the job whose packages are counted")
    options = parser.parse_args()
    columns = {"this tree": figures(TREE)}
    if not options.no_ways:
        columns["this tree"] |= {f"packages on the way of a {way}": crossed for way, crossed in ways().items()}
    if options.against:
        with tempfile.TemporaryDirectory(prefix="ostler-house-") as folder:
            tree = Path(folder) / "tree"
            subprocess.run(
                ["git", "-C", str(TREE), "worktree", "add", "-q", "--detach", str(tree), options.against], check=True
            )
            try:
                columns = {options.against: figures(tree), **columns}
            finally:
                subprocess.run(["git", "-C", str(TREE), "worktree", "remove", "--force", str(tree)], check=True)
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    print(f"| | {' | '.join(columns)} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for row in rows:
        cells = [column.get(row) for column in columns.values()]
        print(f"| {row} | {' | '.join('' if cell is None else str(_number(cell)) for cell in cells)} |")
    if options.names:
        for row, what in columns["this tree"].items():
            if isinstance(what, list):
                print(f"\n{row}:", *what, sep="\n  ")


def _number(figure: int | list[str]) -> int:
    return figure if isinstance(figure, int) else len(figure)


if __name__ == "__main__":
    main()
