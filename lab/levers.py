"""One call of the control interface of the lab's GitHub, `/_lab/…`."""

from __future__ import annotations

from typing import Any

import urllib3

_SECONDS = 30.0


class LeverError(RuntimeError):
    """The lab's GitHub refused; the text says what, with the start of its answer."""


def pull(github_url: str, method: str, path: str, body: Any = None) -> Any:
    """Return the JSON that answers `/_lab<path>`, None where there is none.

    Raises `LeverError` for a refusal, `urllib3.exceptions.HTTPError` without an answer; nothing is repeated.
    """
    answer = urllib3.request(
        method,
        f"{github_url.rstrip('/')}/_lab{path}",
        json=body,
        headers={"Connection": "close"},  # one that was kept might be gone by the next call
        timeout=_SECONDS,
        retries=False,
    )
    if answer.status not in range(200, 300):
        raise LeverError(f"{method} /_lab{path}: {answer.status} {answer.data[:200].decode(errors='replace')}")
    return answer.json() if answer.data else None
