"""The mutants that mypy refuses, for mutmut: `make lint` finds these mistakes, so no test must find them.

Run in the folder `mutants`. `MUTANTS_OF` names the modules. Prints mypy's errors as JSON, one per line, without errors
that the frame of mutmut causes: errors outside of mutants, and types that mypy cannot infer there.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path

REFUSALS = {
    "arg-type",
    "assignment",
    "attr-defined",
    "call-arg",
    "call-overload",
    "dict-item",
    "index",
    "list-item",
    "operator",
    "return",
    "return-value",
    "type-var",
    "union-attr",
}
CONFIGURATION = "[mypy]\npython_version = 3.11\nfollow_imports = silent\n"
_MUTANT = re.compile(r"__mutmut_\d+$")


@cache
def _mutated_lines(path: str) -> list[range]:
    tree = ast.parse(Path(path).read_text())
    return [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _MUTANT.search(node.name)
    ]


def refusals(lines: Iterator[str], modules: Container[str]) -> Iterator[Mapping[str, object]]:
    """Yield the errors in mypy's output that are in a mutant of these modules and concern its types."""
    for line in lines:
        found = json.loads(line) if line.strip() else {}
        inferred = str(found.get("message", "")).startswith("Cannot determine type")
        if found.get("code") not in REFUSALS or found["severity"] != "error" or inferred:
            continue
        if Path(found["file"]).stem not in modules:
            continue
        if any(found["line"] in lines for lines in _mutated_lines(found["file"])):
            yield found


def main() -> int:
    """Type-check the mutants and print the errors."""
    settings = Path("mypy.ini")
    settings.write_text(CONFIGURATION)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(settings),
            "--output",
            "json",
            "-p",
            "rules",
            "-p",
            "deploys",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in {0, 1}:
        sys.stderr.write(done.stdout + done.stderr)
        return done.returncode
    for found in refusals(iter(done.stdout.splitlines()), os.environ["MUTANTS_OF"].split()):
        print(json.dumps(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
