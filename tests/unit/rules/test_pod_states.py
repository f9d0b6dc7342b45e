"""The one state of a Pod, where several signs speak."""

from __future__ import annotations

import pytest

from rules.pools.pod_states import PodSight, PodState, state_of


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (PodSight(), PodState.STARTING),
        (PodSight(ever_polled=True), PodState.UNRESPONSIVE),
        (PodSight(ever_polled=True, heard=True), PodState.WARM),
        (PodSight(claimed=True), PodState.RESERVED),
        (PodSight(claimed=True, ever_polled=True, heard=True), PodState.RESERVED),
        (PodSight(claimed=True, delivered=True), PodState.BUSY),
        (PodSight(claimed=True, ever_delivered=True), PodState.BUSY),
        (PodSight(may_hold_jit=True, ever_polled=True, heard=True), PodState.BUSY),
        (PodSight(delivered=True), PodState.BUSY),
        (PodSight(ever_delivered=True, may_hold_jit=True), PodState.ENDING),
        (PodSight(retiring=True, claimed=True, ever_delivered=True), PodState.RETIRING),
        (PodSight(terminal=True, retiring=True, ever_delivered=True, may_hold_jit=True), PodState.SPENT),
    ],
)
def test_a_pod_is_in_the_state_of_its_strongest_sign(pod: PodSight, state: PodState) -> None:
    assert state_of(pod) is state
