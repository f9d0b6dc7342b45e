"""Mutants of the guarded statements in `models`: each loses one condition, or its `SKIP LOCKED`.

A condition of a WHERE becomes TRUE, or FALSE beside an OR. A condition that only names a row or joins two tables stays.
A string in `models/state` that begins with AND is the further condition of a transition or a lease. Its conditions are
dropped as `TRUE OR condition`, because the engine refuses a value whose parameter is missing.
The tests of the statement's module run on a copy of the tree. Results stay in `.run/` (ignored by git), so that an
interrupted run can continue. A mutant whose statement changed is a new one.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COPY = ROOT / ".run" / "mutants-sql"
RESULTS = ROOT / ".run" / "mutants-sql.json"
TABLE = Path(__file__).with_name("sql.toml")
MOST = 150
"""Maximum number of mutants in one run."""
PATIENCE = 300
"""Seconds for the tests of one mutant. A run that takes longer has the result `timeout`, which counts as survived."""
FIRST = {
    "deliver",
    "offers",
    "releases",
    "matching",
    "bindings",
    "steps",
    "resume",
    "rematch",
    "pod_rows",
    "pool_plans",
    "stuck_pods",
    "unresolved",
    "cuts",
    "sweeps",
    "transitions",
    "repairs",
    "scaling",
    "pool_mirror",
    "usage",
    "stalls",
    "claim_inserts",
    "claim_jobs",
    "claim_leases",
    "claim_transitions",
    "job_holds",
    "job_transitions",
    "pod_births",
    "pod_facts",
}
"""Modules whose mutants run before the others: claims, offers, deliveries, releases, retirements and repairs."""

_GUARDED = re.compile(r"\b(UPDATE|DELETE FROM|INSERT INTO)\b.*\bWHERE\b|\bWHERE\b.*\bUPDATE\b", re.DOTALL)
"""A statement that changes rows under a condition, or that locks rows for such a statement."""
_FURTHER = re.compile(r"f?(\"\"\"|\"|')\s*AND\b")
"""The begin of a further condition of a transition or a lease."""
_WHOLE = re.compile(r"\s*\{_[A-Z]+\}$")
"""A further condition that another one ends with. Its own mutants drop its parts."""
_WORD = re.compile(r"--[^\n]*|'[^']*'|\{[^{}]*\}|[A-Za-z_]+|[()]|;", re.DOTALL)
_ENDS = {")", "ORDER", "GROUP", "LIMIT", "FOR", "RETURNING", "UNION", "ON", "HAVING", "WINDOW", ";"}
_NO_GUARD = re.compile(
    r"^(\w+\.)?(id|uid|name|guid) = (:\w+|ANY\(:\w+\))$"  # the row itself
    r"|^\w+\.\w+ = \w+\.\w+$"  # how two tables are joined
    r"|^(\w+\.)?\w+ (= |IN )\( ?SELECT .* FOR (NO KEY )?UPDATE"  # rows that a subquery locks, mutated on its own
)
_SKIP = "SKIP LOCKED"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One condition of one statement, by its place in the file."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    digest: str

    @property
    def key(self) -> str:
        """Return the identity of the mutant, which is valid until its statement changes."""
        return f"{self.path}:{self.digest}:{self.before}"

    @property
    def named(self) -> tuple[str, str, str]:
        """Return the identity of the mutant in an entry of `sql.toml`."""
        return self.path, self.digest, " ".join(self.before.split())

    @property
    def shown(self) -> str:
        """Return one line for a person."""
        return f"{self.path}:{self.line} ({self.digest}): {self.named[-1]}  =>  {self.after or '(nothing)'}"


@dataclass(slots=True)
class _Where:
    """The state of the parser in a WHERE: the depth of its parentheses, its conditions, and the word before each."""

    depth: int
    start: int
    spans: list[tuple[int, int]] = field(default_factory=list)
    joins: list[str] = field(default_factory=list)
    between: bool = False

    def join(self, word: str, token: re.Match[str]) -> None:
        """Begin the next condition, unless this AND belongs to a BETWEEN."""
        if word == "AND" and self.between:
            self.between = False
            return
        self.spans.append((self.start, token.start()))
        self.joins.append(word)
        self.start = token.end()

    def conditions(self, end: int) -> Iterator[tuple[int, int, str]]:
        """Yield start, end and replacement of each condition. A replacement is neutral in its list of conditions."""
        for number, (start, stop) in enumerate([*self.spans, (self.start, end)]):
            beside = self.joins[max(0, number - 1) : number + 1]
            yield start, stop, "FALSE" if "OR" in beside else "TRUE"


def conditions(statement: str, *, since: int | None = None) -> list[tuple[int, int, str]]:
    """Return start, end and replacement of each condition in the WHEREs of a statement, also in subqueries.

    With `since`, the statement is in a WHERE from this place on.
    """
    found: list[tuple[int, int, str]] = []
    open_: list[_Where] = [] if since is None else [_Where(0, since)]
    depth = 0
    for token in _WORD.finditer(statement, since or 0):
        word = token[0].upper()
        current = open_[-1] if open_ and open_[-1].depth == depth else None
        if current is not None and word in _ENDS:
            found += open_.pop().conditions(token.start())
        elif current is not None and word in {"AND", "OR"}:
            current.join(word, token)
        elif current is not None and word == "BETWEEN":
            current.between = True
        elif word == "WHERE":
            open_.append(_Where(depth, token.end()))
        depth += (word in {"(", "CASE"}) - (word in {")", "END"})
    for where in reversed(open_):
        found += where.conditions(len(statement))
    return found


def mutants_of(path: Path, *, root: Path = ROOT) -> list[Mutant]:
    """Return the mutants of a module, in the order of its lines."""
    source = path.read_text()
    lines = [0]
    for each in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(each.encode()))
    raw = source.encode()
    found: list[Mutant] = []
    same: Counter[str] = Counter()
    for start, end in sorted(_literals(ast.parse(source), lines)):
        literal = raw[start:end].decode()
        further = _FURTHER.match(literal) if path.parent.name == "state" else None
        if not (further or _GUARDED.search(literal)):
            continue
        # The first of several equal strings has the digest of the string, and the others have digests of their own.
        digest = hashlib.sha256(f"{literal}{'#' * same[literal]}".encode()).hexdigest()[:12]
        same[literal] += 1
        quote = re.search(r"(\"\"\"|\"|')$", literal)
        inner = literal[: -len(quote[0])] if quote else literal
        if further:
            inner = _WHOLE.sub("", inner)
        dropped = conditions(inner, since=further.end() if further else None)
        spots = [(a, b, to) for a, b, to in dropped if not _NO_GUARD.match(" ".join(inner[a:b].split()))]
        spots += [(each.start(), each.end(), "") for each in re.finditer(_SKIP, inner)]
        for a, b, to in sorted(spots):
            before = inner[a:b].strip()
            written = f"({to} {'OR' if to == 'TRUE' else 'AND'} {before})" if further else to
            at = start + len(inner[:a].encode()) + len(inner[a:b].encode()) - len(inner[a:b].lstrip().encode())
            line = raw[:at].count(b"\n") + 1
            name = str(path.relative_to(root))
            found.append(Mutant(name, line, at, at + len(before.encode()), before, written, digest))
    return found


def _literals(tree: ast.Module, lines: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield start and end of each string, without docstrings and without the parts of f-strings."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        whole = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        if not whole or id(node) in statements or (id(node) in inside and not isinstance(node, ast.JoinedStr)):
            continue
        assert isinstance(node, ast.expr)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        yield lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset


def chosen(modules: Iterable[Sequence[Mutant]], most: int = MOST) -> list[Mutant]:
    """Return at most `most` mutants, evenly from all modules, and the same ones in every run."""
    spread = [sorted(each, key=lambda m: hashlib.sha256(m.key.encode()).hexdigest()) for each in modules]
    return [mutant for mutant in chain.from_iterable(zip_longest(*spread)) if mutant is not None][:most]


def sources(root: Path = ROOT) -> list[Path]:
    """Return the modules of `models`, without migrations."""
    return sorted(path for path in (root / "models").rglob("*.py") if "migrations" not in path.parts)


def nearest(module: str, table: Mapping[str, Sequence[str]], *, root: Path = ROOT) -> list[str]:
    """Return the test files of a module of `models`: those in the table, or else those that import the module."""
    if module in table:
        return list(table[module])
    imports = re.compile(
        rf"^from models(?:\.\w+)? import .*\b{module}\b|^from models\.(?:\w+\.)?{module} import|^    {module},$",
        re.MULTILINE,
    )
    files = sorted((root / "tests" / "integration").rglob("test_*.py"), key=lambda path: path.stat().st_size)
    users = [path for path in files if imports.search(path.read_text())]
    named = [path for path in files if path.stem == f"test_{module}"]
    return [str(path.relative_to(root)) for path in dict.fromkeys([*named, *users])][:2]


def read_table(path: Path = TABLE) -> Mapping[str, Any]:
    """Return the nearest tests by module, and the accepted survivors."""
    return tomllib.loads(path.read_text())


def reasons(table: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """Return the accepted survivors as `Mutant.named`. An entry is valid until its statement changes."""
    return {(each["path"], each["statement"], each["before"]) for each in table.get("survivor", [])}


def copy_tree(*, root: Path = ROOT, copy: Path = COPY) -> None:
    """Copy the files that the tests need to `copy`, without environments, results and caches."""
    shutil.rmtree(copy, ignore_errors=True)
    left_out = shutil.ignore_patterns(".venv", ".git", ".run", "mutants", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(root, copy, ignore=left_out)
    (copy / ".venv").symlink_to(root / ".venv")


def judge(mutant: Mutant, tests: Sequence[str], *, root: Path = ROOT, copy: Path = COPY) -> tuple[str, str]:
    """Run the tests on the copy with the mutant.

    Returns `killed`, `survived`, `timeout`, or `untested` without tests, and pytest's line about the failed test.
    """
    if not tests:
        return "untested", ""
    raw = (root / mutant.path).read_bytes()
    target = copy / mutant.path
    target.write_bytes(raw[: mutant.start] + mutant.after.encode() + raw[mutant.end :])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", *tests],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout", ""
    finally:
        target.write_bytes(raw)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ("survived" if done.returncode == 0 else "killed"), "".join(failed[:1])


def main() -> int:
    """Judge the mutants without a result, and print each result and the summary.

    The exit status is 1 if a mutant survived without a reason.
    """
    parser = argparse.ArgumentParser(prog="python tests/mutants/of_sql.py", description=__doc__)
    parser.add_argument("files", nargs="*", help="modules of models, by path or name")
    parser.add_argument("--minutes", type=float, default=0, help="stop after this time; 0 is no limit")
    parser.add_argument("--again", action="store_true", help="run survivors once more, after tests were added")
    parser.add_argument("--list", action="store_true", help="run nothing; print the mutants and their tests")
    options = parser.parse_args()
    wanted = {Path(each).stem for each in options.files}
    table = read_table()
    paths = [path for path in sources() if not wanted or path.stem in wanted]
    mutants = chosen(mutants_of(path) for path in paths)
    results: dict[str, str] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    redo = {"survived", "timeout", "untested"} if options.again else set()
    left = [mutant for mutant in mutants if results.get(mutant.key) in {None, *redo}]
    left.sort(key=lambda mutant: Path(mutant.path).stem not in FIRST)
    if options.list:
        print("\n".join(f"{each.shown}  {nearest(Path(each.path).stem, table['tests'])}" for each in mutants))  # noqa: T201
        return 0
    copy_tree()
    stop = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    for number, mutant in enumerate(left, start=1):
        if time.monotonic() > stop:
            break
        result, failed = judge(mutant, nearest(Path(mutant.path).stem, table["tests"]))
        results[mutant.key] = result
        RESULTS.write_text(json.dumps(results, indent=1))
        print(f"{number}/{len(left)} {result:<8} {mutant.shown}  {failed}".rstrip(), flush=True)  # noqa: T201
    return _summarize(mutants, results, reasons(table))


def _summarize(mutants: Sequence[Mutant], results: Mapping[str, str], known: set[tuple[str, str, str]]) -> int:
    judged = [(mutant, results[mutant.key]) for mutant in mutants if mutant.key in results]
    alive = [(mutant, result) for mutant, result in judged if result != "killed"]
    new = [each for each in alive if each[0].named not in known]
    print()  # noqa: T201
    print("\n".join(f"{result} {mutant.shown}" for mutant, result in new))  # noqa: T201
    print(  # noqa: T201
        f"{len(judged) - len(alive)} of {len(judged)} killed, {len(new)} survived, "
        f"{len(alive) - len(new)} survived with a reason, {len(mutants) - len(judged)} not run"
    )
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
