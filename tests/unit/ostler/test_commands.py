"""Every command in the documentation exists: subcommand, arguments and options, target and variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.report import SUBJECTS
from cli.app import app as ostler
from lab.command import app as lab

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "compose").glob("*.md"),
        *(ROOT / "charts").rglob("*.md"),
    )
    if "decisions" not in path.parts  # what was decided then may be gone now
)
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_VARIABLE = re.compile(r"\A[A-Z_]+=")
_OPTIONAL = str.maketrans("[]", "  ")
"""A synopsis has brackets around optional parts, which are parsed too."""
_VALUE = re.compile(r"<[a-z -]+>|ID|N")
"""Placeholders for values of the reader. A number replaces them where the value is parsed."""


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of Ostler on a page, without the variables before it."""
    blocks = _BLOCK.findall(text)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += _INLINE.findall(_BLOCK.sub("", text))
    for line in lines:
        for part in re.split(r"\$\(|\)|&&|\||;| > ", line):
            try:
                words = shlex.split(part.translate(_OPTIONAL), comments=True)
            except ValueError:  # a sentence with an apostrophe
                continue
            while words and _VARIABLE.match(words[0]):
                del words[0]
            if words[:1] in (["docker"], ["lab"]) and "ostler" in words:  # docker compose … exec web ostler crd
                words = words[words.index("ostler") :]
            if words and (words[0] in _CHECKS or words[:2] == ["python", "-m"]):
                yield words


def problem(words: list[str]) -> str | None:
    """Return the problem of a command, or None."""
    return _CHECKS[words[0]](words[1:])


def _problem_of_ostler(words: list[str]) -> str | None:
    return _problem_of(ostler, "ostler", words)


def _problem_of_lab(words: list[str]) -> str | None:
    return _problem_of(lab, "ostler-lab", words)


def _problem_of(app: typer.Typer, path: str, words: list[str]) -> str | None:
    """Parse a command as the program would, without running it."""
    command: Any = typer.main.get_command(app)
    rest = ["1" if _VALUE.fullmatch(word) else word for word in words]
    while hasattr(command, "commands"):
        if not rest or rest[0] in {"…", "--help", "--install-completion"}:
            return None  # the program or a family of commands, as in a sentence
        if (default := getattr(command, "default", None)) is not None and rest[0].isdecimal():
            rest.insert(0, default)
        found = [command.commands.get(name) for name in rest[0].split("|")]
        if None in found:
            return f"{path} has no {rest[0]}"
        command, path = found[-1], f"{path} {rest.pop(0)}"
    try:
        command.make_context(path, list(rest), resilient_parsing=not rest)  # by name alone it is only mentioned
    except Exception as error:  # noqa: BLE001  typer's own kind of them is private
        return f"{path}: {getattr(error, 'message', error)}"
    return None


def _problem_of_make(words: list[str]) -> str | None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    known = set(re.findall(r"^([A-Z]+) [?:]?=", makefile, re.MULTILINE))
    for word in words:
        name, is_variable, _ = word.partition("=")
        if name not in (known if is_variable else targets):
            return f"the Makefile has no {name}"
    return None


def _problem_of_python(words: list[str]) -> str | None:
    module, *rest = words[1:] or [""]
    path = ROOT / Path(*module.split("."))
    if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists()):
        return f"no module {module}"
    known = {*SUBJECTS, "report", "all", "SUBJECT…"}
    given = [word for word in rest if not word.startswith("-")] if module == "benchmarks" else []
    return next((f"no subject {word}" for word in given if word not in known), None)


def _problem_of_pytest(words: list[str]) -> str | None:
    named = [word.partition("::")[0] for word in words if "/" in word]
    return next((f"no {path}" for path in named if not (ROOT / path).exists()), None)


_CHECKS = {
    "ostler": _problem_of_ostler,
    "ostler-lab": _problem_of_lab,
    "make": _problem_of_make,
    "python": _problem_of_python,
    "pytest": _problem_of_pytest,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists(page: Path) -> None:
    found = {shlex.join(words): problem(words) for words in commands(page.read_text())}
    assert {command: wrong for command, wrong in found.items() if wrong} == {}


def test_a_command_that_does_not_exist_is_found() -> None:
    text = """Say `ostler jobs --wait`, or `make cake`:
```sh
A=1 ostler sweep pause all --why "it's late"     # there is this one
ostler-lab chaos --plan && ostler-lab demo --loud
TOKEN=$(ostler token create laptop --scope read --loud)
make test T=tests/unit && make test TEST=x
docker compose exec web ostler crd
python -m benchmarks weather
pytest tests/nowhere/test_it.py -s
```
"""
    found = [shlex.join(words) for words in commands(text) if problem(words)]
    assert found == [
        "ostler-lab demo --loud",
        "ostler token create laptop --scope read --loud",
        "make test TEST=x",
        "python -m benchmarks weather",
        "pytest tests/nowhere/test_it.py -s",
        "ostler jobs --wait",
        "make cake",
    ]
