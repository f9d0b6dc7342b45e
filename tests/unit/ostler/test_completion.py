"""Completion of commands and values in bash, zsh and fish."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest


def complete(shell: str, line: str) -> list[str]:
    """Return what a shell offers after a line."""
    words = line.split(" ")
    environment = {
        "PATH": os.environ["PATH"],
        "_OSTLER_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    program = "import sys; sys.argv[0] = 'ostler'; from cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    if shell == "zsh":
        return re.findall(r'^.*?"([a-z-]+)"[:" )]', done.stdout, flags=re.MULTILINE)
    return [each.partition("\t")[0] for each in done.stdout.split("\n") if each]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_values(shell: str) -> None:
    assert complete(shell, "ostler po") == ["pods", "pod", "pool"]
    assert "completed" in complete(shell, "ostler jobs --state comp")
