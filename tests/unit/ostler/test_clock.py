"""The clock of a process follows that of Postgres."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from ostler import clock
from ostler.clock import MEASURE_EVERY, UNSTEADY_FOR, Clock, machine_now, move, offset_of, utcnow
from ostler.errors import ConfigurationError

START = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclass
class World:
    """The true time, a machine with another clock, and a Postgres whose clock can jump."""

    skew: float = 0.0
    passed: float = 0.0
    jump: float = 0.0
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(machine=lambda: self.at(self.skew), monotonic=lambda: self.passed)

    def at(self, ahead: float = 0.0) -> datetime:
        return START + timedelta(seconds=self.passed + ahead)

    def ask(self, there: float = 0.0, back: float = 0.0) -> None:
        """Measure. The question and the answer take the given seconds."""

        def answer() -> datetime:
            self.passed += there
            theirs = self.at(self.jump)
            self.passed += back
            return theirs

        self.clock.measure(answer)

    def error(self) -> float:
        return (self.clock.now() - self.at(self.jump)).total_seconds()


@pytest.mark.parametrize("skew", [0.0, 16.0, -20.0, 3600.0])
def test_now_is_the_time_of_postgres_on_a_machine_with_another_time(skew: float) -> None:
    world = World(skew=skew)
    world.ask()
    assert world.error() == 0
    assert world.clock.skew() == skew


@pytest.mark.parametrize(("there", "back"), [(0.0, 4.0), (4.0, 0.0), (2.0, 2.0)])
def test_a_slow_answer_moves_a_right_clock_by_nothing(there: float, back: float) -> None:
    world = World()
    world.ask(there, back)
    assert world.error() == 0


def test_a_slow_answer_corrects_by_no_more_than_is_certain() -> None:
    world = World(skew=10)
    world.ask(2, 2)
    assert world.clock.skew() == 8
    world.ask()
    assert world.clock.skew() == 10


def test_the_offset_is_measured_again_when_it_is_old_or_the_machine_was_set() -> None:
    world = World()
    assert world.clock.is_due()
    world.ask()
    assert not world.clock.is_due()
    world.passed += MEASURE_EVERY
    assert world.clock.is_due()
    world.ask()
    world.skew = -3600
    assert world.clock.is_due()
    world.ask()
    assert world.error() == 0
    assert not world.clock.is_unsteady()  # the clock of Postgres has not jumped


@pytest.mark.parametrize(("jump", "leeway"), [(60.0, 60.0), (-60.0, 0.0)])
def test_a_jump_of_postgres_makes_ages_untrusted_for_two_minutes(jump: float, leeway: float) -> None:
    world = World()
    world.ask()
    world.passed += 10
    world.jump = jump
    world.ask()
    assert world.error() == 0
    assert world.clock.is_unsteady()
    assert world.clock.leeway() == leeway
    world.passed += UNSTEADY_FOR
    assert not world.clock.is_unsteady()
    assert world.clock.leeway() == 0


@pytest.mark.parametrize("slow", [(8.0, 0.0), (0.0, 8.0), (4.0, 4.0)])
def test_a_slow_answer_is_no_jump_now_or_at_the_next_reading(slow: tuple[float, float]) -> None:
    world = World()
    world.ask()
    world.passed += 10
    world.ask(*slow)
    assert not world.clock.is_unsteady()
    world.passed += 10
    world.ask()
    assert not world.clock.is_unsteady()


def test_a_reading_that_another_thread_overtook_changes_nothing() -> None:
    world = World(skew=10)

    def overtaken() -> datetime:
        theirs = world.at()
        world.passed += 30
        world.ask()
        return theirs

    world.clock.measure(overtaken)
    assert world.clock.skew() == 10
    assert not world.clock.is_unsteady()


def test_the_offset_is_measured_at_the_next_use_after_a_new_connection() -> None:
    world = World()
    world.ask()
    assert not world.clock.is_due()
    world.clock.connected()
    assert world.clock.is_due()
    world.ask()
    assert not world.clock.is_due()


@pytest.mark.parametrize(
    ("written", "offset"), [(None, 0), ("", 0), ("0", 0), ("60", 60), (" -60 ", -60), ("0.5", 0.5), ("86400", 86400)]
)
def test_offset_is_the_number_of_seconds_in_the_variable(written: str | None, offset: float) -> None:
    assert offset_of({} if written is None else {"OSTLER_CLOCK_OFFSET": written}) == offset


@pytest.mark.parametrize("written", ["a minute", "60s", "nan", "inf", "-inf", "86401", "-86401"])
def test_offset_that_is_no_number_of_seconds_is_refused(written: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^OSTLER_CLOCK_OFFSET: found '.+'; must be a number of seconds"):
        offset_of({"OSTLER_CLOCK_OFFSET": written})


@pytest.mark.parametrize("seconds", [60, -60])
def test_moved_clock_differs_from_the_machine_by_the_offset(seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "process", Clock())
    offset = timedelta(seconds=seconds)

    move(seconds)

    before = datetime.now(UTC)
    assert before + offset <= machine_now() <= datetime.now(UTC) + offset


def test_moved_clock_is_corrected_by_the_clock_of_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "process", Clock())
    move(3600)

    before = datetime.now(UTC)
    clock.process.measure(lambda: datetime.now(UTC))

    assert before <= utcnow()
    assert clock.process.skew() > 3000
