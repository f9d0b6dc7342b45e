"""Name of a runner on GitHub: the name of its Pod, cut to fit, and 8 hex digits.

GitHub allows at most 64 characters. A name is used for one mint attempt only. The name is committed before the mint, so
that Ostler can search GitHub for the runner if the outcome of the mint is unknown. The digits distinguish the attempts,
and the index on `mint_attempts` guarantees that each name is unique.
"""

from __future__ import annotations

import re

MAX_LENGTH = 64
_SUFFIX_BYTES = 4
_SUFFIX = re.compile(r"[0-9a-f]{8}")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9._-]")


def make_runner_name(pod_name: str, suffix8hex: str) -> str:
    """Return `<pod name>-<8 hex>`, with at most 64 of the characters `A-Za-z0-9._-`.

    Any other character of the Pod name becomes `-`. Separators at both ends of the name are removed. If nothing
    remains, the name is `runner`. Raises ValueError if the suffix is not 8 lower-case hex digits.
    """
    if _SUFFIX.fullmatch(suffix8hex) is None:
        raise ValueError(f"the suffix of a runner name must be 8 lower-case hex digits, not {suffix8hex!r}")
    room = MAX_LENGTH - len(suffix8hex) - 1
    # The trailing separators are removed last, because the cut might end on a separator.
    stem = _NOT_ALLOWED.sub("-", pod_name).lstrip("-._")[:room].rstrip("-._")
    return f"{stem or 'runner'}-{suffix8hex}"


def random_suffix(random: bytes) -> str:
    """Return the first 4 of the given random bytes as 8 hex digits. Raises ValueError if there are fewer bytes."""
    if len(random) < _SUFFIX_BYTES:
        raise ValueError(f"a runner name needs {_SUFFIX_BYTES} random bytes, but got {len(random)}")
    return random[:_SUFFIX_BYTES].hex()
