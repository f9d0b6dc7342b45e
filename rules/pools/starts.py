"""Pods that do not come to poll: what is in their way, when one has failed, and how long no more are made after that.

A failure is counted once for all Pods that were made before it was counted: a broken image is one failure a round,
however large the pool. A first poll under the pool's present template ends the story.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

FIRST_STEP = 5.0
LONGEST_STEP = 300.0
"""Seconds: 0 after the first failure, then 5, 10, 20, 40, 80 … and this at most."""

IMAGE_REFUSED = frozenset({"ErrImageNeverPull", "InvalidImageName", "ImageInspectError"})
"""What a kubelet says of an image that no waiting helps."""

IMAGE_MISSED = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
"""What it says of one that it could not get, and will try again."""


class Trouble(StrEnum):
    """Why no Pod of a pool comes to poll.

    - `image`: the kubelet does not get the image.
    - `container`: it cannot make or run a container, as for a Secret that is missing.
    - `unschedulable`: no node takes the Pod.
    - `poller`: the poller ended before its first poll was taken.
    - `unresponsive`: the Pod runs, and nobody hears it.
    - `refused`: the API server does not take the Pod (Pod Security, admission, a field that is wrong).
    - `quota`: the namespace's quota is used up; no failure, it waits.
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
    """How the starts of a pool go: failures in a row, and until when no Pod is created.

    `trouble` and `detail` stay until a Pod polls, or for those of the API server until it takes one. `unschedulable`
    without a failure is what a roll found out: there is no room for a Pod above the replicas (`without_room`).
    """

    failures: int = 0
    failed_at: datetime | None = None
    create_after: datetime | None = None
    trouble: Trouble | None = None
    detail: str = ""

    @property
    def without_surge(self) -> bool:
        """Whether a roll goes on without Pods above the replicas, as there was no room for one."""
        return self.trouble is Trouble.UNSCHEDULABLE and self.failures == 0

    def waits(self, now: datetime) -> bool:
        """Return whether no Pod is to be created yet."""
        return self.create_after is not None and now < self.create_after


NOTHING_YET = Starts()
"""How starts go as long as none has failed."""


def backoff_seconds(failures: int) -> float:
    """Return for how long no Pod is created after so many failures in a row."""
    if failures <= 1:
        return 0.0
    return min(LONGEST_STEP, FIRST_STEP * 2.0 ** min(failures - 2, 10))


def failed(starts: Starts, *, trouble: Trouble, detail: str, made_at: datetime, now: datetime) -> Starts:
    """Return how starts stand after one that was made then has failed; one of a round that is counted adds nothing."""
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
    """Return how starts stand after the API server refused to take a Pod; every refusal counts."""
    return failed(replace(starts, failed_at=None), trouble=Trouble.REFUSED, detail=detail, made_at=now, now=now)


def over_quota(starts: Starts, *, detail: str) -> Starts:
    """Return how starts stand while a quota is used up: it waits, and is no failure."""
    if starts.without_surge:
        return Starts(trouble=Trouble.QUOTA, detail=detail)
    if starts.trouble not in {None, Trouble.QUOTA}:
        return starts
    return replace(starts, trouble=Trouble.QUOTA, detail=detail)


def taken(starts: Starts) -> Starts:
    """Return how starts stand after the API server took a Pod: what it said before is past."""
    if starts.trouble not in {Trouble.QUOTA, Trouble.REFUSED}:
        return starts
    return Starts(failures=starts.failures, failed_at=starts.failed_at, create_after=starts.create_after)


def trouble_of(
    *, waiting: str | None, unschedulable: bool, poller_exit_code: int | None, seconds: float
) -> tuple[Trouble, str]:
    """Return what is in the way of a Pod that has not polled for so many seconds, and in words."""
    if poller_exit_code is not None:
        return Trouble.POLLER, f"the poller exited {poller_exit_code} before its first poll"
    if waiting in IMAGE_REFUSED | IMAGE_MISSED:
        return Trouble.IMAGE, f"{waiting}"
    if unschedulable:
        return Trouble.UNSCHEDULABLE, f"no node accepted the Pod within {seconds:.0f} s"
    if waiting not in {None, "ContainerCreating", "PodInitializing"}:
        return Trouble.CONTAINER, f"{waiting}"
    return Trouble.UNRESPONSIVE, f"the Pod did not poll within {seconds:.0f} s"


def trouble_of_ended(*, reason: str | None, poller_exit_code: int | None) -> tuple[Trouble, str]:
    """Return what was in the way of a Pod that ended before its first poll, and in words.

    `reason` is the Pod's own: the kubelet names it where it did not admit the Pod (`OutOfcpu`) or evicted it.
    """
    if reason is not None:
        return Trouble.UNSCHEDULABLE, f"the node did not admit or evicted the Pod: {reason}"
    if poller_exit_code is not None:
        return Trouble.POLLER, f"the poller exited {poller_exit_code} before its first poll"
    return Trouble.CONTAINER, "the Pod ended before its poller ran"


def without_room(*, since: datetime) -> Starts:
    """Return how starts stand in a roll that found no room for a Pod above the replicas; it is no failure."""
    return Starts(trouble=Trouble.UNSCHEDULABLE, failed_at=since, detail="no node has room for one more Pod")


def recovered(starts: Starts, *, first_polls: Iterable[datetime], rolls: bool = False) -> Starts:
    """Return how starts stand when these are the first polls of Pods of the present template: one ends the story.

    `rolls`: there are warm Pods left to replace. That there was no room for one more is not forgotten until they are
    gone: a successor that polls has the room of an old Pod.
    """
    failed_at = starts.failed_at
    if starts.without_surge and not rolls:
        return NOTHING_YET
    if failed_at is None or starts.without_surge or not any(at > failed_at for at in first_polls):
        return starts
    return without_room(since=failed_at) if rolls and starts.trouble is Trouble.UNSCHEDULABLE else NOTHING_YET
