"""The state of a Pod with several signs."""

from __future__ import annotations

import pytest

from rules.pools.pod_states import PodState, StateFacts, state_of


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (StateFacts(), PodState.STARTING),
        (StateFacts(ever_polled=True), PodState.UNRESPONSIVE),
        (StateFacts(ever_polled=True, heard=True), PodState.WARM),
        (StateFacts(claimed=True), PodState.RESERVED),
        (StateFacts(claimed=True, ever_polled=True, heard=True), PodState.RESERVED),
        (StateFacts(claimed=True, delivered=True), PodState.BUSY),
        (StateFacts(claimed=True, ever_delivered=True), PodState.BUSY),
        (StateFacts(may_hold_jit=True, ever_polled=True, heard=True), PodState.BUSY),
        (StateFacts(delivered=True), PodState.BUSY),
        (StateFacts(ever_delivered=True, may_hold_jit=True), PodState.ENDING),
        (StateFacts(retiring=True, claimed=True, ever_delivered=True), PodState.RETIRING),
        (StateFacts(terminal=True, retiring=True, ever_delivered=True, may_hold_jit=True), PodState.SPENT),
    ],
)
def test_a_pod_is_in_the_state_of_its_strongest_sign(pod: StateFacts, state: PodState) -> None:
    assert state_of(pod) is state
