"""The shell that waits for a line before it executes the command, in the shells of this machine."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from k8s_adapters.calls.execs import _WAITING_SHELL

SHELLS = [
    [name, *more] for name, *more in (["dash"], ["bash"], ["busybox", "sh"], ["sh"]) if shutil.which(name) is not None
]


@pytest.fixture(params=SHELLS, ids="-".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


def run(shell: list[str], given: bytes, *command: str) -> subprocess.CompletedProcess[bytes]:
    whole = [*shell, "-c", _WAITING_SHELL, "sh", *command]
    return subprocess.run(whole, input=given, capture_output=True, timeout=60, check=False)


def test_command_does_not_begin_before_the_line(shell: list[str]) -> None:
    for given in (b"", b"strea", b"stream", b"other\n"):
        done = run(shell, given, "echo", "begun")

        assert (done.stdout, done.returncode) == (b"", 125)


def test_stream_gives_the_rest_of_the_input_unchanged(shell: list[str]) -> None:
    content = bytes(range(256)) * 1000

    assert run(shell, b"stream\n" + content, "cat").stdout == content


def test_blocks_give_their_content_and_the_exit_code(shell: list[str]) -> None:
    content = bytes(range(256)) * 400
    blocks = b"%d\n%b%d\n%b0\n" % (len(content), content, 5, b"\n0\n\x00\xff")

    done = run(shell, b"blocks\n" + blocks, "sh", "-c", "cat; exit 7")

    assert (done.stdout, done.returncode) == (content + b"\n0\n\x00\xff", 7)


def test_blocks_that_are_cut_end_the_input(shell: list[str]) -> None:
    assert run(shell, b"blocks\n10\nabc", "cat").stdout == b"abc"


def test_command_without_input_reads_its_end(shell: list[str]) -> None:
    done = run(shell, b"closed\nrest", "sh", "-c", 'cat; exec sh -c "exit 9"')

    assert (done.stdout, done.returncode) == (b"", 9)


def test_words_of_the_command_are_not_interpreted(shell: list[str]) -> None:
    assert run(shell, b"stream\n", "printf", "%s|", "a b", "$HOME", "'", "*").stdout == b"a b|$HOME|'|*|"
