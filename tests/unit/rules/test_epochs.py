"""Judgement of Postgres by the two epochs: a restored or foreign one never counts as current (law L8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.restore.epochs import CLUSTER_LOST_IT, Epoch, Standing, judge_epoch

numbers = st.integers(0, 100)


@given(ours=numbers, cluster=numbers, unknown=numbers)
def test_postgres_is_older_exactly_when_the_cluster_is_ahead(ours: int, cluster: int, unknown: int) -> None:
    verdict = judge_epoch(Epoch(ours, "a"), Epoch(cluster, "a"), unknown_stamps=unknown)
    assert verdict.standing is (Standing.OLDER if cluster > ours else Standing.CURRENT)
    assert verdict.older == (cluster > ours)


@given(ours=numbers, cluster=numbers)
def test_the_epoch_of_another_postgres_is_foreign_whatever_its_number(ours: int, cluster: int) -> None:
    verdict = judge_epoch(Epoch(ours, "a"), Epoch(cluster, "b"), unknown_stamps=0)
    assert verdict.standing is Standing.FOREIGN
    assert verdict.older
    assert f"epoch {cluster}" in verdict.why


@pytest.mark.parametrize(("unknown", "standing"), [(0, Standing.FIRST), (1, Standing.OLDER), (30, Standing.OLDER)])
def test_a_lost_epoch_is_the_first_unless_a_stamp_is_of_an_unknown_claim(unknown: int, standing: Standing) -> None:
    verdict = judge_epoch(Epoch(5, "a"), None, unknown_stamps=unknown)
    assert verdict.standing is standing
    assert verdict.older == (standing is Standing.OLDER)
    assert verdict.why.startswith(CLUSTER_LOST_IT) == verdict.older


def test_an_operator_reads_both_numbers_when_postgres_was_put_back() -> None:
    why = judge_epoch(Epoch(5, "a"), Epoch(9, "a"), unknown_stamps=0).why
    assert "epoch 5" in why
    assert "at 9" in why
