"""Tasks of pools that get the name of a pool, so that their sender need not know our ids."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.claims import dispatch as of_dispatch
from tasks.claims.dispatch import dispatch
from tasks.pools import reconcile as module
from tasks.pools.reconcile import reconcile
from tests.integration.tasks.conftest import Stage
from tests.rows import insert_pool


@pytest.fixture
def matched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the pools that the matcher began to match."""
    found: list[int] = []
    monkeypatch.setattr(of_dispatch, "match_rounds", lambda _rt, pool_id: found.append(pool_id))
    return found


def pool(stage: Stage, name: str, *, namespace: str | None = None) -> int:
    """Insert a pool's row, and return its id."""
    uid = f"{namespace}/{name}"
    return insert_pool(stage.rt.engine, name, uid=uid, namespace=namespace or stage.namespace, labels=[])


def test_dispatch_matches_the_pool_of_a_name(clusterless: Stage, matched: list[int]) -> None:
    other, wanted = pool(clusterless, "other"), pool(clusterless, "large")
    pool(clusterless, "large", namespace="elsewhere")

    dispatch.run(pool="large")

    assert matched == [wanted]
    assert other not in matched


def test_dispatch_prefers_the_id_when_both_are_given(clusterless: Stage, matched: list[int]) -> None:
    wanted = pool(clusterless, "other")
    pool(clusterless, "large")

    dispatch.run(pool_id=wanted, pool="large")

    assert matched == [wanted]


@pytest.mark.parametrize("arguments", [{"pool": "unknown"}, {}, {"pool": 7}, {"pool": None}])
def test_dispatch_does_nothing_for_a_name_that_no_pool_has(
    clusterless: Stage, matched: list[int], arguments: dict[str, Any]
) -> None:
    pool(clusterless, "large")

    dispatch.run(**arguments)

    assert matched == []


def test_keep_reconciles_the_pool_of_a_name(clusterless: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = pool(clusterless, "large")
    kept: list[tuple[int, bool]] = []
    monkeypatch.setattr(module, "reconcile_if_due", lambda _rt, number, **how: kept.append((number, how["shared"])))

    reconcile.run(pool="large")

    assert kept == [(wanted, False)]
