"""Figures that are counted in the source files of a tree."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

PRODUCT = (
    "beat_schedule.py",
    "cli",
    "container_hooks",
    "deploys",
    "github_adapters",
    "k8s_adapters",
    "models",
    "ostler",
    "poller",
    "rules",
    "tasks",
    "watch",
    "web",
)
MIGRATIONS = "models/migrations"
READERS = ("cli", "tasks", "web")
"""Packages in which each row has a type of its own."""
ENGINE = {"move_claim", "move_jobs"}
"""Functions of `models.state.transitions` that take SQL."""
STATEMENTS = {"guard", "sets", "which"}
"""Arguments of these functions, of the leases and of the holds that contain SQL."""
MOST_PARAMETERS = 8
RADON = "radon==6.0.1"
SKIP = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Source:
    """One file. `room` is its top-level package or file."""

    path: Path
    name: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.path.read_text())

    @property
    def room(self) -> str:
        return self.name.split("/")[0]

    @cached_property
    def code_lines(self) -> int:
        """Number of lines with code: without blank lines, comments and docstrings."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.path.read_text()).readline):
            if token.type not in SKIP:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            for text in _texts_alone(node):
                lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        return len(lines)


def _texts_alone(node: ast.AST) -> Iterator[ast.Expr]:
    """Return the strings that stand alone in a body: docstrings of modules, classes, functions and attributes."""
    body = getattr(node, "body", None)
    for each in body if isinstance(body, list) else ():
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
            yield each


def sources(tree: Path) -> list[Source]:
    """Return the files of the product without its migrations."""
    found = []
    for each in PRODUCT:
        root = tree / each
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            name = str(path.relative_to(tree))
            if not name.startswith(MIGRATIONS):
                found.append(Source(path, name))
    return found


def code_lines(files: Sequence[Source]) -> dict[str, int]:
    """Return the number of code lines of each room."""
    rooms: dict[str, int] = {}
    for each in files:
        rooms[each.room] = rooms.get(each.room, 0) + each.code_lines
    return rooms


def classes_named(files: Sequence[Source], word: str) -> dict[str, int]:
    """Return the classes whose name contains a word, with the number of their annotated fields."""
    return {
        f"{each.name}:{node.name}": sum(isinstance(line, ast.AnnAssign) for line in node.body)
        for each in files
        for node in ast.walk(each.tree)
        if isinstance(node, ast.ClassDef) and word in node.name
    }


def statements_from_outside(files: Sequence[Source]) -> list[str]:
    """Return each use of a function or an argument outside `models/state` that takes SQL for a statement in there.

    A use counts whatever its value is, so that SQL in a variable counts as well. `ENGINE` and `STATEMENTS` name the
    functions and arguments.
    """
    return [
        f"{each.name}: {used}"
        for each in files
        if not each.name.startswith("models/state/")
        for node in ast.walk(each.tree)
        if (used := _takes_sql(node)) is not None
    ]


def _takes_sql(node: ast.AST) -> str | None:
    match node:
        case ast.keyword(arg=name) if name in STATEMENTS:
            return name
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) if name in ENGINE:
            return name
    return None


def untyped_rows(files: Sequence[Source]) -> int:
    """Return how often `Row[Any]` stands in the rooms that read rows."""
    return sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Row"
        and isinstance(node.slice, ast.Name)
        and node.slice.id == "Any"
        for each in files
        if each.room in READERS
        for node in ast.walk(each.tree)
    )


def with_many_parameters(files: Sequence[Source]) -> list[str]:
    """Return the functions with more than `MOST_PARAMETERS` parameters, without commands and routes."""
    return [
        f"{each.name}:{node.name}"
        for each in files
        for node in ast.walk(each.tree)
        if isinstance(node, Function) and _parameters(node) > MOST_PARAMETERS and not _is_public(node)
    ]


def _parameters(function: Function) -> int:
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([each for each in names if each not in {"self", "cls"}])


def _is_public(function: Function) -> bool:
    """Return whether a function is a command or a route.

    Its decorator is a call of an attribute, as `@app.get()`, or it has an option or argument of typer.
    """
    options = {"Option", "Argument"}
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) for each in function.decorator_list
    ) or any(
        isinstance(node, ast.Attribute) and node.attr in options
        for each in function.args.args
        if each.annotation
        for node in ast.walk(each.annotation)
    )


def complexity(tree: Path, *, uv: str) -> dict[str, list[str]]:
    """Return the functions and methods of each grade of radon from C on. Needs PyPI the first time."""
    paths = [str(tree / each) for each in PRODUCT]
    command = [uv, "tool", "run", "--from", RADON, "radon", "cc", "--json", "--min", "C", *paths]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    grades: dict[str, list[str]] = {}
    for file, blocks in answer.items():
        name = str(Path(file).relative_to(tree))
        for block in blocks:
            if block["type"] != "class" and not name.startswith(MIGRATIONS):
                grades.setdefault(block["rank"], []).append(f"{name}:{block['name']} ({block['complexity']})")
    return {grade: sorted(set(names)) for grade, names in sorted(grades.items())}
