"""Volumes of a pool's runners: used volumes, volumes for the next runner, and volumes to delete."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.pools.volumes import UNBOUND_AFTER, UNKNOWN_AFTER, Reclaim, VolumePlan, VolumeSeen, plan_volumes

SHAPE = "s"
OLD = VolumeSeen(name="cache-a", uid="1", runner="a", shape=SHAPE, age_seconds=UNKNOWN_AFTER)
YOUNG = replace(OLD, age_seconds=UNKNOWN_AFTER - 1)


def plan(*volumes: VolumeSeen, reclaim: Reclaim = Reclaim.RETAIN, **used_by: int | None) -> VolumePlan:
    return plan_volumes(volumes, used_by=used_by, shape=SHAPE, reclaim=reclaim)


@pytest.mark.parametrize("reclaim", list(Reclaim))
def test_a_volume_of_a_runner_that_might_exist_is_in_use(reclaim: Reclaim) -> None:
    assert plan(OLD, reclaim=reclaim, a=None) == VolumePlan(in_use=1)


def test_a_free_volume_is_used_again_or_deleted() -> None:
    assert plan(OLD, a=7) == VolumePlan(reusable=("a",), free=1)
    assert plan(OLD, reclaim=Reclaim.DELETE, a=7) == VolumePlan(delete=(OLD,), free=1)


def test_a_runner_that_postgres_does_not_know_has_ended_only_if_its_volume_is_old() -> None:
    assert plan(OLD) == VolumePlan(reusable=("a",), free=1)
    assert plan(YOUNG) == VolumePlan(in_use=1)
    assert plan(YOUNG, reclaim=Reclaim.DELETE) == VolumePlan(in_use=1)


@pytest.mark.parametrize("change", [{"shape": "t"}, {"lost": True}])
def test_an_unfit_volume_is_never_used_again(change: dict[str, object]) -> None:
    unfit = replace(OLD, **change)  # type: ignore[arg-type]
    assert plan(unfit, a=7).reusable == ()
    assert plan(unfit, reclaim=Reclaim.DELETE, a=7).delete == (unfit,)


def test_a_runner_with_one_unfit_volume_is_not_used_again() -> None:
    other = replace(OLD, name="tools-a", uid="2", shape="t")
    assert plan(OLD, other, a=7).reusable == ()


def test_a_volume_that_is_being_deleted_is_in_no_number_and_keeps_its_runner_out() -> None:
    ending = replace(OLD, name="tools-a", uid="2", terminating=True)
    found = plan(OLD, ending, a=7)
    assert (found.reusable, found.count) == ((), 1)
    assert plan(OLD, ending, reclaim=Reclaim.DELETE, a=7).delete == (OLD,)


@pytest.mark.parametrize(("age", "count"), [(UNBOUND_AFTER - 1, 0), (UNBOUND_AFTER, 1)])
def test_a_volume_that_stays_without_storage_counts_as_unbound(age: float, count: int) -> None:
    waiting = replace(OLD, pending=True, age_seconds=age)
    assert plan(waiting, OLD, a=None).unbound == count
    assert plan(replace(waiting, terminating=True), a=None).unbound == 0
    assert plan(waiting, a=7).unbound == 0, "no runner needs it"


def test_volumes_that_were_not_used_for_the_longest_time_come_first() -> None:
    volumes = [replace(OLD, name=f"cache-{runner}", uid=runner, runner=runner) for runner in "abcd"]
    assert plan(*volumes, a=9, b=3, c=None, d=5).reusable == ("b", "d", "a")


VOLUMES = st.lists(
    st.builds(
        VolumeSeen,
        name=st.uuids().map(str),
        uid=st.uuids().map(str),
        runner=st.sampled_from("abc"),
        shape=st.sampled_from([SHAPE, "t"]),
        age_seconds=st.sampled_from([0.0, UNKNOWN_AFTER]),
        lost=st.booleans(),
        terminating=st.booleans(),
    ),
    max_size=8,
)


@given(VOLUMES, st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(1, 9)), st.sampled_from(Reclaim))
def test_no_plan_touches_a_volume_of_a_runner_that_might_exist(
    volumes: list[VolumeSeen], used_by: dict[str, int | None], reclaim: Reclaim
) -> None:
    found = plan_volumes(volumes, used_by=used_by, shape=SHAPE, reclaim=reclaim)
    living = {runner for runner, row in used_by.items() if row is None}
    assert not living & set(found.reusable)
    assert not living & {each.runner for each in found.delete}
    assert not (found.reusable and found.delete)
    assert found.count == sum(not each.terminating for each in volumes)
