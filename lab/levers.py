"""One call of the control interface of the lab's GitHub, `/_lab/…`."""

from __future__ import annotations

from typing import Any

import urllib3

_SECONDS = 30.0


class LeverError(RuntimeError):
    """The lab's GitHub refused a call.

    The message contains the call, the status and the first 200 bytes of the answer.
    """


def pull(github_url: str, method: str, path: str, body: Any = None) -> Any:
    """Call `/_lab<path>` and return the JSON of the answer, or None if the answer has no body.

    Raises `LeverError` if the status is not 2xx, and `urllib3.exceptions.HTTPError` if no answer comes. The call is
    never retried.
    """
    answer = urllib3.request(
        method,
        f"{github_url.rstrip('/')}/_lab{path}",
        json=body,
        headers={"Connection": "close"},  # the server might close a kept connection before the next call
        timeout=_SECONDS,
        retries=False,
    )
    if answer.status not in range(200, 300):
        raise LeverError(f"{method} /_lab{path}: {answer.status} {answer.data[:200].decode(errors='replace')}")
    return answer.json() if answer.data else None
