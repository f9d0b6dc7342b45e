"""What a job, its claim or its Pod can be stalled by, who finds it, and which step serves it.

Stalled is what stands where only a repair moves it on. A path is a cause with its finder: one cause may be found fast
by one and slowly by another, and the two are told apart in `docs/metrics.md` and in the times to hold.
"""

from __future__ import annotations

from enum import StrEnum

from rules.claims.machines import ClaimState, Machine, allowed


class Cause(StrEnum):
    """Why something stands still.

    - `message_lost`: the message of a claim's next step was lost, or the process that had begun it.
    - `pod_gone`: the Pod of a live claim is gone.
    - `pod_spent`: the Pod of a live claim has ended, and no `completed` came.
    - `runner_unused`: a JIT was delivered, and nothing executes.
    - `webhook_lost`: GitHub told something that did not reach us.
    """

    MESSAGE_LOST = "message_lost"
    POD_GONE = "pod_gone"
    POD_SPENT = "pod_spent"
    RUNNER_UNUSED = "runner_unused"
    WEBHOOK_LOST = "webhook_lost"


class FoundBy(StrEnum):
    """Who noticed. `lists`: the reconciler or `missing_pods`; `watch`: an event of the watch; the others are sweeps."""

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
"""All that there are."""


class After(StrEnum):
    """What a transition leaves of a stalled claim; `never_was`: it turned out not to have been stalled."""

    STALLED = "stalled"
    SERVED = "served"
    NEVER_WAS = "never_was"


def after(cause: Cause, transition: str) -> After:
    """Return what a claim that was stalled by `cause` is after a transition of this name.

    The beginning of a release serves nobody: the job is queued again at its end.
    """
    moved = allowed(transition)
    if moved.machine is not Machine.CLAIM or transition == "begin_release":
        return After.STALLED
    if moved.target == ClaimState.ENDED or cause is Cause.MESSAGE_LOST:
        return After.SERVED
    if cause is Cause.RUNNER_UNUSED:  # it executes after all
        return After.NEVER_WAS
    return After.STALLED
