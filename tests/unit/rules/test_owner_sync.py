"""Steps at the end of a runner: each row of the table, and the end from any state and after any crash."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.pools.owner_sync import OwnerSeen, Step, next_step

RUNNING = OwnerSeen(owned=True, pod=True, held=True)
STEPS = [
    # An owner would replace the Pod, whatever the state of the Pod is.
    (RUNNING, Step.END_OWNER),
    (replace(RUNNING, terminating=True), Step.END_OWNER),
    (replace(RUNNING, terminating=True, ended=True), Step.END_OWNER),
    (replace(RUNNING, forced=True, terminating=True), Step.END_OWNER),
    (OwnerSeen(owned=True, pod=False), Step.END_OWNER),
    # The owner is gone.
    (replace(RUNNING, owned=False), Step.DELETE_POD),
    (replace(RUNNING, owned=False, ended=True), Step.DELETE_POD),
    (replace(RUNNING, owned=False, terminating=True), Step.WAIT),
    (replace(RUNNING, owned=False, terminating=True, ended=True), Step.RELEASE_POD),
    (replace(RUNNING, owned=False, terminating=True, forced=True), Step.RELEASE_POD),
    (replace(RUNNING, owned=False, owner_ending=True, terminating=True, ended=True), Step.WAIT),
    (replace(RUNNING, owned=False, owner_ending=True, terminating=True, forced=True), Step.WAIT),
    (replace(RUNNING, owned=False, owner_ending=True), Step.DELETE_POD),
    (OwnerSeen(owned=False, pod=False), Step.DONE),
    # The workload Pod: no owner and no finalizer.
    (OwnerSeen(owned=False, pod=True), Step.DELETE_POD),
    (OwnerSeen(owned=False, pod=True, terminating=True), Step.WAIT),
    (OwnerSeen(owned=False, pod=True, terminating=True, ended=True), Step.WAIT),
    (OwnerSeen(owned=False, pod=True, terminating=True, forced=True), Step.WAIT),
]


@pytest.mark.parametrize(("seen", "step"), STEPS)
def test_the_next_step_follows_from_the_observed_state(seen: OwnerSeen, step: Step) -> None:
    assert next_step(seen) is step


SEEN = st.builds(
    OwnerSeen,
    owned=st.booleans(),
    pod=st.booleans(),
    owner_ending=st.booleans(),
    terminating=st.booleans(),
    held=st.booleans(),
    ended=st.booleans(),
    forced=st.booleans(),
)


def carried_out(seen: OwnerSeen, step: Step) -> OwnerSeen:
    """Return the state after a step. Kubernetes removes a deleted Pod that has ended and has no finalizer."""
    match step:
        case Step.END_OWNER:
            return replace(seen, owned=False, owner_ending=seen.pod)
        case Step.DELETE_POD:
            after = replace(seen, terminating=True)
        case Step.RELEASE_POD:
            after = replace(seen, held=False)
        case _:  # the kubelet ends the containers, and the garbage collector takes the owner off the Pod
            after = replace(seen, ended=True, owner_ending=False)
    return replace(after, pod=False) if after.terminating and after.ended and not after.held else after


@given(SEEN, st.lists(st.booleans(), max_size=8))
def test_every_runner_ends_whatever_steps_are_lost(seen: OwnerSeen, lost: list[bool]) -> None:
    """A lost step is one whose process was killed before the step, so the state is observed again."""
    held = seen.held  # without the finalizer, Kubernetes removes the Pod at any time
    successors = 0
    for is_lost in [*lost, *[False] * 9]:
        step = next_step(seen)
        if step is Step.DONE:
            break
        if is_lost:
            continue
        before = seen
        seen = carried_out(seen, step)
        successors += before.pod and not seen.pod and (seen.owned or seen.owner_ending)
    assert next_step(seen) is Step.DONE
    assert successors == 0 or not held


@given(SEEN)
def test_the_finalizer_stays_while_a_container_might_run(seen: OwnerSeen) -> None:
    if next_step(seen) is Step.RELEASE_POD:
        assert seen.terminating
        assert seen.ended or seen.forced
        assert not seen.owned
        assert not seen.owner_ending
