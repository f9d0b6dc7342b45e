"""Limits of every sweep that repairs: permission to run, the budget of kills in a tick, and the required proof.

The functions implement the laws L8 and L9 without I/O. The frame of the sweeps (`tasks.sweeps.frame.sweep`) applies the
limits to all sweeps. Other modules of this package contain the verdicts of the sweeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Source(StrEnum):
    """Sources of evidence. Two statements of the same source count as one witness."""

    POSTGRES = "postgres"
    KUBERNETES = "kubernetes"
    GITHUB = "github"


@dataclass(frozen=True, slots=True)
class Witness:
    """Statement of one source, such as `Witness(Source.GITHUB, "the runner is absent")`."""

    source: Source
    saw: str

    def __str__(self) -> str:
        return f"{self.source}: {self.saw}"


NEEDED = 2
"""How many different sources must agree before a repair may kill (law L9)."""


def enough(witnesses: Iterable[Witness]) -> bool:
    """Return whether there are witnesses from two different sources."""
    return len({witness.source for witness in witnesses}) >= NEEDED


AGREED = 6
"""Factor of the least budget if Postgres and Kubernetes agree about a kill: 30 objects instead of 5."""


def allowance(listed: int, *, least: int, percent: float, agreed: bool = False) -> int:
    """Return after how many kills of a tick the next kill must be left to a later tick.

    The result is `percent` of the listed objects, but at least `least`. If the kill is `agreed`, the result is at least
    `AGREED` times `least`. A kill is agreed if Postgres knows no live claim and no delivery of the Pod, and Kubernetes
    shows that the Pod's poller still runs or failed, so that the runner never started.
    """
    return max(least * AGREED if agreed else least, int(listed * percent / 100))


class Outcome(StrEnum):
    """Outcome of a sweep's tick.

    - `running`: the tick has not ended.
    - `done`: the tick processed all objects that it found.
    - `unfinished`: the tick ran out of time, or its process stops. The next tick continues.
    - `aborted`: the tick could not trust a list and stopped all changes (law L8), or it could process no row at all.
    - `failed`: an unexpected error ended the tick.
    - `lost`: the tick lost its lease, or did not record its end in time. It was killed or took too long.
    - `paused`: the sweep was paused before or during the tick.
    - `busy`: another tick held the lease.
    """

    RUNNING = "running"
    DONE = "done"
    UNFINISHED = "unfinished"
    ABORTED = "aborted"
    FAILED = "failed"
    LOST = "lost"
    PAUSED = "paused"
    BUSY = "busy"


SUCCESSES = frozenset({Outcome.DONE, Outcome.UNFINISHED})
"""Outcomes of a tick that count as a success of the sweep."""


ALL = "all"


def switched_off(name: str, *, by_setting: Collection[str]) -> bool:
    """Return whether `OSTLER_SWEEPS_PAUSED` stops a sweep. Dry runs of a stopped sweep are still allowed."""
    return name in by_setting or ALL in by_setting


class Repaired(StrEnum):
    """Result of one repair.

    - `begun`: the repair was recorded before a call to an upstream, and the answer is not recorded yet.
    - `done`: the repair was committed, or the upstream answered. A later tick checks the effect.
    - `verified`: the effect was observed.
    - `failed`: the call failed, or the effect was not observed within the timing `repair_settle_after`.
    - `moved_on`: nothing was done, because the row changed between verdict and action.
    - `dry`: nothing was done, because the tick was a dry run.
    """

    BEGUN = "begun"
    DONE = "done"
    VERIFIED = "verified"
    FAILED = "failed"
    MOVED_ON = "moved_on"
    DRY = "dry"


class Expect(StrEnum):
    """Expected effect of a repair. If a later tick observes the effect, the tick marks the repair as verified.

    - `nothing`: the transaction of the repair already proves the effect.
    - `claim_moved`: the claim is no longer in the state `before`, or has ended.
    - `claim_ended`: the claim has ended.
    - `stamped`: the claim's stamp is on, or the claim has ended.
    - `unstamped`: the claim's stamp is no longer being removed, or the claim has ended.
    - `pod_gone`: the Pod is known to be gone, or its retirement has ended.
    - `accepted`: the webhook with the GUID `subject` was accepted.
    - `own`: the sweep checks the effect itself and records the result (`Tick.finish_repair`).
    """

    NOTHING = "nothing"
    CLAIM_MOVED = "claim_moved"
    CLAIM_ENDED = "claim_ended"
    STAMPED = "stamped"
    UNSTAMPED = "unstamped"
    POD_GONE = "pod_gone"
    ACCEPTED = "accepted"
    OWN = "own"


MISSED = 3
"""How many periods must pass without a success before a sweep is reported as late."""


def is_late(*, last: datetime, since: datetime, period: float, paused: bool, now: datetime) -> bool:
    """Return whether a sweep missed three periods since its last success.

    The time before `since`, the start of the observation, does not count. A sweep that was paused on purpose is not
    late.
    """
    return not paused and now - max(last, since) > timedelta(seconds=MISSED * period)
