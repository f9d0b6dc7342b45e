"""`ostler-lab`: every command works, and mistakes are one line each."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from lab.command import BUILT, PROGRAMS, app, main

ROOT = Path(__file__).parents[3]


def said(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit status and the output of a command."""
    monkeypatch.setattr(sys, "argv", ["ostler-lab", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out + printed.err


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_explain_themselves_by_their_command(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, printed = said([name, "--help"], monkeypatch, capsys)
    assert (status, printed.startswith(f"usage: ostler-lab {name} ")) == (0, True), printed.splitlines()[:1]


@pytest.mark.parametrize("name", BUILT)
def test_every_go_program_has_something_that_builds_it(name: str) -> None:
    assert callable(import_module(BUILT[name][0]).build)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("demo --jobs abc", "--jobs"),
        ("demo --jobs 0", "--jobs"),
        ("demo --cluster foo", "ostler-lab: --cluster: found 'foo'; must be one of embedded, real"),
        ("chaos --jobs 0", "0 jobs prove nothing"),
        ("github", "--app-id"),
        ("cake", "No such command 'cake'"),
    ],
)
def test_mistakes_have_status_2_and_say_what_is_wrong(
    typed: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, printed = said(typed.split(), monkeypatch, capsys)
    assert status == 2
    assert words in printed
    assert "Traceback" not in printed


def test_make_calls_commands_that_exist() -> None:
    called = re.findall(r"\$\(BIN\)/ostler-lab ([a-z-]+)", (ROOT / "Makefile").read_text())
    assert set(called) == {"demo", "chaos", "node", "images", "compose-check", *BUILT}
    command: Any = typer.main.get_command(app)
    assert set(called) <= set(command.commands)
