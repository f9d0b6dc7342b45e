"""Origin of a job's run: the repository itself or a fork of it.

Anyone can fork a public repository and open a pull request with a workflow of their own, so such jobs are served only
by pools that allow it (`spec.allowForks`). A webhook about a job does not contain the origin, but the run does (GitHub
docs, "Get a workflow run": `head_repository`, `event`, `pull_requests`). An unclear origin counts as a fork: doubt
means no (law L8).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

TARGET = "pull_request_target"


class Origin(StrEnum):
    """Location of the head of a run. `unknown`: GitHub was not asked yet."""

    HERE = "here"
    FORK = "fork"
    UNKNOWN = "unknown"


def origin_of(
    *, event: str, repository_id: int, head_repository_id: int | None, pull_request_heads: Sequence[int | None]
) -> Origin:
    """Return the origin of a run from GitHub's fields; never `UNKNOWN`.

    `head_repository_id` is None if GitHub shows none, as for a deleted fork. `pull_request_heads` are the repositories
    of the heads of its open pull requests, which GitHub lists only for those from the repository itself.
    """
    if head_repository_id != repository_id or any(head != repository_id for head in pull_request_heads):
        return Origin.FORK
    # Such a run has the workflow of the base and, nearly always, the code of the pull request. Only a pull request that
    # is shown to be of this repository proves that the code is of it, too.
    if event == TARGET and not pull_request_heads:
        return Origin.FORK
    return Origin.HERE
