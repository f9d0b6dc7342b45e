"""GitHub's own words about a refusal, made safe to store and to show.

The text comes from outside, so it becomes one line of at most `LONGEST` characters. Characters that control a terminal
are replaced. Text that looks like a credential is replaced by `***` (law L13). Only two parts of an answer are used:
the `message` of an error, and the header that names the permissions for the call.
"""

from __future__ import annotations

import re

from github_adapters.calls.http import Answer
from github_adapters.fields import Malformed, decode, without_controls

LONGEST = 200
"""Most characters of a message that are stored."""

HIDDEN = "***"

_CREDENTIAL = re.compile(
    r"""
    \b(?:gh[a-z]_|github_pat_|v[0-9]+\.)[A-Za-z0-9_.-]{8,}  # tokens of GitHub
    | \beyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)*              # a JWT, or JSON in Base64: a JIT
    | [A-Za-z0-9+/=_-]{40,}                                 # any other long run without a space
    | (?<=://)[^\s/@]+@                                     # user and password of an address
    """,
    re.VERBOSE,
)
_PERMISSIONS = re.compile(r"[a-z_]{1,64}=(?:read|write|admin)(?:[,;] ?[a-z_]{1,64}=(?:read|write|admin)){0,9}")


def words_of(answer: Answer) -> str | None:
    """Return GitHub's reason for a refusal, with the permissions that the call needs.

    Return None if GitHub gives neither a reason nor permissions. GitHub docs: "Troubleshooting the REST API"
    (`x-accepted-github-permissions`).
    """
    parts = [_message(answer.body), _permissions(answer.headers.get("x-accepted-github-permissions"))]
    return " ".join(part for part in parts if part) or None


def _message(body: bytes) -> str | None:
    try:
        message = decode(body).get("message")
    except Malformed:
        return None
    if not isinstance(message, str):
        return None
    # The message is cut before it is cleaned, because it might be very long.
    line = " ".join(message[: LONGEST * 20].encode("utf-8", "replace").decode().split())
    line = _CREDENTIAL.sub(HIDDEN, without_controls(line))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _permissions(header: str | None) -> str | None:
    if header is None or not _PERMISSIONS.fullmatch(header.strip()):
        return None
    return f"(needs {header.strip()})"
