"""GitHub's own words about a refusal, made safe to keep and to show.

They are foreign text: one line without characters that a terminal obeys, cut to `LONGEST`, and with whatever looks like
a credential replaced (law L13). Only an error's `message` and the permissions that a call would have needed are read.
"""

from __future__ import annotations

import re

from github_adapters.calls.http import Answer
from github_adapters.fields import Malformed, decode, without_controls

LONGEST = 200
"""Characters of a message that are kept."""

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
    """Return why GitHub refused a call, in its words and with the permissions it asks for; None when it says nothing.

    Github docs: "Troubleshooting the REST API" (`x-accepted-github-permissions`).
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
    # Cut before the rest is done: a body is as long as it likes.
    line = " ".join(message[: LONGEST * 20].encode("utf-8", "replace").decode().split())
    line = _CREDENTIAL.sub(HIDDEN, without_controls(line))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _permissions(header: str | None) -> str | None:
    if header is None or not _PERMISSIONS.fullmatch(header.strip()):
        return None
    return f"(needs {header.strip()})"
