"""One call of the control interface of the lab's GitHub, `/_lab/…`."""

from __future__ import annotations

from typing import Any

import urllib3

_SECONDS = 30.0


class LeverError(RuntimeError):
    """The lab's GitHub refused the call. The message has the call and the start of the answer."""


def pull(github_url: str, method: str, path: str, body: Any = None) -> Any:
    """Return the JSON answer of `/_lab<path>`, or None if the answer is empty.

    Raises `LeverError` if the call is refused, and `urllib3.exceptions.HTTPError` without an answer. Nothing is
    retried.
    """
    answer = urllib3.request(
        method,
        f"{github_url.rstrip('/')}/_lab{path}",
        json=body,
        headers={"Connection": "close"},  # a kept connection might be closed by the next call
        timeout=_SECONDS,
        retries=False,
    )
    if answer.status not in range(200, 300):
        raise LeverError(f"{method} /_lab{path}: {answer.status} {answer.data[:200].decode(errors='replace')}")
    return answer.json() if answer.data else None
