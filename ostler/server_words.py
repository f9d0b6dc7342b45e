"""Texts of GitHub and Kubernetes, made safe to store and to show.

The text comes from outside, so it becomes one line of limited length. Characters that control a terminal are replaced.
Text that looks like a credential is replaced by `***` (law L13).
"""

from __future__ import annotations

import re

HIDDEN = "***"

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal: control characters (C0 and C1), line separators and direction marks."""

_CREDENTIAL = re.compile(
    r"""
    \b(?:gh[a-z]_|github_pat_|v[0-9]+\.)[A-Za-z0-9_.-]{8,}  # tokens of GitHub
    | \beyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)*              # a JWT, or JSON in Base64: a JIT
    | [A-Za-z0-9+/=_-]{40,}                                 # any other long run without a space
    | (?<=://)[^\s/@]+@                                     # user and password of an address
    """,
    re.VERBOSE,
)


def without_controls(value: str) -> str:
    """Return a text with U+FFFD in place of each character that would control a terminal.

    The author of a workflow chooses the names and labels of its jobs. In a public repository this author might be a
    stranger.
    """
    return _CONTROLS.sub("\ufffd", value)


def in_one_line(message: str, *, longest: int) -> str:
    """Return a text in one line of at most `longest` characters, without control characters and credentials."""
    # The message is cut before it is cleaned, because it might be very long.
    line = " ".join(message[: longest * 20].encode("utf-8", "replace").decode().split())
    line = _CREDENTIAL.sub(HIDDEN, without_controls(line))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
