"""What every sweep that repairs must pass: whether it may run, how much it may kill in a tick, and on what proof.

Laws L8 and L9 as pure functions. A sweep's own verdict (which row, and what becomes of it) stands beside these or in a
module of its own; the frame (`tasks.sweeps.frame`) asks the ones here for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Source(StrEnum):
    """Who can bear witness. The same source twice is one witness."""

    POSTGRES = "postgres"
    KUBERNETES = "kubernetes"
    GITHUB = "github"


@dataclass(frozen=True, slots=True)
class Witness:
    """What one source said, as `Witness(Source.GITHUB, "the runner is absent")`."""

    source: Source
    saw: str

    def __str__(self) -> str:
        return f"{self.source}: {self.saw}"


NEEDED = 2
"""Sources that must agree before a repair may kill (law L9)."""


def enough(witnesses: Iterable[Witness]) -> bool:
    """Return whether witnesses of two different sources are there."""
    return len({witness.source for witness in witnesses}) >= NEEDED


def allowance(listed: int, *, least: int, percent: float) -> int:
    """Return how many repairs that kill one tick may make which listed so many: a part of those, `least` at least."""
    return max(least, int(listed * percent / 100))


class Outcome(StrEnum):
    """How a tick of a sweep ended.

    - `running`: it has not.
    - `done`: it went through all that it found.
    - `unfinished`: its time was up or its process stops; the next tick goes on.
    - `aborted`: what it read could not be trusted, and it changed nothing from there on (law L8); or it came to no
      row at all.
    - `failed`: an error that nobody expected.
    - `lost`: another tick took over, because this one was killed or took too long.
    - `paused`: it was not let run, or was stopped on its way.
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
"""Outcomes after which a sweep counts as having run."""


ALL = "all"


def switched_off(name: str, *, by_setting: Collection[str]) -> bool:
    """Return whether `OSTLER_SWEEPS_PAUSED` keeps a sweep from running, dry runs apart."""
    return name in by_setting or ALL in by_setting


class Repaired(StrEnum):
    """What became of one repair.

    - `begun`: written down before an outside call whose answer is not recorded.
    - `done`: committed, or the call was answered; whether it came to what it was for is checked later.
    - `verified`: seen to have come to that.
    - `failed`: the call failed, or it was not seen to have come to that in time.
    - `moved_on`: nothing was done, the row had moved between the verdict and the action.
    - `dry`: nothing was done, this is what would have been.
    """

    BEGUN = "begun"
    DONE = "done"
    VERIFIED = "verified"
    FAILED = "failed"
    MOVED_ON = "moved_on"
    DRY = "dry"


class Expect(StrEnum):
    """What a later tick looks for, to call a repair verified.

    - `nothing`: the transaction that made the repair proves it.
    - `claim_moved`: the claim is in another state than `before`, or has ended.
    - `claim_ended`: the claim has ended.
    - `stamped`, `unstamped`: the claim's stamp is on; is being removed no more; or the claim has ended.
    - `pod_gone`: the Pod is known to be gone, or its retirement has ended.
    - `accepted`: the webhook whose GUID is the `subject` was accepted.
    - `own`: the sweep looks itself (`Tick.settle`).
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
"""Periods without a success, after which a sweep is reported."""


def is_late(*, last: datetime, since: datetime, period: float, paused: bool, now: datetime) -> bool:
    """Return whether a sweep missed three periods since its last success, and since somebody watches (`since`).

    One that was paused on purpose is not late.
    """
    return not paused and now - max(last, since) > timedelta(seconds=MISSED * period)
