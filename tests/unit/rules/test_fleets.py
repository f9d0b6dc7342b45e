"""Pools that share nodes: load before minimums before headroom. Doubt about nodes removes no Pod."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.pools.fleets import Fleet, Member, Node, Size, Taint, Toleration, capacity, share
from rules.pools.scaling import Demand, Limits, Parts, wanted

ONE = Size(1000, 1024)


def member(pool_id: int, real: int, floor: int, headroom: int, size: Size = ONE) -> Member:
    return Member(pool_id, Parts(real, floor, headroom), size)


def node(cpu: int = 10_000, memory: int = 10_240, *, usable: bool = True, taint: str = "", **labels: str) -> Node:
    taints = (Taint(taint, "", "NoSchedule"),) if taint else ()
    return Node(labels=labels, usable=usable, allocatable=Size(cpu, memory), taints=taints)


def test_what_fits_is_granted() -> None:
    members = [member(1, 3, 2, 1), member(2, 1, 1, 1)]
    assert share(members, room=Size(9000, 9 * 1024)) == {each.pool_id: each.wants for each in members}


def test_load_is_granted_in_full_beyond_the_nodes() -> None:
    granted = share([member(1, 30, 2, 1), member(2, 1, 1, 1)], room=Size(9000, 9 * 1024))
    assert granted == {1: Parts(30, 0, 0), 2: Parts(1, 0, 0)}


def test_the_load_of_one_comes_before_the_floor_of_another() -> None:
    granted = share([member(1, 0, 8, 5), member(2, 6, 0, 5)], room=Size(9000, 9 * 1024))
    assert granted == {1: Parts(0, 3, 0), 2: Parts(6, 0, 0)}


def test_a_tier_that_does_not_fit_is_split_in_proportion_and_rounded_down() -> None:
    granted = share([member(1, 0, 6, 5), member(2, 0, 3, 5)], room=Size(5000, 100_000))
    assert granted == {1: Parts(0, 3, 0), 2: Parts(0, 1, 0)}


def test_headroom_gets_what_floors_leave() -> None:
    granted = share([member(1, 1, 1, 4), member(2, 1, 1, 4)], room=Size(8000, 100_000))
    assert granted == {1: Parts(1, 1, 2), 2: Parts(1, 1, 2)}


def test_the_scarcer_of_cpu_and_memory_decides() -> None:
    fat = Size(1000, 4096)
    granted = share([member(1, 0, 4, 0, fat)], room=Size(100_000, 8192))
    assert granted[1] == Parts(0, 2, 0)


def test_what_other_pools_hold_there_is_not_to_be_had() -> None:
    assert share([member(1, 1, 4, 0)], room=Size(5000, 100_000), taken=Size(2000, 0))[1] == Parts(1, 2, 0)


@pytest.mark.parametrize("room", [None, Size(0, 0), Size(0, 9000), Size(9000, 0)])
def test_an_unknown_room_takes_nothing_away(room: Size | None) -> None:
    assert share([member(1, 3, 2, 9)], room=room, taken=Size(10**6, 10**6))[1] == Parts(3, 2, 9)


def test_nodes_that_are_not_ready_cordoned_tainted_or_elsewhere_hold_nothing() -> None:
    nodes = [node(), node(usable=False), node(taint="gpu"), node(disk="ssd")]
    assert capacity(Fleet(), nodes, ()) == Size(18_000, 18_432)
    assert capacity(Fleet.of({"disk": "ssd"}), nodes, ()) == Size(9000, 9216)
    assert capacity(Fleet.of({"disk": "hdd"}), nodes, ()) == Size(0, 0)


@pytest.mark.parametrize(
    ("taint", "usable", "counts"),
    [
        ("node.kubernetes.io/not-ready", True, True),
        ("node.kubernetes.io/unreachable", True, True),
        ("node.kubernetes.io/not-ready", False, False),
        ("node.kubernetes.io/disk-pressure", True, False),
    ],
)
def test_node_that_is_ready_again_counts_before_its_taint_is_removed(taint: str, usable: bool, counts: bool) -> None:
    assert (capacity(Fleet(), [node(taint=taint, usable=usable)], ()) != Size(0, 0)) is counts


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("gpu", "Exists", "", None), True),
        (Toleration("gpu", "Exists", "", "NoSchedule"), True),
        (Toleration("gpu", "Exists", "", "NoExecute"), False),
        (Toleration("gpu", "Equal", "a100", None), True),
        (Toleration("gpu", "Equal", "h100", None), False),
        (Toleration("arm", "Exists", "", None), False),
        (Toleration(None, "Exists", "", None), True),
        (Toleration(None, "Equal", "", None), False),
    ],
)
def test_tolerations_are_read_as_kubernetes_does(toleration: Toleration, covers: bool) -> None:
    assert toleration.covers(Taint("gpu", "a100", "NoSchedule")) is covers


def test_a_fleet_does_not_depend_on_the_order_of_its_labels() -> None:
    assert Fleet.of({"a": "1", "b": "2"}) == Fleet.of({"b": "2", "a": "1"})
    assert str(Fleet()) == "all nodes"
    assert str(Fleet.of({"b": "2", "a": "1"})) == "a=1,b=2"


parts = st.builds(Parts, st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
sizes = st.builds(Size, st.integers(1, 4000), st.integers(1, 4000))
members_of = st.lists(st.tuples(parts, sizes), min_size=1, max_size=5).map(
    lambda found: [Member(number, *each) for number, each in enumerate(found)]
)
rooms = st.builds(Size, st.integers(1, 100_000), st.integers(1, 100_000))


@given(members_of, rooms, sizes)
def test_what_is_granted_beyond_load_fits_and_load_is_granted_in_full(
    members: list[Member], room: Size, taken: Size
) -> None:
    granted = share(members, room=room, taken=taken)
    extra = sum(granted[each.pool_id].total - granted[each.pool_id].real for each in members)
    held = sum((each.size.times(granted[each.pool_id].total) for each in members), start=taken)
    assert extra == 0 or (held.vcpu <= room.vcpu and held.memory <= room.memory)
    for each in members:
        got = granted[each.pool_id]
        assert got.real == each.wants.real
        assert 0 <= got.floor <= each.wants.floor
        assert 0 <= got.headroom <= each.wants.headroom
    if any(granted[each.pool_id].headroom for each in members):
        assert all(granted[each.pool_id].floor == each.wants.floor for each in members)


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), sizes), min_size=1, max_size=4),
    rooms,
    st.integers(0, 6),
    st.integers(1, 20),
)
def test_more_load_of_a_pool_never_means_fewer_pods_of_it(
    pools: list[tuple[int, int, Size]], room: Size, min_warm: int, most: int
) -> None:
    limits = Limits(min_warm=min_warm, max_replicas=most, scale_down_delay=0)

    def of_the_first(load: int) -> int:
        members = [
            Member(number, wanted(Demand(load if number == 0 else own, 0, usual), limits), size)
            for number, (own, usual, size) in enumerate(pools)
        ]
        return share(members, room=room)[0].total

    assert of_the_first(pools[0][0] + 1) >= of_the_first(pools[0][0])


def test_what_needs_one_unit_gets_nothing_of_none() -> None:
    small = Member(1, Parts(real=0, floor=1, headroom=0), Size(1, 1))
    assert share([small], room=Size(5, 5), taken=Size(5, 5))[1].floor == 0
    assert share([small], room=Size(5, 5), taken=Size(4, 4))[1].floor == 1
