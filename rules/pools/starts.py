"""Failed starts: the troubles of Pods that never poll, and the backoff before new Pods are created.

If several Pods that were created together fail, the failures count as one failure. A broken image therefore causes one
failure per round of creations, for a pool of any size. When a Pod with the present template polls for the first time,
the count is reset to 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

FIRST_STEP = 5.0
LONGEST_STEP = 300.0
"""Maximum backoff in seconds. The backoff is 0 after the first failure, then 5, 10, 20, 40, 80 and so on."""

IMAGE_REFUSED = frozenset({"ErrImageNeverPull", "InvalidImageName", "ImageInspectError"})
"""The kubelet's reasons for an image that can never be used."""

IMAGE_MISSED = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
"""The kubelet's reasons for an image that could not be pulled. The kubelet will try to pull the image again."""


NO_SANDBOX = "NoSandbox"
"""Reason for a Pod on a node that has not created the sandbox, which holds the namespaces of all containers."""

UNUSABLE_IMAGE = "UnusableImage"
"""Reason of the condition of a pool whose image the kubelet can start, but whose Pods cannot use it."""

UNUSABLE: Mapping[int, str] = MappingProxyType(
    {
        21: "it has no HTTP client in PATH that verifies certificates: install curl or GNU wget in the image",
        22: "it has no file run.sh in the home of the runner, which is /home/runner or OSTLER_RUNNER_HOME: use an "
        "image that contains actions/runner, or set OSTLER_RUNNER_HOME in the image or the overlay of the pool",
        23: "the user of the Pod cannot execute run.sh of the runner or write to the folder of run.sh: the Pod has the "
        "user and the group 1001, or those that the cluster assigns if assignedUser is true; let this user or group "
        "write to the folder in the image",
        126: "its /bin/sh cannot be executed: use an image with a POSIX shell for the architecture of the node",
        127: "it lacks a program that the scripts need: use an image with a POSIX shell and coreutils",
        128: "it has no /bin/sh: use an image with a POSIX shell",
    }
)
"""Cause and cure by exit code of the poller: the codes of poller/poll.sh, of a shell, and of a container runtime."""


class Trouble(StrEnum):
    """Trouble that keeps the Pods of a pool from polling.

    - `image`: the kubelet cannot pull the image, or the image lacks a part that a runner Pod needs. In the second case
      the detail is `UNUSABLE_IMAGE`, a colon, and cause and cure.
    - `container`: the kubelet cannot create or run a container, for example because a Secret is missing.
    - `unschedulable`: no node accepts the Pod.
    - `poller`: the poller ended before web accepted its first poll.
    - `unresponsive`: the Pod runs, but no poll arrives.
    - `refused`: the API server refuses the Pod (Pod Security, admission, an invalid field).
    - `quota`: the namespace's quota is used up. The pool waits, and the wait does not count as a failure.
    """

    IMAGE = "image"
    CONTAINER = "container"
    UNSCHEDULABLE = "unschedulable"
    POLLER = "poller"
    UNRESPONSIVE = "unresponsive"
    REFUSED = "refused"
    QUOTA = "quota"


@dataclass(frozen=True, kw_only=True, slots=True)
class Starts:
    """State of a pool's starts: consecutive failures, and the time before which no Pod is created.

    `trouble` and `detail` stay until a Pod polls. If `trouble` is `refused` or `quota`, both fields stay until the API
    server accepts a Pod. If `trouble` is `unschedulable` and `failures` is 0, a rollout found no room for a surge Pod
    (`without_room`).
    """

    failures: int = 0
    failed_at: datetime | None = None
    create_after: datetime | None = None
    trouble: Trouble | None = None
    detail: str = ""

    @property
    def without_surge(self) -> bool:
        """Return whether a rollout continues without surge Pods because there was no room for a surge Pod."""
        return self.trouble is Trouble.UNSCHEDULABLE and self.failures == 0

    def waits(self, now: datetime) -> bool:
        """Return whether the creation of Pods has to wait."""
        return self.create_after is not None and now < self.create_after


NOTHING_YET = Starts()
"""State of starts of a pool without a failed start."""


def backoff_seconds(failures: int) -> float:
    """Return for how many seconds no Pod is created after `failures` consecutive failures."""
    if failures <= 1:
        return 0.0
    return min(LONGEST_STEP, FIRST_STEP * 2.0 ** min(failures - 2, 10))


def failed(starts: Starts, *, trouble: Trouble, detail: str, made_at: datetime, now: datetime) -> Starts:
    """Return the state after the failure of a Pod that was created at `made_at`.

    If the Pod was created before the last counted failure, the state does not change.
    """
    if starts.failures and starts.failed_at is not None and made_at < starts.failed_at:
        return starts
    failures = starts.failures + 1
    return Starts(
        failures=failures,
        failed_at=now,
        create_after=now + timedelta(seconds=backoff_seconds(failures)),
        trouble=trouble,
        detail=detail,
    )


def refused(starts: Starts, *, detail: str, now: datetime) -> Starts:
    """Return the state after the API server refused a Pod. Every refusal counts as a failure."""
    return failed(replace(starts, failed_at=None), trouble=Trouble.REFUSED, detail=detail, made_at=now, now=now)


def over_quota(starts: Starts, *, detail: str) -> Starts:
    """Return the state while a quota is used up. The pool waits, and the wait does not count as a failure."""
    if starts.without_surge:
        return Starts(trouble=Trouble.QUOTA, detail=detail)
    if starts.trouble not in {None, Trouble.QUOTA}:
        return starts
    return replace(starts, trouble=Trouble.QUOTA, detail=detail)


def accepted(starts: Starts) -> Starts:
    """Return the state after the API server accepted a Pod. Earlier refusals and quota problems no longer apply."""
    if starts.trouble not in {Trouble.QUOTA, Trouble.REFUSED}:
        return starts
    return Starts(failures=starts.failures, failed_at=starts.failed_at, create_after=starts.create_after)


def trouble_of(
    *,
    waiting: str | None,
    unschedulable: bool,
    poller_exit_code: int | None,
    seconds: float,
    runner_exit_code: int | None = None,
    no_node_because: str = "",
) -> tuple[Trouble, str]:
    """Return the trouble of a Pod whose start failed, with a description.

    `seconds` is the time limit for the Pod's first poll. The poller does not poll if the container `runner` ended
    before it checked the image. `no_node_because` is the scheduler's message about an unschedulable Pod.
    """
    if poller_exit_code is not None:
        return _of_poller(poller_exit_code)
    if runner_exit_code is not None:
        if runner_exit_code in UNUSABLE:
            return Trouble.IMAGE, f"{UNUSABLE_IMAGE}: {UNUSABLE[runner_exit_code]}"
        return Trouble.CONTAINER, f"the container runner exited {runner_exit_code} before the first poll"
    if waiting in IMAGE_REFUSED | IMAGE_MISSED:
        return Trouble.IMAGE, f"{waiting}"
    if unschedulable:
        because = f": {no_node_because}" if no_node_because else ""
        return Trouble.UNSCHEDULABLE, f"no node accepted the Pod within {seconds:.0f} s{because}"
    if waiting == NO_SANDBOX:
        return Trouble.CONTAINER, (
            f"the node created no sandbox for the Pod within {seconds:.0f} s: `kubectl describe pod` has the cause, "
            "for example a volume, the network, or a node without user namespaces (hostUsers: false)"
        )
    if waiting == "PodInitializing":
        return Trouble.CONTAINER, (
            f"an init container did not end, or a sidecar did not become ready, within {seconds:.0f} s: `kubectl "
            "describe pod` names the container"
        )
    if waiting not in {None, "ContainerCreating"}:
        return Trouble.CONTAINER, f"{waiting}"
    return Trouble.UNRESPONSIVE, f"the Pod did not poll within {seconds:.0f} s"


def trouble_of_ended(*, reason: str | None, poller_exit_code: int | None) -> tuple[Trouble, str]:
    """Return the trouble of a Pod that ended before its first poll, with a description.

    `reason` is the Pod's own reason, or None. The kubelet sets a reason if it did not admit the Pod (`OutOfcpu`) or
    evicted the Pod.
    """
    if reason is not None:
        return Trouble.UNSCHEDULABLE, f"the node evicted the Pod or did not admit it: {reason}"
    if poller_exit_code is not None:
        return _of_poller(poller_exit_code)
    return Trouble.CONTAINER, "the Pod ended before its poller ran"


def _of_poller(exit_code: int) -> tuple[Trouble, str]:
    """Return the trouble of a poller that ended before its first poll, with a description."""
    if exit_code in UNUSABLE:
        return Trouble.IMAGE, f"{UNUSABLE_IMAGE}: {UNUSABLE[exit_code]}"
    return Trouble.POLLER, f"the poller exited {exit_code} before its first poll"


def without_room(*, since: datetime) -> Starts:
    """Return the state of a rollout that found no room for a surge Pod. Lack of room does not count as a failure."""
    return Starts(trouble=Trouble.UNSCHEDULABLE, failed_at=since, detail="no node has room for one more Pod")


def recovered(starts: Starts, *, first_polls: Iterable[datetime], rolls: bool = False) -> Starts:
    """Return the state after Pods with the present template polled for the first time. One poll resets the failures.

    `rolls` is true if some warm Pods must still be replaced. If there was no room for a surge Pod, the state records
    the lack of room until all these warm Pods are replaced. Until then, the poll of a new Pod only shows that the new
    Pod got the room of an old Pod.
    """
    failed_at = starts.failed_at
    if starts.without_surge and not rolls:
        return NOTHING_YET
    if failed_at is None or starts.without_surge or not any(at > failed_at for at in first_polls):
        return starts
    return without_room(since=failed_at) if rolls and starts.trouble is Trouble.UNSCHEDULABLE else NOTHING_YET
