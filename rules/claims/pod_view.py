"""State of a runner Pod as the cluster shows it. The adapter parses it once, and all other code reads this record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class PodView:
    """State of a runner Pod when it was read.

    The exit fields of a container are None until the container has ended. `runner_ready` is the present readiness of
    the container `runner`. The kubelet sets `runner_ready` to False when the container ends. `attachable_volumes` is
    True if the Pod has a volume that might be attached to another node.

    `deletion_at` is the time of the deletion request. `reason` is the reason in the Pod's status, such as `Evicted` or
    `NodeLost`. If the status has no reason, `reason` is the reason of the Pod's disruption, such as
    `DeletionByTaintManager`.

    `company` is True if a container other than `poller` and `runner` has not terminated. Init containers that run as
    sidecars are ignored, because the kubelet ends them when all other containers have ended. `of_a_pool` is True if an
    owner reference of the Pod names a pool, `of_a_set` if one names a StatefulSet. `started_at` is the time at which
    the kubelet accepted the Pod. The kubelet ends the Pod `active_deadline` seconds after `started_at`. `exit_held` is
    True if the Pod has the finalizer `EXIT_FINALIZER`. `ends_by` is the end of the grace period of a Pod that is being
    deleted. `no_node_because` is the scheduler's message about an unschedulable Pod. `register_exit_code` and
    `register_ended_at` describe the end of the container `register`, which registers a persistent runner.

    `gates` has the names of the scheduling gates. The scheduler ignores the Pod while it has one. `held_by` has the
    finalizers of other programs. Both are separated by commas. `job` is the id of the job in the Pod's
    annotations. They are for people, and might be wrong.
    """

    name: str
    uid: str
    namespace: str
    pool: str | None
    phase: str
    reason: str | None
    node: str | None
    terminating: bool
    owner: int | None
    stamp: str | None
    digest: str | None
    attempt: str | None
    created_at: datetime
    poller_exit_code: int | None
    runner_ready: bool
    runner_exit_code: int | None
    runner_exit_signal: int | None
    runner_exit_reason: str | None
    unschedulable: bool
    waiting_reason: str | None
    poller_running: bool = False
    attachable_volumes: bool = False
    company: bool = False
    of_a_pool: bool = False
    of_a_set: bool = False
    deletion_at: datetime | None = None
    started_at: datetime | None = None
    active_deadline: int | None = None
    exit_held: bool = False
    ends_by: datetime | None = None
    no_node_because: str = ""
    register_exit_code: int | None = None
    register_ended_at: datetime | None = None
    gates: str = ""
    held_by: str = ""
    job: str | None = None

    @property
    def is_ours(self) -> bool:
        """Return whether Ostler made the Pod. Such a Pod has an attempt annotation or an owner reference to a pool.

        The pool label alone does not prove that Ostler made the Pod.
        """
        return self.attempt is not None or self.of_a_pool

    @property
    def exit_reason(self) -> str | None:
        """Return the reason why the Pod ended, in the words of Kubernetes.

        The result is the reason of the Pod. If the Pod has no reason, the result is the reason of the container
        `runner`. If a signal ended the runner, the result also contains the number of the signal.
        """
        reason = self.reason or self.runner_exit_reason
        return reason if self.runner_exit_signal is None else f"{reason or 'signal'} ({self.runner_exit_signal})"

    @property
    def is_terminal(self) -> bool:
        """Return True if, according to the API server, no container of the Pod runs or can start.

        The phase of such a Pod is `Succeeded` or `Failed`, or the Pod is being deleted and never got a node. The API
        server gives no node to a Pod that is being deleted.
        """
        return self.phase in {"Succeeded", "Failed"} or (self.terminating and self.node is None)

    @property
    def deleted_first(self) -> bool | None:
        """Return True if the deletion of the Pod was requested before `poller` and `runner` ended; False if after.

        Return None if this state does not show the order: neither has happened, or both have.
        """
        ended = self.phase in {"Succeeded", "Failed"} or (
            self.poller_exit_code is not None and self.runner_exit_code is not None
        )
        return None if ended is self.terminating else self.terminating

    @property
    def is_over(self) -> bool:
        """Return True if the containers `poller` and `runner` have terminated, even if other containers still run.

        A terminal Pod is also over. A Pod that is over cannot use a JIT any more. If the Pod is also terminal, it may
        be deleted without a claim. Otherwise its deletion needs a retire claim (law L7).
        """
        return self.is_terminal or (self.poller_exit_code is not None and self.runner_exit_code is not None)

    def is_overdue(self, *, now: datetime, after: float) -> bool:
        """Return True if the grace period of the deleted Pod ended more than `after` seconds ago."""
        return self.ends_by is not None and (now - self.ends_by).total_seconds() > after

    @property
    def awaits_release(self) -> bool:
        """Return True if only the finalizer `EXIT_FINALIZER` keeps the deleted Pod."""
        return self.exit_held and self.terminating and self.is_terminal

    @property
    def is_outlived(self) -> bool:
        """Return whether the Pod is over but not terminal, because another container still runs."""
        return self.is_over and not self.is_terminal and self.company
