"""Stalls of a run, grouped by the reasons for their length. Each group is compared with the limit for these reasons.

`models.state.stalls` distinguishes causes. This module adds the circumstances of a chaos run: a lease that had to
expire, a killed beat, GitHub's answer that a runner is busy, and a row that a frozen process had locked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from sqlalchemy import Connection, text

from lab.chaos.freezer import Freeze
from rules.claims.stalls import Cause, FoundBy

TO_HOLD = {
    (Cause.MESSAGE_LOST, FoundBy.RESUME): 20.0,
    (Cause.POD_GONE, FoundBy.WATCH): 20.0,
    (Cause.POD_GONE, FoundBy.LISTS): 150.0,
    (Cause.POD_SPENT, FoundBy.LISTS): 150.0,
    (Cause.RUNNER_UNUSED, FoundBy.UNUSED_RUNNERS): 200.0,
    (Cause.WEBHOOK_LOST, FoundBy.REDELIVERY): 150.0,
    (Cause.WEBHOOK_LOST, FoundBy.CATCH_UP): 480.0,
}
"""Seconds within which 99 of 100 stalls of a kind must be served in a fleet with unscaled waits (`docs/metrics.md`)."""

LEASE_EXPIRES = 30.0
"""Limit in seconds for an interrupted release.

No process may repeat the release before its lease of 20 seconds has expired.
"""

BEAT_LOCK_EXPIRES = 15.0
"""Seconds that a killed beat adds to a limit, because its lock must expire before another beat takes over."""

FROZEN_FOR = 25.0
"""Seconds that a frozen process adds to a limit: a web process, or one that has locked a row of the job or a sweep."""


BUSY_FOR = 60.0
"""Seconds that the answer "the runner is busy" adds to a limit, because GitHub is asked again a minute later."""


class Circumstance(StrEnum):
    """Circumstance that made a stall longer than its cause alone would."""

    NONE = ""
    RELEASE = "in a release"
    BUSY = "said to be busy"
    BEAT = "a beat killed"
    FROZEN = "a freeze"


@dataclass(frozen=True, slots=True)
class Stalled:
    """One stall, in Unix seconds. `release_repeated` says that `resume` sent its release again.

    `said_busy` says that GitHub refused to delete the runner during the stall, or that a persistent runner was
    executing a job when the stall began.
    """

    cause: Cause
    found_by: FoundBy
    claim_id: int | None
    job_id: int | None
    since: float
    served: float
    release_repeated: bool
    history: str
    said_busy: bool = False

    @property
    def seconds(self) -> float:
        """Length of the stall in seconds."""
        return self.served - self.since


@dataclass(frozen=True, slots=True)
class Path:
    """Stalls with the same cause, finder and circumstance.

    `bound` is the limit in seconds for their 99th percentile.
    """

    cause: Cause
    found_by: FoundBy
    circumstance: Circumstance
    bound: float
    many: int
    p50: float
    p99: float
    most: float
    longest: str

    @property
    def over(self) -> bool:
        """True if fewer than 99 of 100 stalls were served within `bound` seconds."""
        return self.p99 >= self.bound


def circumstance(each: Stalled, *, beat_kills: Iterable[float], freezes: Iterable[Freeze]) -> Circumstance:
    """Return the circumstance that made a stall longer.

    If several circumstances apply, return the first in this order: a freeze, a killed beat, a busy runner, a repeated
    release.
    """
    for freeze in freezes:
        concerns = each.job_id in freeze.jobs or freeze.of_a_sweep or freeze.process.startswith("web-")
        if concerns and freeze.overlaps(each.since, each.served):
            return Circumstance.FROZEN
    if any(at - BEAT_LOCK_EXPIRES < each.served and each.since < at + BEAT_LOCK_EXPIRES for at in beat_kills):
        return Circumstance.BEAT
    if each.said_busy:
        return Circumstance.BUSY
    return Circumstance.RELEASE if each.release_repeated else Circumstance.NONE


def bound(each: Stalled, found: Circumstance) -> float:
    """Return the limit in seconds for a stall with this circumstance."""
    least = TO_HOLD[each.cause, each.found_by]
    base = max(least, LEASE_EXPIRES) if each.release_repeated else least
    base += BUSY_FOR * each.said_busy
    return base + {Circumstance.BEAT: BEAT_LOCK_EXPIRES, Circumstance.FROZEN: FROZEN_FOR}.get(found, 0.0)


def paths(stalls: Collection[Stalled], *, beat_kills: Collection[float], freezes: Collection[Freeze]) -> Sequence[Path]:
    """Return the stalls, grouped by cause, finder, circumstance and limit."""
    groups = defaultdict[tuple[Cause, FoundBy, Circumstance, float], list[Stalled]](list)
    for each in stalls:
        found = circumstance(each, beat_kills=beat_kills, freezes=freezes)
        groups[each.cause, each.found_by, found, bound(each, found)].append(each)
    order = {path: number for number, path in enumerate(TO_HOLD)}
    return [
        _path(key, groups[key])
        for key in sorted(groups, key=lambda key: (order[key[0], key[1]], list(Circumstance).index(key[2]), key[3]))
    ]


def _path(key: tuple[Cause, FoundBy, Circumstance, float], group: Collection[Stalled]) -> Path:
    ranked = sorted(group, key=lambda each: each.seconds)
    longest = ranked[-1]
    return Path(
        *key,
        many=len(ranked),
        p50=ranked[ceil(len(ranked) * 0.5) - 1].seconds,
        p99=ranked[ceil(len(ranked) * 0.99) - 1].seconds,
        most=longest.seconds,
        longest=f"claim {longest.claim_id}: {longest.history}" if longest.claim_id is not None else "",
    )


def read_stalls(db: Connection, *, since: float) -> Sequence[Stalled]:
    """Return all stalls served after `since` (Unix seconds).

    The history of a stall has the events of its claim, in seconds since the stall began.
    """
    rows = db.execute(
        text("""
            SELECT s.cause, s.found_by, s.claim_id, s.job_id,
                   extract(epoch FROM s.since)::float AS since, extract(epoch FROM s.served_at)::float AS served,
                   EXISTS (SELECT FROM repairs r WHERE r.claim_id = s.claim_id AND r.sweep = 'resume' AND NOT r.dry
                             AND r.what = 'repeat' AND r.before = 'releasing' AND r.at BETWEEN s.since AND s.served_at)
                       AS release_repeated,
                   EXISTS (SELECT FROM claim_events e WHERE e.claim_id = s.claim_id AND e.transition = 'refuse_release'
                             AND e.at BETWEEN s.since AND s.served_at)
                     -- The release of a persistent runner waits without an event while GitHub says "busy" (law L3).
                     OR EXISTS (SELECT FROM claims c JOIN executions x ON x.claim_id = c.id
                                WHERE c.id = s.claim_id AND c.purpose = 'register' AND x.started_at <= s.since
                                  AND coalesce(x.ended_at, 'infinity') > s.since) AS said_busy,
                   coalesce((SELECT string_agg(format('%s %s', e.transition,
                                                      round(extract(epoch FROM e.at - s.since), 1)), ', ' ORDER BY e.id)
                             FROM claim_events e WHERE e.claim_id = s.claim_id), '') AS history
            FROM stalls s WHERE s.served_at >= to_timestamp(:since)
        """),
        {"since": since},
    )
    return [
        Stalled(
            Cause(row.cause),
            FoundBy(row.found_by),
            row.claim_id,
            row.job_id,
            row.since,
            row.served,
            row.release_repeated,
            row.history,
            row.said_busy,
        )
        for row in rows
    ]
