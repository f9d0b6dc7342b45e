"""Stalls of a job, its claim or its Pod: causes, finders, and the step that ends each stall.

A stall is a state in which no process works on a claim or a job until a finder detects the stall. A finder is a
component that detects stalls. A path is a pair of a cause and a finder. Two finders might need different times to find
a stall with the same cause. `docs/metrics.md` and the limits of `make chaos` therefore list each path separately.
"""

from __future__ import annotations

from enum import StrEnum

from rules.claims.machines import ClaimState, Machine, allowed


class Cause(StrEnum):
    """Cause of a stall.

    - `message_lost`: the message for a claim's next step was lost, or the process that had begun the step died.
    - `pod_gone`: the Pod of a live claim is gone.
    - `pod_spent`: the Pod of a live claim has ended, and the webhook `completed` did not arrive.
    - `runner_unused`: a JIT was delivered, and the runner with this JIT executes nothing.
    - `webhook_lost`: a webhook of GitHub did not arrive.
    """

    MESSAGE_LOST = "message_lost"
    POD_GONE = "pod_gone"
    POD_SPENT = "pod_spent"
    RUNNER_UNUSED = "runner_unused"
    WEBHOOK_LOST = "webhook_lost"


class FoundBy(StrEnum):
    """Component that found a stall.

    `lists` is the reconciler or the sweep `missing_pods`. `watch` is an event of the watch. Every other value is a
    sweep.
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
"""All pairs of a cause and a finder that can occur."""


class After(StrEnum):
    """State of a stalled claim after a transition.

    - `stalled`: the claim is still stalled.
    - `served`: the stall is over.
    - `never_was`: the transition shows that the claim was never stalled.
    """

    STALLED = "stalled"
    SERVED = "served"
    NEVER_WAS = "never_was"


def after(cause: Cause, transition: str) -> After:
    """Return whether a claim is still stalled after the named transition. `cause` is the cause of the stall.

    The start of a release does not end a stall, because the job is queued again only at the end of the release.
    """
    moved = allowed(transition)
    if moved.machine is not Machine.CLAIM or transition == "begin_release":
        return After.STALLED
    if moved.target == ClaimState.ENDED or cause is Cause.MESSAGE_LOST:
        return After.SERVED
    if cause is Cause.RUNNER_UNUSED:  # the claim's runner executes, so the claim was never stalled
        return After.NEVER_WAS
    return After.STALLED
