"""Mutants of `rules`: mutmut without mutants of prose and mutants that mypy refuses, resumable.

Results stay in `mutants/` (ignored by git), so that an interrupted run can continue. mutmut judges a mutant again if
its function changed. A survivor in `accepted.toml` is reported separately, with its reason.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
ACCEPTED = Path(__file__).with_name("accepted.toml")
RESULTS = Path("mutants")
SOURCES = ("rules", "deploys")
"""The folders of pure decisions. No two of their modules have the same name."""

LAWS = (
    "limits",
    "unused",
    "orphans",
    "stamps",
    "nodes",
    "restoring",
    "epochs",
    "draining",
    "fairness",
    "retry",
    "pool_plan",
    "starts",
    "owner_sync",
    "volumes",
    "registrations",
    "stalls",
    "busy",
    "bindings",
    "machines",
    "job_outcomes",
    "pod_ends",
    "unresolved",
)
"""The modules that decide about laws. A full run judges them first."""

UNNOTICED = {0, 33}
"""mutmut's results for a mutant whose tests passed, and for a mutant that no test reaches."""
KILLED = {"killed", "timeout", "segfault"}
REFUSED = "caught by type check"
"""mypy finds the mistake, so no test must find it. Such a mutant does not count in the score."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A mutant that no test detected, as `mutmut show` displays it."""

    name: str
    function: str
    place: str
    before: str
    after: str
    tested: bool

    @property
    def line(self) -> str:
        """Return one line for a person."""
        why = "" if self.tested else " (no unit test of rules reaches the function)"
        return f"{self.place} {self.function}: {self.before or '(nothing)'}  =>  {self.after or '(nothing)'}{why}"


def ask_mypy_about(names: Sequence[str], mutmut: Any) -> None:
    """Let mutmut ask mypy first about the mutants of these modules. mypy refuses more than a third of them."""
    from mutmut.configuration import config  # noqa: PLC0415 - reads the configuration of mutmut

    # mutmut's own parses files of megabytes with libcst, which takes minutes.
    mutmut.filter_mutants_with_type_checker = lambda: refused_by(config().type_check_command)
    # Not an argument: mutmut forgets what mypy refused when the command is another one.
    os.environ["MUTANTS_OF"] = " ".join(names)
    config().type_check_command = [sys.executable, str(Path(__file__).with_name("refused.py")), "mypy"]


def refused_by(command: Sequence[str], *, made: Path = RESULTS) -> dict[str, SimpleNamespace]:
    """Return the mutants that this type checker refuses, in mutmut's form: each with an error and its description."""
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=True)
    messages: dict[str, dict[int, str]] = {}
    for line in done.stdout.splitlines():
        error = json.loads(line)
        messages.setdefault(error["file"], {})[error["line"]] = error["message"]
    return {
        f"{file.removesuffix('.py').replace('/', '.')}.{node.name}": SimpleNamespace(
            error=SimpleNamespace(error_description=lines[at])
        )
        for file, lines in messages.items()
        for node in ast.walk(ast.parse((made / file).read_text()))
        if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name
        for at in sorted(lines)
        if node.lineno <= at <= (node.end_lineno or at)
    }


def leave_prose_alone() -> None:
    """Seed no mistake in a text with a space: a test that fixes the wording of a message finds no mistake."""
    import libcst  # noqa: PLC0415 - only the runner of mutants has these two
    from mutmut.mutation import mutators  # noqa: PLC0415

    operators: list[Any] = mutators.mutation_operators  # type: ignore[assignment]  # a list that is called a Sequence
    seeded = mutators.operator_string

    def of_names(node: libcst.BaseString) -> Iterable[libcst.BaseString]:
        return () if isinstance(node, libcst.SimpleString) and " " in node.value else seeded(node)

    operators[operators.index((libcst.BaseString, seeded))] = (libcst.BaseString, of_names)


def fork_from_one_session(mutmut: Any, *, laws_first: bool) -> None:
    """Let mutmut use the runner beside this file, and run the mutants of the laws before the others."""
    # Not imported by its full name: the package `tests` of this process is the copy in `mutants`.
    mutmut.get_mutant_runner = import_module("forked").ForkedSessions
    seconds = mutmut.estimated_worst_case_time

    def rank(mutant: str) -> tuple[bool, float]:
        return laws_first and mutant.split(".")[1] not in LAWS, seconds(mutant)

    mutmut.estimated_worst_case_time = rank


def modules(results: Path) -> list[str]:
    """Return the modules that have mutants. Modules about laws come first."""
    names = sorted(path.name.removesuffix(".py.meta") for path in results.rglob("*.py.meta"))
    return [name for name in LAWS if name in names] + [name for name in names if name not in LAWS]


def judged(results: Path, module: str) -> dict[str, int | None]:
    """Return the exit code of each mutant's tests, or None if they did not run yet."""
    found: dict[str, int | None] = json.loads(next(results.rglob(f"{module}.py.meta")).read_text())["exit_code_by_key"]
    return found


def sources(root: Path = ROOT) -> dict[str, Path]:
    """Return the file of each module, by its name."""
    found = (path for folder in SOURCES for path in sorted((root / folder).rglob("*.py")))
    return {path.stem: path for path in found if path.stem != "__init__"}


def others(root: Path = ROOT) -> list[str]:
    """Return the modules of `rules` that are not among `LAWS`."""
    return sorted(set(sources(root)) - set(LAWS))


def to_run(names: Iterable[str], *, again: bool = False, results: Path = RESULTS, root: Path = ROOT) -> list[str]:
    """Return the mutants of these modules without a result. With `again`, also return the survivors.

    For a module that changed after its mutants were made, return a pattern: mutmut first makes its mutants again.
    """
    patterns: list[str] = []
    found = sources(root)
    for name in names:
        source, made = found[name], next(results.rglob(f"{name}.py.meta"), None)
        if made is None or source.stat().st_mtime > made.with_suffix("").stat().st_mtime:
            patterns.append(".".join((*source.relative_to(root).with_suffix("").parts, "*")))
            continue
        codes = judged(results, name)
        patterns += [each for each, code in codes.items() if code is None or (again and code in UNNOTICED)]
    return patterns


def changed_modules(base: str, root: Path = ROOT) -> list[str]:
    """Return the modules of `rules` that differ from the merge base with `base`, in the work tree or in commits."""
    found = subprocess.run(
        ["git", "diff", "--name-only", "--diff-filter=d", "--merge-base", base, "--", *SOURCES],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    new = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "--", *SOURCES],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(
        {Path(line).stem for line in (found.stdout + new.stdout).split() if line.endswith(".py")} - {"__init__"}
    )


def survivor(name: str, difference: str, *, tested: bool, root: Path = ROOT) -> Survivor:
    """Parse one difference of mutmut, whose line numbers begin at the first line of the function."""
    path = sources(root)[name.split(".")[-2]]
    before: list[str] = []
    after: list[str] = []
    at, first = 0, None
    for line in difference.splitlines():
        if line.startswith(("---", "+++", "#")):
            continue
        if line.startswith("@@"):
            at = int(line.split()[1].split(",")[0].lstrip("-"))
            continue
        if line.startswith("-"):
            before.append(line[1:].strip())
        if line.startswith("+"):
            after.append(line[1:].strip())
        if first is None and line.startswith(("-", "+")):
            first = at
        at += not line.startswith("+")
    function = readable(name)
    start = _first_line(path, function)
    return Survivor(
        name,
        function,
        f"{path.relative_to(root)}:{start + (first or 1) - 1}",
        " ".join(before),
        " ".join(after),
        tested,
    )


def readable(name: str) -> str:
    """Return the name of a mutant's function in Python: `Class.method` or `function`."""
    mangled = name.rsplit(".", maxsplit=1)[-1].rpartition("__mutmut_")[0]
    if mangled.startswith("xǁ"):
        return ".".join(part for part in mangled[1:].split("ǁ") if part)
    return mangled.removeprefix("x_")


def _first_line(path: Path, function: str) -> int:
    body: Sequence[ast.stmt] = ast.parse(path.read_text()).body
    line = 1
    for part in function.split("."):
        for each in body:
            if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == part:
                line = min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)])
                body = each.body
    return line


def accepted(path: Path = ACCEPTED) -> dict[tuple[str, str, str], str]:
    """Return the reasons of the accepted survivors, by function, line before and line after."""
    if not path.exists():
        return {}
    listed = tomllib.loads(path.read_text()).get("survivor", [])
    return {(each["function"], each["before"], each["after"]): each["reason"] for each in listed}


def report(names: Sequence[str], *, results: Path = RESULTS) -> Iterator[str]:
    """Yield the lines of the summary: the score of each module, and the survivors with place and change."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant  # noqa: PLC0415
    from mutmut.stats import status_by_exit_code  # noqa: PLC0415

    reasons = accepted()
    all_killed = all_judged = all_left = all_refused = 0
    survivors: list[Survivor] = []
    yield f"{'module':<20} {'mutants':>8} {'killed':>7} {'score':>6}  not run"
    for module in names:
        codes = judged(results, module)
        ran = {name: status_by_exit_code[code] for name, code in codes.items() if code is not None}
        statuses = {name: status for name, status in ran.items() if status != REFUSED}
        killed = sum(status in KILLED for status in statuses.values())
        left = len(codes) - len(ran)
        all_refused += len(ran) - len(statuses)
        all_killed, all_judged, all_left = all_killed + killed, all_judged + len(statuses), all_left + left
        score = f"{100 * killed / len(statuses):.0f} %" if statuses else "-"
        yield f"{module:<20} {len(statuses):>8} {killed:>7} {score:>6}  {left or ''}".rstrip()
        survivors += [
            survivor(name, get_diff_for_mutant(name), tested=status != "no tests")
            for name, status in statuses.items()
            if status not in KILLED
        ]
    new = [each for each in survivors if (each.function, each.before, each.after) not in reasons]
    yield ""
    yield from (each.line for each in new)
    yield ""
    yield (
        f"left out: {prose(names, results=results)} of prose, {all_refused} that mypy refuses; with those that mypy "
        f"refuses counted as killed the score is {_percent(all_killed + all_refused, all_judged + all_refused)}"
    )
    yield (
        f"score {_percent(all_killed, all_judged)}: {all_killed} of {all_judged} killed, {len(new)} survived, "
        f"{len(survivors) - len(new)} survived with a reason, {all_left} not run"
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def prose(names: Iterable[str], *, results: Path = RESULTS, root: Path = ROOT) -> int:
    """Return the number of mutants in texts with a space, counted once for each version of the modules."""
    known_at = results / "prose.json"
    known: dict[str, int] = json.loads(known_at.read_text()) if known_at.exists() else {}
    found = sources(root)
    total = 0
    for name in names:
        source = found[name].read_text()
        key = f"{name} {hashlib.sha256(source.encode()).hexdigest()[:12]}"
        if key not in known:
            known[key] = sum(1 for _ in _prose_of(source))
            known_at.write_text(json.dumps(known, indent=1))
        total += known[key]
    return total


def _prose_of(source: str) -> Iterator[object]:
    """Yield the mutants that mutmut would make of texts with a space."""
    from libcst import BaseString, SimpleString  # noqa: PLC0415
    from mutmut.mutation.mutators import operator_string  # noqa: PLC0415

    file_mutation: Any = import_module("mutmut.mutation.file_mutation")

    def of_prose(node: BaseString) -> Iterable[BaseString]:
        return operator_string(node) if isinstance(node, SimpleString) and " " in node.value else ()

    usual = file_mutation.mutation_operators
    file_mutation.mutation_operators = [(BaseString, of_prose)]
    try:
        found = file_mutation.create_mutations("rules", source)[1]
    finally:
        file_mutation.mutation_operators = usual
    yield from (each for each in found if each.contained_by_top_level_function is not None)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/mutants/of_rules.py", description=__doc__)
    parser.add_argument("files", nargs="*", help="modules of rules, by path or name")
    parser.add_argument("--all", action="store_true", help="all modules; a run that was interrupted goes on")
    parser.add_argument("--base", default="origin/main", help="without files: what differs from this revision")
    parser.add_argument("--minutes", type=float, default=0, help="stop after this time; 0 is no limit")
    parser.add_argument("--children", type=int, default=2, help="mutants that run at the same time")
    parser.add_argument("--again", action="store_true", help="run survivors once more, after tests were added")
    parser.add_argument("--report", action="store_true", help="run nothing; print what is known")
    return parser.parse_args()


def main() -> int:
    """Run the mutants without a result, and print the summary. Return 1 if one survived without a reason."""
    options = _arguments()
    leave_prose_alone()
    mutmut: Any = import_module("mutmut.__main__")  # reads the configuration of mutmut on import

    wanted = [Path(each).stem for each in options.files]
    if not wanted and not options.all:
        wanted = changed_modules(options.base)
        if not wanted:
            print(f"no module of rules differs from {options.base}")  # noqa: T201
            return 0
    if not options.report:
        if options.minutes:
            signal.signal(signal.SIGALRM, _stop)
            signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
        parts = wanted or [*LAWS, *others()]
        patterns = to_run(parts, again=options.again)
        if patterns:
            ask_mypy_about(parts, mutmut)
            fork_from_one_session(mutmut, laws_first=not wanted)
            mutmut.cli(["run", "--max-children", str(options.children), *patterns], standalone_mode=False)
        signal.setitimer(signal.ITIMER_REAL, 0)
    lines = list(report(wanted or modules(RESULTS)))
    print("\n".join(lines))  # noqa: T201
    return int(" 0 survived," not in lines[-1])


if __name__ == "__main__":
    sys.exit(main())
