"""Origin of a job's run: the repository of the job or a fork of this repository.

Anyone can fork a public repository and open a pull request with a changed workflow. A pool serves the jobs of such a
pull request only if the pool allows forks (`spec.allowForks`). A pool whose later runners get the volumes of earlier
ones serves no job of a fork at all. A webhook about a job does not contain the origin, but GitHub's answer about the
run does (GitHub docs, "Get a workflow run": `head_repository`, `event`, `pull_requests`). If
the origin is unclear, the run counts as a run of a fork (law L8).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

TARGET = "pull_request_target"


class Origin(StrEnum):
    """Repository of the head commit of a run. `unknown` means that GitHub has not answered yet."""

    HERE = "here"
    FORK = "fork"
    UNKNOWN = "unknown"


def private_only(*, retains: bool, persistent: bool, allow_forks: bool) -> bool:
    """Return True if no public repository may use the runner group of a pool.

    GitHub gives a registered runner the job of any repository that the group admits, so of a public repository also the
    jobs of forks. `retains`: later runners get the volumes of earlier runners. `persistent`: a runner runs several
    jobs. In both cases, a job of a fork could read and change what other jobs use. A persistent pool whose runners have
    no such volumes can accept this with `allow_forks`.
    """
    return retains or (persistent and not allow_forks)


def origin_of(
    *, event: str, repository_id: int, head_repository_id: int | None, pull_request_heads: Sequence[int | None]
) -> Origin:
    """Return the origin of a run from GitHub's fields. The result is never `UNKNOWN`.

    `head_repository_id` is None if GitHub does not show the head repository. For example, GitHub does not show a
    deleted fork. `pull_request_heads` has the head repository of each open pull request that GitHub lists. GitHub lists
    only pull requests from the repository itself.
    """
    if head_repository_id != repository_id or any(head != repository_id for head in pull_request_heads):
        return Origin.FORK
    # A run for this event has the workflow of the base and, nearly always, the code of the pull request. Only a
    # listed pull request of this repository proves that the code is of this repository.
    if event == TARGET and not pull_request_heads:
        return Origin.FORK
    return Origin.HERE
