"""Geometry of the drawings: the bar of a pool's Pods, the time axis of a job, and the age of the queue.

Positions are percentages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from models.browse.timeline import REPAIR, Moment
from rules.claims.machines import JobState
from rules.pools.pod_states import PodState

SHOWN = (PodState.STARTING, PodState.WARM, PodState.RESERVED, PodState.BUSY)
_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
PHASES = ("queued", "claimed", "stamped", "minted", "delivered", "executing")
_STAMPED = "stamp_on"
_UNSTAMPED = frozenset({"stamp_removing", "stamp_gave_up"})
_AGAIN = frozenset({"job_requeue", "begin_release"})
"""Transitions that are marked as retries: the job is queued again, or its claim is released."""
MOST_MARKS = 40


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a bar for the Pods of one kind.

    The kind `other` contains the Pods that are in no state of `SHOWN`, and `detail` has their numbers by state.
    """

    kind: str
    pods: int
    x: float
    width: float
    detail: str = ""


def bar(pods: Mapping[PodState, int], *, replicas: int) -> Sequence[Segment]:
    """Return the segments of the bar of a pool. Pods that are missing from `replicas` leave the end of the bar empty.

    Spent Pods are left out, because they serve no job and wait only for their deletion.
    """
    others = {state: number for state, number in pods.items() if number and state not in {*SHOWN, PodState.SPENT}}
    numbers = {**{str(state): pods.get(state, 0) for state in SHOWN}, "other": sum(others.values())}
    whole = max(replicas, sum(numbers.values()), 1)
    segments, x = [], 0.0
    for kind, number in numbers.items():
        width = 100 * number / whole
        detail = ", ".join(f"{each} {state}" for state, each in others.items()) if kind == "other" else ""
        segments.append(Segment(kind, number, round(x, 3), round(width, 3), detail))
        x += width
    return segments


@dataclass(frozen=True, slots=True)
class Span:
    """One bar on the time axis."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Lane:
    """The bars of one phase of a job. `seconds` is the sum of their lengths, and `open` is True until the last ends."""

    phase: str
    spans: Sequence[Span]
    seconds: float
    open: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A retry or a repair on the time axis, in words. `kind` is `retry` or `repair`."""

    x: float
    kind: str
    words: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis of a job. `seconds` is the length of the axis."""

    begins: datetime
    seconds: float
    lanes: Sequence[Lane]
    marks: Sequence[Mark]


def axis(
    job: Any, claims: Sequence[Any], events: Sequence[Any], *, now: datetime, timeline: Sequence[Moment] = ()
) -> Axis:
    """Return the time axis of a job from the rows of `models.browse.jobs.job_story`. The oldest row comes first.

    `timeline` has the stamps, the retries and the repairs.
    """
    times: dict[str, list[tuple[datetime, datetime | None]]] = {phase: [] for phase in PHASES}
    over = job.completed_at if job.state == JobState.COMPLETED else None
    executed = next((each for each in reversed(claims) if _executed(each, job)), None)
    began = job.started_at if executed is None else _began(job.started_at, executed.delivered_at)
    times["queued"] = _queued(job, claims, events, began=began, over=over)
    for claim in claims:
        steps = (
            claim.created_at,
            claim.minted_at,
            claim.delivered_at,
            began if claim is executed else None,
            claim.ended_at,
        )
        for index, phase in enumerate(("claimed", "minted", "delivered")):
            begin, later = steps[index], [step for step in steps[index + 1 :] if step is not None]
            if begin is not None:
                times[phase].append((begin, later[0] if later else over))
    if began is not None:
        times["executing"].append((began, over))
    times["stamped"] = _stamped(claims, timeline, over=over)
    spans = [span for each in times.values() for span in each]
    begins: datetime = min(job.queued_at, *(begin for begin, _ in spans))
    ends: datetime = max(begins, *(end or now for _, end in spans))
    whole = max((ends - begins).total_seconds(), 0.001)
    lanes = [_lane(phase, each, begins=begins, whole=whole, now=now) for phase, each in times.items()]
    marks = [
        Mark(round(100 * min(1.0, max(0.0, (at - begins).total_seconds() / whole)), 3), kind, words)
        for at, kind, words in _marks(timeline)
    ]
    return Axis(begins, whole, lanes, marks[-MOST_MARKS:])


def _stamped(
    claims: Sequence[Any], timeline: Sequence[Moment], *, over: datetime | None
) -> list[tuple[datetime, datetime | None]]:
    """Return when the Pods of the claims had a stamp. A stamp stays until it is removed or its claim ends."""
    ends = {f"claim {claim.id}": claim.ended_at or over for claim in claims}
    since: dict[str, datetime] = {}
    found: list[tuple[datetime, datetime | None]] = []
    for each in timeline:
        if each.transition == _STAMPED:
            since.setdefault(each.what, each.at)
        elif each.transition in _UNSTAMPED and each.what in since:
            found.append((since.pop(each.what), each.at))
    return found + [(at, ends.get(what, over)) for what, at in since.items()]


def _marks(timeline: Sequence[Moment]) -> Iterator[tuple[datetime, str, str]]:
    for each in timeline:
        if each.what == REPAIR:
            yield each.at, "repair", f"{each.who} {each.to_state}"
        elif each.transition in _AGAIN:
            yield each.at, "retry", f"{each.what} {each.to_state}"
        elif each.attempt is not None and each.attempt > 1:
            yield each.at, "retry", f"{each.what} {each.to_state}, attempt {each.attempt}"


def _executed(claim: Any, job: Any) -> bool:
    """Return True if the execution of the job began while the claim was live and delivered."""
    if job.started_at is None or claim.delivered_at is None:
        return False
    return claim.ended_at is None or bool(claim.created_at - _SECOND <= job.started_at <= claim.ended_at)


def _began(started_at: datetime, delivered_at: datetime) -> datetime:
    """Return the begin of an execution. GitHub reports it in whole seconds, so it can be just before the delivery."""
    return delivered_at if timedelta() < delivered_at - started_at < _SECOND else started_at


def _queued(
    job: Any, claims: Sequence[Any], events: Sequence[Any], *, began: datetime | None, over: datetime | None
) -> list[tuple[datetime, datetime | None]]:
    """Return the begin and the end of each wait of the job in the queue, according to its events.

    If the events of an old job were deleted, the job counts as queued until its first claim or its end.
    """
    if not events:
        first = claims[0].created_at if claims else None
        return [(job.queued_at, next((each for each in (first, began, over) if each is not None), None))]
    found: list[tuple[datetime, datetime | None]] = []
    since: datetime | None = None
    for event in events:
        if since is not None:
            end = began if began is not None and since <= began < event.at else event.at  # webhooks arrive later
            found.append((since, end))
            since = None
        if event.to_state == JobState.QUEUED:
            since = event.at if found else min(event.at, job.queued_at)
    if since is not None:
        found.append((since, over))
    return found


def _lane(
    phase: str, spans: Sequence[tuple[datetime, datetime | None]], *, begins: datetime, whole: float, now: datetime
) -> Lane:
    drawn, total = [], 0.0
    for begin, end in spans:
        seconds = max(timedelta(), (end or now) - begin).total_seconds()  # clocks of GitHub and Ostler differ
        total += seconds
        drawn.append(Span(round(100 * (begin - begins).total_seconds() / whole, 3), round(100 * seconds / whole, 3)))
    return Lane(phase, drawn, total, open=any(end is None for _, end in spans))


@dataclass(frozen=True, slots=True)
class Curve:
    """The age of the queue at the minutes of a span, in seconds, oldest minute first. `most` is the greatest age."""

    begins: datetime
    ends: datetime
    ages: Sequence[float]

    @property
    def most(self) -> float:
        """Return the age at the top of the drawing."""
        return max(self.ages)

    @property
    def corners(self) -> str:
        """Return the corners of the line, for SVG."""
        steps, top = len(self.ages) - 1, self.most or 1.0
        return " ".join(f"{100 * n / steps:.2f},{100 * (1 - age / top):.2f}" for n, age in enumerate(self.ages))

    @property
    def table(self) -> Sequence[tuple[datetime, float]]:
        """Return the age every five minutes."""
        return [(self.begins + n * _MINUTE, self.ages[n]) for n in range(0, len(self.ages), 5)]
