"""Descriptions of a runner Pod's end, built from observations of the Pod's deletion and containers.

Ostler deletes no Pod that has a live job claim (law L7). If a deletion was requested while the Pod had such a claim,
another client requested the deletion. Examples are a person, a drain, the scheduler, a controller of Kubernetes, and
the kubelet.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rules.claims.pod_events import PodEvent


class How(StrEnum):
    """Cause of the end of a Pod, used as a metric label.

    `deleted` means that the deletion of the Pod was requested, and that Kubernetes gave no reason from `_REASONS`.
    `unknown` means that the end was not observed.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    DELETED = "deleted"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    NODE = "node"
    DEADLINE = "deadline"
    UNKNOWN = "unknown"


_REASONS: dict[str, tuple[How, str]] = {
    "EvictionByEvictionAPI": (How.EVICTED, "evicted through the eviction API, as `kubectl drain` does"),
    "Evicted": (
        How.EVICTED,
        "evicted by the kubelet: its node ran short of a resource, or it used more disk than its limit",
    ),
    "TerminationByKubelet": (How.EVICTED, "ended by the kubelet: its node ran short of a resource, or shuts down"),
    "PreemptionByScheduler": (How.PREEMPTED, "preempted by the scheduler for a Pod of higher priority"),
    "Preempting": (How.PREEMPTED, "preempted by the kubelet for a Pod of higher priority"),
    "DeletionByTaintManager": (How.NODE, "evicted for a taint of its node"),
    "DeletionByPodGC": (How.NODE, "removed by the Pod garbage collector: its node is gone"),
    "NodeLost": (How.NODE, "lost with its node"),
    "NodeShutdown": (How.NODE, "ended by the shutdown of its node"),
    "Terminated": (How.NODE, "ended by the shutdown of its node"),
    "DeadlineExceeded": (How.DEADLINE, "ended by the kubelet: its job took longer than maxJobDuration of its pool"),
    "OOMKilled": (How.OUT_OF_MEMORY, "killed for lack of memory: raise the memory limit of its pool"),
}
"""Reasons that Kubernetes gives, each with the cause and a phrase.

Sources in the Kubernetes documentation: "Pod disruption conditions", "Node-pressure eviction", "Node Shutdowns".
"""

_OTHERS = "by a client other than Ostler"
_AUDIT = f"{_OTHERS}; the audit log of the API server names the client"


@dataclass(frozen=True, slots=True)
class PodEnd:
    """Observations of the end of a Pod. None and False mean "not observed".

    `deletion_at` is the time of the deletion request. `reason` is Kubernetes' reason for the end of the Pod or of its
    container `runner`. `over` is true if the containers `poller` and `runner` of the Pod were seen terminated. `ours`
    is true if Ostler deleted the Pod under a retire claim. `gone` is true if the Pod does not exist any more. `event`
    is the Event of another component about the Pod's end.
    """

    deletion_at: datetime | None = None
    reason: str | None = None
    poller_exit_code: int | None = None
    runner_exit_code: int | None = None
    over: bool = False
    gone: bool = False
    ours: bool = False
    event: PodEvent | None = None

    @property
    def how(self) -> How:
        """Return the cause of the end."""
        named = _named(self.reason)
        if named is not None:
            return named[0]
        if self.deletion_at is not None:
            return How.DELETED
        if self.runner_exit_code is not None or self.over:
            return How.COMPLETED if (self.runner_exit_code or 0) == 0 else How.FAILED
        return How.UNKNOWN


def describe(end: PodEnd, *, pod: str = "the Pod") -> str | None:
    """Return a clause about the end of a Pod. Return None if no observation shows an end."""
    named = _named(end.reason)
    told = end.event is not None and end.event.names_somebody
    if end.deletion_at is not None:
        others = _OTHERS if told else _AUDIT
        by = "by Ostler, which retired it" if end.ours else others if named is None else named[1]
        said = f"{pod} was deleted at {end.deletion_at:%Y-%m-%d %H:%M:%S} UTC, {by}"
    elif named is not None:
        # The kubelet also reports OOMKilled if the kernel killed another process than the first of the container. If
        # the runner exited with 0, the text therefore names a process in the Pod.
        whose = f"a process in {pod}" if named[0] is How.OUT_OF_MEMORY and end.runner_exit_code == 0 else pod
        said = f"{whose} was {named[1]}"
    elif end.runner_exit_code is not None or end.over:
        said = f"{pod} has ended"
    elif end.gone:
        how = ", retired by Ostler" if end.ours else "" if end.event else ", and no report of its end was received"
        said = f"{pod} is gone{how}"
    else:
        return None
    codes = [
        f"container `{name}` exited {code}"
        for name, code in (("runner", end.runner_exit_code), ("poller", end.poller_exit_code))
        if code
    ]
    reason = [] if end.reason is None or end.reason == "Completed" else [f"reason {end.reason}"]
    return "; ".join([said, *codes, *reason, *([] if end.event is None else [_quoted(end.event)])])


def _quoted(event: PodEvent) -> str:
    note = f": {event.note}" if event.note else ""
    return f"event {event.kind} by {event.component}{note}"


def _named(reason: str | None) -> tuple[How, str] | None:
    """Return the entry of a reason in `_REASONS`, or None if there is no entry.

    The number of a signal might follow the reason in brackets. The number is ignored.
    """
    return None if reason is None else _REASONS.get(reason.partition(" ")[0])
