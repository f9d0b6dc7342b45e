"""Records of hook Pods: the newest state of each name, a bounded number of Pods, and unknown formats."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rules.claims.hook_pods import MOST, HookPod, merged, read_all

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POD = HookPod(name="small-1-workflow", phase="Running", node="node-1", problem=None, created_at=NOW, seen_at=NOW)
SECOND = timedelta(seconds=1)


def test_older_state_never_replaces_a_newer_one() -> None:
    newer = replace(POD, problem="container job used more memory than its limit (OOMKilled)", seen_at=NOW + SECOND)
    assert merged([POD], [newer]) == merged([newer], [POD]) == [newer]


def test_pod_of_the_next_job_replaces_the_pod_with_its_name() -> None:
    gone = replace(POD, gone=True, seen_at=NOW + 9 * SECOND)
    following = replace(POD, created_at=NOW + SECOND, seen_at=NOW + SECOND)
    assert merged([gone], [following]) == [following]


def test_newest_pods_are_kept_in_the_order_of_their_creation() -> None:
    pods = [replace(POD, name=f"step-{number}", created_at=NOW + number * SECOND) for number in range(MOST + 2)]
    assert merged(reversed(pods), ()) == pods[2:]


def test_packed_pod_is_read_again() -> None:
    gone = replace(POD, node=None, problem="Evicted", gone=True)
    assert [HookPod.read(each.packed()) for each in (POD, gone)] == [POD, gone]


@pytest.mark.parametrize("given", [None, 7, [], {}, POD.packed() | {"seen_at": "soon"}, POD.packed() | {"seen_at": 7}])
def test_unknown_format_is_not_read(given: object) -> None:
    assert HookPod.read(given) is None  # type: ignore[arg-type]


def test_list_without_the_unknown_formats_is_read() -> None:
    assert read_all([POD.packed(), 7, {}]) == [POD]
    assert read_all(7) == read_all(None) == []


def test_long_texts_are_cut() -> None:
    found = HookPod.read(POD.packed() | {"problem": "x" * 10_000})
    assert found is not None
    assert len(found.problem or "") == 300


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "small-1-workflow (Running on node node-1)"),
        (
            {"node": None, "phase": "Pending", "problem": "no node accepts it: 0/3"},
            "(Pending; no node accepts it: 0/3)",
        ),
        ({"gone": True}, "small-1-workflow (gone)"),
    ],
)
def test_pod_is_described(changes: dict[str, object], words: str) -> None:
    assert words in replace(POD, **changes).describe()  # type: ignore[arg-type]
