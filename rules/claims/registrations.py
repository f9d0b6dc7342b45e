"""Rules of persistent runners: the brake after failed registrations, and the judgement on a registered runner."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

FIRST_WAIT = timedelta(seconds=10)
LONGEST_WAIT = timedelta(minutes=10)
"""Time between two registrations of a pool whose registrations fail. It doubles from `FIRST_WAIT` to this time."""

REGISTERS_WITHIN = 600.0
"""Default number of seconds after the delivery of a registration token within which the runner must be online."""

REGISTERS_AGAIN = 240.0
"""Seconds after the delivery of a registration token during which it may be delivered again.

The container `register` has 300 seconds to register the runner, and kills `config.sh` at the end of this time. These
times alone do not prove that no runner can appear, because a container might be paused. The retirement of the Pod
therefore waits until the Pod's status shows the end of this container, and then asks GitHub for the runner again
(`tasks.claims.retire`).
"""

SHOWN_WITHIN = timedelta(seconds=60)
"""Time after a registration within which GitHub might still answer that it does not know the runner."""

OFFLINE_FOR = 600.0
"""Default number of seconds after which an offline runner is removed and its Pod is replaced."""


def might_be_shown_later(exit_code: int | None, *, ended_at: datetime | None, now: datetime) -> bool:
    """Return True if a runner that GitHub does not know might still be shown by GitHub and get a job.

    `exit_code` and `ended_at` describe the end of the container `register` in the status of the Pod. While the
    container runs, both are None. With exit code 0 the runner was registered, so GitHub's answer is proof only
    `SHOWN_WITHIN` later. With any other exit code, no container of the Pod can start the runner.
    """
    if exit_code == 0:
        return ended_at is None or now - ended_at < SHOWN_WITHIN
    return exit_code is None


def slots(*, failures: int, failed_at: datetime | None, open_claims: int, now: datetime) -> int:
    """Return how many registrations of a pool may begin now.

    `failures` is the number of registrations in a row whose runner never came online, and `failed_at` the end of the
    last one. `open_claims` is the number of registrations whose runner is not online yet. After a failure, one
    registration at a time tests whether a runner can be registered again.
    """
    if not failures:
        return MANY
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures - 1, 10))
    if open_claims or (failed_at is not None and now - failed_at < wait):
        return 0
    return 1


MANY = 1000


def why_not_allowed(account_id: int, allowed: Collection[int]) -> str | None:
    """Return why no runner of a pool may serve an account, or None. All accounts are `allowed` if there are none."""
    if not allowed or account_id in allowed:
        return None
    return f"allowedAccounts of the pool does not contain {account_id}, the id of the account of its registration"


def is_outage(*, offline: int, known: int) -> bool:
    """Return True if so many of the `known` runners of a scope are offline that their machines are not the cause.

    New Pods would then be offline too, and the old ones have what took hours to build (law L8).
    """
    return offline >= OUTAGE_FROM and 2 * offline > known


OUTAGE_FROM = 3
"""Smallest number of offline runners that can be an outage."""

OUTAGE_FACTOR = 6
"""Factor of the time until an offline runner is replaced, during an outage.

The time stays finite, because runners might be offline for another reason that only new Pods remove.
"""


def describe_registration(*, url: str, token: str, name: str, labels: Sequence[str], group: str | None) -> str:
    """Return what a Pod needs to register its runner, as lines `key=value` for `poller/register.sh`.

    `url` is the address of the organisation or repository in a browser. Without `group`, the runner joins the default
    group. The caller has checked that no value contains a line break. The text contains the token, so it is a secret.
    """
    values = {"url": url, "token": token, "name": name, "labels": ",".join(labels), "group": group or ""}
    return "".join(f"{key}={value}\n" for key, value in values.items())


class Shown(StrEnum):
    """State of a runner in GitHub's answer."""

    ONLINE = "online"
    BUSY = "busy"
    OFFLINE = "offline"
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """A persistent runner whose registration token was delivered.

    `absent_before` is True if an earlier list, at least a minute older, did not show the runner either. Times are in
    seconds: since the delivery, since the runner was first shown as offline without a break, and since the runner began
    a job whose end Ostler does not know. `executes_for` is None if there is no such job. `busy_for` is the time since
    the runner was first shown as busy without a break, and since the end of its last known job. `outage` is True if
    most of the scope's runners are offline (`is_outage`).
    """

    shown: Shown
    ever_online: bool
    absent_before: bool = False
    executes_for: float | None = None
    busy_for: float = 0.0
    outage: bool = False
    delivered_for: float = 0.0
    offline_for: float = 0.0


def why_remove(
    runner: Registered,
    *,
    longest_job: float,
    registers_within: float = REGISTERS_WITHIN,
    offline_for: float = OFFLINE_FOR,
) -> str | None:
    """Return why a persistent runner must be removed and its Pod replaced, or None if it must stay.

    `longest_job`: maximum number of seconds that a job of GitHub can run.

    The release of the claim asks GitHub to delete the runner first. It stops if GitHub refuses because the runner
    executes a job. GitHub cannot refuse this for a runner that it does not know. Such a runner therefore stays until
    the end of its job is known, or until no job of GitHub can run any more (law L3).
    """
    executes = runner.executes_for is not None and runner.executes_for < longest_job
    # Without a known job, the webhook about its begin was lost.
    busy_for = runner.busy_for if runner.executes_for is None else runner.executes_for
    if runner.shown is Shown.BUSY and busy_for >= longest_job:
        return "its job has been running for longer than GitHub allows"
    if runner.shown in {Shown.ONLINE, Shown.BUSY} or (runner.shown is Shown.ABSENT and executes):
        return None
    if not runner.ever_online:
        if runner.delivered_for < registers_within:
            return None
        return f"its runner did not come online within {registers_within:.0f} s"
    if runner.shown is Shown.ABSENT:
        return "GitHub does not know its runner any more" if runner.absent_before else None
    limit = offline_for * OUTAGE_FACTOR if runner.outage else offline_for
    if runner.offline_for < limit:
        return None
    return f"its runner was offline for {limit:.0f} s"
