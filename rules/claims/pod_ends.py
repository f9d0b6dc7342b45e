"""Descriptions of a runner Pod's end, built from observations of the Pod's deletion and containers.

Most Pods are deleted after their end: by Ostler's reconciler, or by the controller of their StatefulSet. Another client
is named only with evidence: the watch saw the deletion of a Pod whose containers had not ended, and Ostler did not
request this deletion. Examples of such a client are a person, a drain, the scheduler and a controller of Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rules.claims.pod_events import PodEvent


class How(StrEnum):
    """Cause of the end of a Pod, used as a metric label.

    `deleted` means that the deletion of the Pod was requested before its containers had ended, as far as was observed,
    and that Kubernetes gave no reason from `_REASONS`.
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
_COLLECTOR = "by the garbage collector of Kubernetes or another client, while its pool was being deleted"
_AUDIT = "; the audit log of the API server names the client"


@dataclass(frozen=True, slots=True)
class PodEnd:
    """Observations of the end of a Pod. None and False mean "not observed".

    `deletion_at` is the time of the deletion request, in whole seconds of the API server's clock. `deleted_first` is
    true if the deletion was requested before the containers `poller` and `runner` had ended, false if they had ended
    before, and None if the order was not observed. `reason` is Kubernetes' reason for the end of the Pod or of its
    container `runner`. `over` is true if both containers were seen terminated. `ours` is true if Ostler requested the
    deletion before it saw a request of another client. `gone` is true if the Pod does not exist any more. `event` is
    the Event of another component about the Pod's end. `of_deleted_pool` is true if the deletion of the pool was
    requested before the deletion of the Pod.
    """

    deletion_at: datetime | None = None
    deleted_first: bool | None = None
    reason: str | None = None
    poller_exit_code: int | None = None
    runner_exit_code: int | None = None
    over: bool = False
    gone: bool = False
    ours: bool = False
    event: PodEvent | None = None
    of_deleted_pool: bool = False

    @property
    def how(self) -> How:
        """Return the cause of the end."""
        named = _named(self.reason)
        if named is not None:
            return named[0]
        if self.deletion_at is not None and self.deleted_first is not False:
            return How.DELETED
        if self.runner_exit_code is not None or self.over:
            return How.COMPLETED if (self.runner_exit_code or 0) == 0 else How.FAILED
        return How.UNKNOWN

    def cut_job(self, *, over_at: datetime | None) -> bool:
        """Return True if another client deleted the Pod before its job was over.

        `over_at` is the time at which GitHub ended the job, in whole seconds of GitHub's clock, or None if the job is
        not over. If nobody observed that the Pod had not ended, a deletion in the same second proves nothing.
        """
        if self.deletion_at is None or self.ours or self.deleted_first is False:
            return False
        if over_at is None:
            return True
        return self.deletion_at <= over_at if self.deleted_first else self.deletion_at < over_at


def describe(end: PodEnd, *, pod: str = "the Pod") -> str | None:
    """Return a clause about the end of a Pod. Return None if no observation shows an end."""
    if (said := _end_in_words(end, pod)) is None:
        return None
    codes = [
        f"container `{name}` exited {code}"
        for name, code in (("runner", end.runner_exit_code), ("poller", end.poller_exit_code))
        if code
    ]
    reason = [] if end.reason is None or end.reason == "Completed" else [f"reason {end.reason}"]
    return "; ".join([said, *codes, *reason, *([] if end.event is None else [_quoted(end.event)])])


def _end_in_words(end: PodEnd, pod: str) -> str | None:
    """Return how a Pod ended, without exit codes and events, or None if no observation shows an end."""
    named = _named(end.reason)
    deletion = "" if end.deletion_at is None else f"at {end.deletion_at:%Y-%m-%d %H:%M:%S} UTC"
    after = ""
    if deletion and end.deleted_first is False:
        after = f", and Ostler deleted it {deletion}" if end.ours else f", and was deleted {deletion}"
    if deletion and not after:
        by = _by(end, None if named is None else named[1])
        return f"{pod} was deleted {deletion}{by and f', {by}'}"
    if named is not None:
        # The kubelet also reports OOMKilled if the kernel killed another process than the first of the container. If
        # the runner exited with 0, the text therefore names a process in the Pod.
        whose = f"a process in {pod}" if named[0] is How.OUT_OF_MEMORY and end.runner_exit_code == 0 else pod
        return f"{whose} was {named[1]}{after}"
    if after or end.runner_exit_code is not None or end.over:
        return f"{pod} has ended{after}"
    if end.gone:
        how = ", deleted by Ostler" if end.ours else "" if end.event else ", and no report of its end was received"
        return f"{pod} is gone{how}"
    return None


def _by(end: PodEnd, reason: str | None) -> str:
    """Return who deleted a Pod that had not ended, as far as this is known, or an empty string."""
    if end.ours:
        return "by Ostler, which retired it"
    if reason is not None:
        return reason
    if not end.deleted_first:
        return ""
    told = end.event is not None and end.event.names_somebody
    return (_COLLECTOR if end.of_deleted_pool else _OTHERS) + ("" if told else _AUDIT)


def _quoted(event: PodEvent) -> str:
    note = f": {event.note}" if event.note else ""
    return f"event {event.kind} by {event.component}{note}"


def _named(reason: str | None) -> tuple[How, str] | None:
    """Return the entry of a reason in `_REASONS`, or None if there is no entry.

    The number of a signal might follow the reason in brackets. The number is ignored.
    """
    return None if reason is None else _REASONS.get(reason.partition(" ")[0])
