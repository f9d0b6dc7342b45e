"""The gate: it never flaps, never trips without calls, and recovers only after enough healthy evaluations in a row."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.upstream.gates import CallCounts, Gate, GateRule, judge, what_now

RULE = GateRule()

looks = st.integers(0, 40).flatmap(lambda calls: st.builds(CallCounts, st.just(calls), st.integers(0, calls)))
rolls = st.floats(0, 1, exclude_max=True)
seen = st.lists(st.tuples(looks, rolls), max_size=120)
rules = st.builds(
    GateRule,
    least_errors=st.integers(1, 10),
    closes_at=st.floats(0.5, 1),
    opens_at=st.floats(0, 0.49),
    healthy_checks=st.integers(1, 6),
    extra_checks=st.integers(0, 6),
)


def walk(rule: GateRule, story: list[tuple[CallCounts, float]]) -> list[Gate]:
    """Return the gate before the first counts, and after each of the counts."""
    gates = [Gate()]
    for counts, roll in story:
        gates.append(judge(gates[-1], counts, rule=rule, roll=roll))
    return gates


def is_good(counts: CallCounts, rule: GateRule) -> bool:
    return counts.calls > 0 and counts.errors / counts.calls <= rule.opens_at


@given(rules, seen)
def test_it_closes_only_on_enough_errors_that_are_a_large_part(
    rule: GateRule, story: list[tuple[CallCounts, float]]
) -> None:
    gates = walk(rule, story)
    for before, after, (counts, _) in zip(gates, gates[1:], story, strict=False):
        if after.closed and not before.closed:
            assert counts.errors >= rule.least_errors
            assert counts.errors >= rule.closes_at * counts.calls - 1e-9
            assert rule.healthy_checks <= after.needs <= rule.healthy_checks + rule.extra_checks


@given(rules, seen)
def test_gate_opens_only_after_the_drawn_number_of_healthy_evaluations_in_a_row(
    rule: GateRule, story: list[tuple[CallCounts, float]]
) -> None:
    gates = walk(rule, story)
    for number, (before, after) in enumerate(pairwise(gates)):
        if before.closed and not after.closed:
            said = [counts for counts, _ in story[: number + 1] if counts.calls]
            assert all(is_good(counts, rule) for counts in said[-before.needs :])
            assert len(said) > before.needs >= rule.healthy_checks


@given(rules, seen)
def test_it_does_not_flap(rule: GateRule, story: list[tuple[CallCounts, float]]) -> None:
    gates = walk(rule, story)
    closings = sum(after.closed and not before.closed for before, after in pairwise(gates))
    # Each closing and what opens the gate again take that many checks.
    assert closings <= len(story) // (1 + rule.healthy_checks) + 1


@given(rules, st.booleans(), st.integers(0, 3), rolls)
def test_no_traffic_says_nothing(rule: GateRule, closed: bool, good: int, roll: float) -> None:
    gate = Gate(closed=True, healthy_checks=good, needs=9) if closed else Gate()
    assert judge(gate, CallCounts(0, 0), rule=rule, roll=roll) == gate


@given(seen)
def test_a_share_of_errors_between_the_two_limits_moves_no_gate(story: list[tuple[CallCounts, float]]) -> None:
    between = [(counts, roll) for counts, roll in story if counts.calls and 0.2 < counts.errors / counts.calls < 0.5]
    assert not any(gate.closed for gate in walk(RULE, between))
    shut = Gate(closed=True, healthy_checks=2, needs=4)
    for counts, roll in between:
        shut = judge(shut, counts, rule=RULE, roll=roll)
        assert shut.closed
        assert shut.healthy_checks == 0


@pytest.mark.parametrize(("roll", "needs"), [(0.0, 4), (0.19, 4), (0.2, 5), (0.5, 6), (0.99, 8)])
def test_number_of_healthy_evaluations_is_drawn_when_the_gate_closes(roll: float, needs: int) -> None:
    gate = judge(Gate(), CallCounts(10, 9), rule=RULE, roll=roll)
    assert gate == Gate(closed=True, healthy_checks=0, needs=needs)
    for _ in range(needs):
        assert gate.closed
        gate = judge(gate, CallCounts(10, 0), rule=RULE, roll=0)
    assert gate == Gate()


def test_a_total_outage_closes_it_though_few_calls_are_made() -> None:
    assert judge(Gate(), CallCounts(5, 5), rule=RULE, roll=0).closed
    assert not judge(Gate(), CallCounts(4, 4), rule=RULE, roll=0).closed


def test_a_share_at_a_threshold_closes_and_opens() -> None:
    closed = judge(Gate(), CallCounts(calls=10, errors=5), rule=RULE, roll=0)
    assert closed == Gate(closed=True, needs=RULE.healthy_checks)
    assert judge(closed, CallCounts(calls=10, errors=2), rule=RULE, roll=0).healthy_checks == 1
    assert judge(closed, CallCounts(calls=100, errors=21), rule=RULE, roll=0).healthy_checks == 0


def test_gates_say_which_calls_fail_and_that_a_tripped_gate_recovers() -> None:
    assert what_now(tripped=(), failing=[("github", CallCounts(9, 0))], held=3) == []
    counting = what_now(tripped=(), failing=[("github", CallCounts(9, 2))], held=3)
    assert counting == ["github: 2 of 9 calls of the last minute failed."]
    now, lost = what_now(tripped=["github"], failing=(), held=1)
    assert now.startswith("Running jobs go on, and 1 queued job is held. There is nothing to do")
    assert "fetch lost webhooks" in lost
    assert "githubstatus.com" in lost
    (other,) = what_now(tripped=["kubernetes"], failing=(), held=0)
    assert "githubstatus.com" not in other
