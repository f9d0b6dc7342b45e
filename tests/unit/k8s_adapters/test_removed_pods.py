"""The answer to the deletion of a Pod proves its removal only without a grace period and without finalizers."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_adapters.runners import runners

TIME = "2026-11-30T12:00:00Z"


@pytest.mark.parametrize(
    ("metadata", "removed"),
    [
        ({"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 0}, True),
        ({"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 0, "finalizers": []}, True),
        ({"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 30}, False),
        ({"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 0, "finalizers": ["example.com/backup"]}, False),
        ({"deletionTimestamp": TIME}, False),
        ({}, False),
    ],
)
def test_only_a_pod_that_nothing_keeps_counts_as_removed(metadata: dict[str, Any], removed: bool) -> None:
    assert runners._is_removed({"metadata": metadata}) is removed


def test_an_answer_without_an_object_does_not_prove_a_removal() -> None:
    assert not runners._is_removed({"kind": "Status", "status": "Success"})
