"""States of a runner Pod, as docs/glossary.md defines them. Every Pod is in exactly one of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class PodState(StrEnum):
    """The states of a runner Pod. A separate flag shows whether the Pod's template is stale.

    - `starting`: the Pod has never polled, or is not created yet.
    - `warm`: the Pod polls, has no live claim, and never got a JIT. A Pod with a persistent runner is warm if GitHub
      showed its runner as online and as not busy.
    - `reserved`: the Pod has a live job claim that is not delivered. A Pod with a persistent runner is reserved until
      GitHub shows its runner as online, and while GitHub does not know the runner any more.
    - `busy`: the Pod might hold a JIT. A Pod with a persistent runner is busy if its runner executes a job, or if
      Ostler is about to remove its runner.
    - `ending`: the Pod's delivered claim has ended, but the Pod is not over.
    - `retiring`: the Pod has a live retire claim.
    - `unresponsive`: the Pod has polled before and stopped polling.
    - `spent`: the Pod is over, even if containers other than `poller` and `runner` still run.
    """

    STARTING = "starting"
    WARM = "warm"
    RESERVED = "reserved"
    BUSY = "busy"
    ENDING = "ending"
    RETIRING = "retiring"
    UNRESPONSIVE = "unresponsive"
    SPENT = "spent"


COUNTED_WITHIN = timedelta(minutes=1)
"""Age above which the numbers in the status of a pool are old. The reconciler confirms them every 10 seconds."""

AVAILABLE = frozenset({PodState.WARM, PodState.RESERVED, PodState.BUSY, PodState.ENDING})
"""States of Pods that serve a job or can serve a job at once. In a rollout, other Pods count as unavailable."""


class Registration(StrEnum):
    """State of a delivered registration, and thus of a persistent runner."""

    BEGUN = "begun"
    """GitHub has not shown the runner as online yet, or does not know it any more."""
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFacts:
    """Facts about one Pod from rows, evidence and the cluster.

    - `claimed`: the Pod has a live job claim.
    - `retiring`: the Pod has a live retire claim.
    - `delivered`: the live claim was delivered.
    - `ever_delivered`: a claim of the Pod was delivered at some time.
    - `may_hold_jit`: verdict of `rules.claims.busy`.
    - `ever_polled`: the Pod has polled at some time.
    - `heard`: the Pod has an offer, or polled recently.
    - `registration`: the Pod has a live registration claim that was delivered.
    - `terminal`: the Pod is over.
    """

    terminal: bool = False
    retiring: bool = False
    claimed: bool = False
    delivered: bool = False
    ever_delivered: bool = False
    may_hold_jit: bool = False
    ever_polled: bool = False
    heard: bool = False
    registration: Registration | None = None


def state_of(pod: StateFacts) -> PodState:
    """Return the state of a Pod.

    Evidence that the Pod got a JIT takes precedence over all evidence that the Pod is idle (law L3).
    """
    answers = (
        (pod.terminal, PodState.SPENT),
        (pod.retiring, PodState.RETIRING),
        (pod.registration is Registration.BEGUN, PodState.RESERVED),
        (pod.registration is Registration.IDLE, PodState.WARM),
        (pod.ever_delivered and not pod.claimed, PodState.ENDING),
        (pod.delivered or pod.ever_delivered or pod.may_hold_jit, PodState.BUSY),
        (pod.claimed, PodState.RESERVED),
        (not pod.ever_polled, PodState.STARTING),
        (pod.heard, PodState.WARM),
    )
    return next((state for holds, state in answers if holds), PodState.UNRESPONSIVE)
