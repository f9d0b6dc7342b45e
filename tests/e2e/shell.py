"""A page of the docs as an operator follows it: its blocks are typed into one bash, in order."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_LINES = re.compile(
    r"^##+ (?P<heading>[^\n]+)$|(?:^<!-- not run: *(?P<reason>.*?) *-->\n)?^```sh\n(?P<block>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of commands, with its heading and its number below this heading, from 1.

    `reason`: the reason why the block does not run, or None.
    """

    heading: str
    number: int
    text: str
    reason: str | None


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page that are marked as `sh`, in order."""
    found: list[Block] = []
    heading, number = "", 0
    for each in _LINES.finditer(page):
        if each["heading"]:
            heading, number = each["heading"], 0
        else:
            number += 1
            found.append(Block(heading, number, each["block"], each["reason"]))
    return found


class Failed(AssertionError):
    """A block ended the shell, or did not end. The message contains the input and the output."""


class Shell:
    """A context manager with one bash that ends with the first failed command."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.transcript = ""
        self._said = ""
        self._changed = threading.Condition()
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(environment),
            text=True,
            errors="replace",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="shell")

    def __enter__(self) -> Self:
        self._reader.start()
        self.run("set -euo pipefail", timeout=10)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)  # what a block that did not end still runs, too
        self._bash.wait()
        self._reader.join()
        for stream in (self._bash.stdin, self._bash.stdout):
            if stream is not None:
                stream.close()

    def run(self, text: str, *, timeout: float) -> str:
        """Type a block and return its output. Raises `Failed` if a command fails or the block takes too long."""
        mark = f"done-{secrets.token_hex(8)}"
        # In braces, so that bash reads all of it before it runs the first line: a command must not eat the next one.
        self._type(f"{{\n{text}\n}} </dev/null\necho {mark}\n")
        end = time.monotonic() + timeout
        with self._changed:
            while mark not in self._said and self._bash.poll() is None and time.monotonic() < end:
                self._changed.wait(0.5)
            ended = mark in self._said
            said, self._said = self._said.partition(mark)[0], ""
        self.transcript += f"$ {text}\n{said}\n"
        if not ended:
            how = f"it did not end within {timeout:.0f} s" if self._bash.poll() is None else "a command failed"
            raise Failed(f"{how}:\n{text}\n--- it said:\n{said}")
        return said

    def _type(self, text: str) -> None:
        if self._bash.stdin is None:
            raise RuntimeError("bash has no stdin")
        self._bash.stdin.write(text)
        self._bash.stdin.flush()

    def _read(self) -> None:
        for line in self._bash.stdout or ():
            with self._changed:
                self._said += line
                self._changed.notify()
