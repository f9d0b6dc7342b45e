"""Limits of every sweep that repairs: whether it may run, its budget of kills in a tick, and the required proof.

Laws L8 and L9 as pure functions. The verdict of each sweep (which row, and what happens to it) is here or in a module
of its own; the frame (`tasks.sweeps.frame`) applies these limits to all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Source(StrEnum):
    """Sources of evidence. The same source twice is one witness."""

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
"""Sources that must agree before a repair may kill (law L9)."""


def enough(witnesses: Iterable[Witness]) -> bool:
    """Return whether there are witnesses from two different sources."""
    return len({witness.source for witness in witnesses}) >= NEEDED


def allowance(listed: int, *, least: int, percent: float) -> int:
    """Return how many kills one tick may make after it listed this many: a percentage, but at least `least`."""
    return max(least, int(listed * percent / 100))


class Outcome(StrEnum):
    """End of a sweep's tick.

    - `running`: it has not ended.
    - `done`: it processed everything that it found.
    - `unfinished`: its time was up or its process stops; the next tick continues.
    - `aborted`: what it read could not be trusted, so it stopped changing anything (law L8); or it reached no row at
      all.
    - `failed`: an unexpected error.
    - `lost`: another tick took over, because this one was killed or took too long.
    - `paused`: it was not allowed to run, or was paused on its way.
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
    """Return whether `OSTLER_SWEEPS_PAUSED` stops a sweep from running, except for dry runs."""
    return name in by_setting or ALL in by_setting


class Repaired(StrEnum):
    """Result of one repair.

    - `begun`: recorded before an outside call whose answer is not recorded.
    - `done`: committed, or the call was answered; a later tick checks its effect.
    - `verified`: its effect was seen.
    - `failed`: the call failed, or its effect was not seen in time.
    - `moved_on`: nothing was done, because the row changed between verdict and action.
    - `dry`: nothing was done; this is what would have been.
    """

    BEGUN = "begun"
    DONE = "done"
    VERIFIED = "verified"
    FAILED = "failed"
    MOVED_ON = "moved_on"
    DRY = "dry"


class Expect(StrEnum):
    """Expected effect, which a later tick checks to mark a repair verified.

    - `nothing`: the transaction that made the repair proves it.
    - `claim_moved`: the claim is in another state than `before`, or has ended.
    - `claim_ended`: the claim has ended.
    - `stamped`, `unstamped`: the claim's stamp is on, or no longer being removed, or the claim has ended.
    - `pod_gone`: the Pod is known to be gone, or its retirement has ended.
    - `accepted`: the webhook with the GUID `subject` was accepted.
    - `own`: the sweep checks it itself (`Tick.settle`).
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
"""Periods without a success after which a sweep is reported."""


def is_late(*, last: datetime, since: datetime, period: float, paused: bool, now: datetime) -> bool:
    """Return whether a sweep missed three periods since its last success, and since observation began (`since`).

    A sweep that was paused on purpose is not late.
    """
    return not paused and now - max(last, since) > timedelta(seconds=MISSED * period)
