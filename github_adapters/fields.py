"""Fields of GitHub's JSON. Every value is checked or cleaned here, so that Postgres accepts every value that is stored.

A value that affects decisions (ids, labels, names of repositories) is refused if it is invalid. A value that is only
shown or compared (names, branches) is cleaned. Unknown fields are ignored, because GitHub adds new ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ostler.server_words import without_controls

BIGINT_MAX = 2**63 - 1
INTEGER_MAX = 2**31 - 1
MOST_LABELS = 100
LONGEST_LABEL = 256
LONGEST_WORD = 64
LONGEST_TEXT = 1024

_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_FULL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,100}")


class Malformed(ValueError):
    """A value is missing or invalid. The text names the field, never the value."""


def decode(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object in `body`.

    Raises `Malformed` if `body` is no JSON object.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("the body is not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("the body is not an object")
    return value


def section(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under `key`.

    Raises `Malformed` if the value is missing or invalid.
    """
    value = source.get(key)
    if not isinstance(value, dict):
        raise Malformed(f"{key} is not an object")
    return value


def number(source: Mapping[str, Any], key: str, *, most: int = BIGINT_MAX) -> int:
    """Return the positive integer under `key`.

    Raises `Malformed` if the value is missing or invalid.
    """
    value = source.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise Malformed(f"{key} is not a positive integer in range")
    return value


def optional_number(source: Mapping[str, Any], key: str) -> int | None:
    """Return the positive integer under `key`. Return None if the value is missing, null or 0.

    Raises `Malformed` if the value is invalid.
    """
    value = source.get(key)
    if value is None or (value == 0 and not isinstance(value, bool)):
        return None
    return number(source, key)


def word(source: Mapping[str, Any], key: str) -> str:
    """Return the short printable word under `key`, such as a status.

    GitHub might add new words, so any word is accepted. Raises `Malformed` if the value is missing or invalid.
    """
    value = source.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_WORD or not value.isprintable():
        raise Malformed(f"{key} is not a printable text of 1 to {LONGEST_WORD} characters")
    return value


def optional_word(source: Mapping[str, Any], key: str) -> str | None:
    """Return the short printable word under `key`. Return None if the value is missing, null or empty.

    Raises `Malformed` if the value is invalid.
    """
    value = source.get(key)
    return None if value is None or value == "" else word(source, key)


def optional_text(source: Mapping[str, Any], key: str) -> str | None:
    """Return the text under `key`, cleaned and cut to 1,024 characters.

    Return None if the value is missing, null, empty or no text.
    """
    value = source.get(key)
    if not isinstance(value, str) or not value:
        return None
    value = without_controls(value[:LONGEST_TEXT])
    return value if _storable(value) else value.encode("utf-8", "replace").decode("utf-8")


def full_name(source: Mapping[str, Any], key: str) -> str:
    """Return the `owner/name` of a repository under `key`.

    Raises `Malformed` if the value is missing or invalid.
    """
    value = source.get(key)
    if not isinstance(value, str) or not _FULL_NAME.fullmatch(value):
        raise Malformed(f"{key} is not owner/name")
    return value


def login(source: Mapping[str, Any], key: str) -> str:
    """Return the login of an owner under `key`.

    Raises `Malformed` if the value is missing or invalid.
    """
    value = source.get(key)
    if not isinstance(value, str) or not _LOGIN.fullmatch(value):
        raise Malformed(f"{key} is not a login")
    return value


def at_an_enterprise(installation: Mapping[str, Any]) -> bool:
    """Return whether an installation belongs to an enterprise.

    The account of an enterprise has a slug, but no login and no jobs. An organisation of the enterprise has an
    installation of its own if Ostler runs jobs of the organisation.
    """
    return installation.get("target_type") == "Enterprise"


def labels(source: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the labels of a job in GitHub's order. Return no labels if the field is missing or null.

    Raises `Malformed` if the value is invalid.
    """
    value = source.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MOST_LABELS:
        raise Malformed(f"{key} is not a list of at most {MOST_LABELS}")
    for label in value:
        if not isinstance(label, str) or not 0 < len(label) <= LONGEST_LABEL or not _storable(label):
            raise Malformed(f"{key} contains a value that is not a label")
    return tuple(map(without_controls, value))


def moment(source: Mapping[str, Any], key: str) -> datetime:
    """Return the time under `key` in UTC. GitHub writes it with or without fractions of a second.

    Raises `Malformed` if the value is missing or invalid.
    """
    value = source.get(key)
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
        if parsed is not None:
            return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Malformed(f"{key} is not a time")


def optional_moment(source: Mapping[str, Any], key: str) -> datetime | None:
    """Return the time under `key` in UTC. Return None if the value is missing, null or empty.

    Raises `Malformed` if the value is invalid.
    """
    value = source.get(key)
    return None if value is None or value == "" else moment(source, key)


def _storable(value: str) -> bool:
    """Return whether Postgres can store the text.

    Postgres cannot store a NUL or half of a surrogate pair.
    """
    if "\x00" in value:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
