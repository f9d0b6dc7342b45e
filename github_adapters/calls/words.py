"""GitHub's own words about a refusal, made safe to store and to show.

The text comes from outside, so `ostler.server_words` cleans it, and it has at most `LONGEST` characters. Only two parts
of an answer are used: the `message` of an error, and the header that names the permissions for the call.
"""

from __future__ import annotations

import re

from github_adapters.calls.http import Answer
from github_adapters.fields import Malformed, decode
from ostler.server_words import in_one_line

LONGEST = 200
"""Most characters of a message that are stored."""

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
    return in_one_line(message, longest=LONGEST)


def _permissions(header: str | None) -> str | None:
    if header is None or not _PERMISSIONS.fullmatch(header.strip()):
        return None
    return f"(needs {header.strip()})"
