"""Whether the run of a job comes from a fork of its repository.

Anyone may fork a public repository and open a pull request with a workflow of his own, so its jobs are served only by
pools that say so (`spec.allowForks`). A webhook about a job does not tell; the run does (GitHub docs, "Get a workflow
run": `head_repository`, `event`, `pull_requests`). What cannot be told counts as a fork: doubt means no (law L8).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

TARGET = "pull_request_target"


class Origin(StrEnum):
    """Where the head of a run is. `unknown`: nobody was asked yet."""

    HERE = "here"
    FORK = "fork"
    UNKNOWN = "unknown"


def origin_of(
    *, event: str, repository_id: int, head_repository_id: int | None, pull_request_heads: Sequence[int | None]
) -> Origin:
    """Return where a run comes from, by what GitHub shows of it; never `UNKNOWN`.

    `head_repository_id` is None when GitHub shows none, as for a fork that was deleted. `pull_request_heads` are the
    repositories of the heads of its open pull requests, which GitHub lists for those of the repository itself only.
    """
    if head_repository_id != repository_id or any(head != repository_id for head in pull_request_heads):
        return Origin.FORK
    # Such a run has the workflow of the base and, nearly always, the code of the pull request: only a pull request
    # that is seen to be of this repository proves that the code is, too.
    if event == TARGET and not pull_request_heads:
        return Origin.FORK
    return Origin.HERE
