"""Stalls of a job, its claim or its Pod: causes, finders, and the step that ends each stall.

A stall is a state that only a repair can end. A path is a cause with its finder: one cause might be found quickly by
one finder and slowly by another, so `docs/metrics.md` and the time limits list them separately.
"""

from __future__ import annotations

from enum import StrEnum

from rules.claims.machines import ClaimState, Machine, allowed


class Cause(StrEnum):
    """Cause of a stall.

    - `message_lost`: the message of a claim's next step was lost, or the process that had begun the step.
    - `pod_gone`: the Pod of a live claim is gone.
    - `pod_spent`: the Pod of a live claim has ended, and no `completed` came.
    - `runner_unused`: a JIT was delivered, and nothing executes.
    - `webhook_lost`: a webhook of GitHub did not arrive.
    """

    MESSAGE_LOST = "message_lost"
    POD_GONE = "pod_gone"
    POD_SPENT = "pod_spent"
    RUNNER_UNUSED = "runner_unused"
    WEBHOOK_LOST = "webhook_lost"


class FoundBy(StrEnum):
    """Component that found a stall.

    `lists`: the reconciler or `missing_pods`; `watch`: an event; the others are sweeps.
    """

    RESUME = "resume"
    WATCH = "watch"
    LISTS = "lists"
    UNUSED_RUNNERS = "unused_runners"
    REDELIVERY = "redelivery"
    CATCH_UP = "catch_up"


PATHS = (
    (Cause.MESSAGE_LOST, FoundBy.RESUME),
    (Cause.POD_GONE, FoundBy.WATCH),
    (Cause.POD_GONE, FoundBy.LISTS),
    (Cause.POD_SPENT, FoundBy.LISTS),
    (Cause.RUNNER_UNUSED, FoundBy.UNUSED_RUNNERS),
    (Cause.WEBHOOK_LOST, FoundBy.REDELIVERY),
    (Cause.WEBHOOK_LOST, FoundBy.CATCH_UP),
)
"""All existing paths."""


class After(StrEnum):
    """State of a stalled claim after a transition; `never_was`: it turned out not to have been stalled."""

    STALLED = "stalled"
    SERVED = "served"
    NEVER_WAS = "never_was"


def after(cause: Cause, transition: str) -> After:
    """Return the state of a claim stalled by `cause` after the transition of this name.

    The start of a release does not end a stall: the job is queued again only at its end.
    """
    moved = allowed(transition)
    if moved.machine is not Machine.CLAIM or transition == "begin_release":
        return After.STALLED
    if moved.target == ClaimState.ENDED or cause is Cause.MESSAGE_LOST:
        return After.SERVED
    if cause is Cause.RUNNER_UNUSED:  # it executes, contrary to the assumption
        return After.NEVER_WAS
    return After.STALLED
