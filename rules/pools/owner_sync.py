"""End of a runner, step by step: its owner, its Pod, and the finalizer of its Pod.

`rules.pools.pool_plan` decides which runners a pool creates and retires, for every workload. This module decides in
which order the objects of one runner are removed. Each step is decided from the observed state alone, so the sequence
continues after a crash at any point, and every step can be repeated.

The order prevents a successor: as long as the StatefulSet exists, its controller replaces the Pod within a fraction of
a second after the Pod is gone. The StatefulSet is therefore removed first, and its Pod stays. The finalizer is removed
last, after the containers have ended, so the exit of the Pod can be recorded before the Pod is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Step(StrEnum):
    """Next step on the way to the end of a runner."""

    END_OWNER = "remove the owner and leave the Pod"
    DELETE_POD = "delete the Pod"
    RELEASE_POD = "remove the finalizer of the Pod"
    WAIT = "wait until the containers of the Pod have ended and its owner is gone"
    DONE = "nothing is left"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerSeen:
    """A runner whose end was decided, as it was observed.

    - `owned`: an owner exists that would replace the Pod. It is False for the workload `Pod`.
    - `owner_ending`: the owner is being removed, and the Pod still refers to it.
    - `pod`: the Pod exists.
    - `terminating`: the deletion of the Pod was requested, by Ostler or by another client.
    - `held`: the Pod has the finalizer `ostler.dev/exit`.
    - `ended`: no container of the Pod runs or can start: the Pod is terminal, or it never got a node.
    - `forced`: the Pod must not wait for its kubelet, because its node is gone.
    """

    owned: bool
    pod: bool
    owner_ending: bool = False
    terminating: bool = False
    held: bool = False
    ended: bool = False
    forced: bool = False


def next_step(seen: OwnerSeen) -> Step:
    """Return the next step for a runner that must end."""
    if seen.owned:
        return Step.END_OWNER
    if not seen.pod:
        return Step.DONE
    if not seen.terminating:
        return Step.DELETE_POD
    if seen.held and not seen.owner_ending and (seen.ended or seen.forced):
        return Step.RELEASE_POD
    return Step.WAIT
