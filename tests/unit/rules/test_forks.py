"""Recognition of forks: a run counts as no fork's only if GitHub shows that it belongs to the repository itself."""

from __future__ import annotations

import pytest

from rules.routing.forks import Origin, origin_of

HERE, ELSEWHERE = 5, 6


@pytest.mark.parametrize(
    ("event", "head", "pull_requests", "origin"),
    [
        ("push", HERE, [], Origin.HERE),
        ("push", None, [], Origin.FORK),
        ("push", ELSEWHERE, [], Origin.FORK),
        ("pull_request", HERE, [HERE], Origin.HERE),
        ("pull_request", ELSEWHERE, [], Origin.FORK),
        ("pull_request", HERE, [HERE, ELSEWHERE], Origin.FORK),
        ("pull_request", HERE, [None], Origin.FORK),
        ("pull_request_target", HERE, [HERE], Origin.HERE),
        ("pull_request_target", HERE, [], Origin.FORK),
        ("pull_request_target", ELSEWHERE, [], Origin.FORK),
        ("dynamic", HERE, [], Origin.HERE),  # Dependabot, and the default set-up of code scanning
        ("", HERE, [], Origin.HERE),
    ],
)
def test_doubt_is_a_fork(event: str, head: int | None, pull_requests: list[int | None], origin: Origin) -> None:
    assert (
        origin_of(event=event, repository_id=HERE, head_repository_id=head, pull_request_heads=pull_requests) is origin
    )
