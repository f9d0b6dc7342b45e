"""Stalls of a chaos run are judged by the cause of their length."""

from __future__ import annotations

from lab.chaos.freezer import Freeze
from lab.chaos.stalls import Circumstance, Stalled, paths
from rules.claims.stalls import Cause, FoundBy


def stalled(
    seconds: float, *, job: int = 1, since: float = 1000.0, release: bool = False, busy: bool = False
) -> Stalled:
    return Stalled(Cause.MESSAGE_LOST, FoundBy.RESUME, 5, job, since, since + seconds, release, "claim 0.0", busy)


def bounds(
    *stalls: Stalled, beat_kills: tuple[float, ...] = (), freezes: tuple[Freeze, ...] = ()
) -> list[tuple[Circumstance, float, bool]]:
    found = paths(stalls, beat_kills=beat_kills, freezes=freezes)
    return [(path.circumstance, path.bound, path.over) for path in found]


def test_lost_message_has_twenty_seconds() -> None:
    assert bounds(stalled(19)) == [(Circumstance.NONE, 20, False)]
    assert bounds(stalled(21)) == [(Circumstance.NONE, 20, True)]


def test_interrupted_release_has_thirty_seconds() -> None:
    assert bounds(stalled(29, release=True)) == [(Circumstance.RELEASE, 30, False)]


def test_word_that_a_runner_is_busy_adds_a_minute() -> None:
    assert bounds(stalled(79, busy=True)) == [(Circumstance.BUSY, 80, False)]
    assert bounds(stalled(94, busy=True), beat_kills=(1010.0,)) == [(Circumstance.BEAT, 95, False)]


def test_beat_killed_meanwhile_adds_the_expiry_of_its_lock() -> None:
    assert bounds(stalled(34), beat_kills=(1010.0,)) == [(Circumstance.BEAT, 35, False)]
    assert bounds(stalled(44, release=True), beat_kills=(1010.0,)) == [(Circumstance.BEAT, 45, False)]
    assert bounds(stalled(21), beat_kills=(900.0,)) == [(Circumstance.NONE, 20, True)]


def test_freeze_adds_its_length_to_what_it_held_and_to_nothing_else() -> None:
    freeze = Freeze("worker-0", 1, 1005.0, jobs=frozenset({1}), ended=1030.0)

    assert bounds(stalled(44), freezes=(freeze,)) == [(Circumstance.FROZEN, 45, False)]
    assert bounds(stalled(44, job=2), freezes=(freeze,)) == [(Circumstance.NONE, 20, True)]


def test_circumstances_are_reported_apart() -> None:
    found = paths([stalled(25, release=True), stalled(1), stalled(3)], beat_kills=(), freezes=())

    assert [(path.circumstance, path.many, path.most) for path in found] == [
        (Circumstance.NONE, 2, 3.0),
        (Circumstance.RELEASE, 1, 25.0),
    ]
    assert found[1].longest == "claim 5: claim 0.0"
