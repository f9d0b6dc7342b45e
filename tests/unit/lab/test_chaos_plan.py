"""The plan of a chaos run is a function of its seed."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from lab.chaos.plan import AGAINST_US, FREEZES, FROZEN, Blow, Rates, make_plan
from lab.chaos.waits import scaled
from lab.faults import OF_STREAMS, Kind

JOBS = 2000


def test_the_same_seed_gives_the_same_plan() -> None:
    assert list(make_plan(seed=7, jobs=JOBS).lines()) == list(make_plan(seed=7, jobs=JOBS).lines())


def test_another_seed_gives_another_plan() -> None:
    one, other = make_plan(seed=7, jobs=JOBS), make_plan(seed=8, jobs=JOBS)

    assert list(one.lines())[1:] != list(other.lines())[1:]
    assert one.strikes != other.strikes


def test_a_longer_run_begins_as_a_shorter_one_of_the_same_seed() -> None:
    short, long = make_plan(seed=7, jobs=100), make_plan(seed=7, jobs=JOBS)

    assert [strike for strike in long.strikes if strike.after < 100] == list(short.strikes)


def test_plan_cancels_strikes_and_takes_the_pod_of_one_job_in_twenty_each() -> None:
    counts = Counter(strike.blow for strike in make_plan(seed=7, jobs=JOBS).strikes)

    assert counts[Blow.JOB_CANCELLED] == counts[Blow.POD_VANISHES] == JOBS / 20
    assert sum(counts[blow] for blow in AGAINST_US) == JOBS / 20
    assert max(counts[blow] for blow in AGAINST_US) - min(counts[blow] for blow in AGAINST_US) <= 1


@pytest.mark.parametrize("upstream", ["github", "kubernetes"])
def test_upstream_faults_are_of_every_kind_and_of_the_requested_frequency(upstream: str) -> None:
    plan = make_plan(seed=7, jobs=JOBS, rates=Rates(github=0.1, kubernetes=0.1))
    faults = getattr(plan, upstream)().dump()["faults"]
    of_any_call = [fault for fault in faults if "jitconfig" not in fault["path_regex"]]

    assert {fault["kind"] for fault in faults} == set(Kind) - {Kind.DELAY} - OF_STREAMS
    assert sum(fault["probability"] for fault in of_any_call) == pytest.approx(0.1)


def test_waits_are_scaled_and_nothing_else_is() -> None:
    environment = scaled()
    changed = json.loads(environment["OSTLER_TIMINGS"])

    assert environment["OSTLER_START_TIMEOUT"] == "15"
    assert changed["unused_after"] == 3
    assert changed["finished_job_after"] == 45
    assert not {name for name in changed if "hold" in name or "timeout" in name}


def test_one_process_in_forty_jobs_is_frozen_for_less_than_postgres_waits() -> None:
    freezes = [strike for strike in make_plan(seed=7, jobs=JOBS).strikes if strike.blow is Blow.FREEZE]

    assert len(freezes) == JOBS / FREEZES
    assert all(FROZEN[0] <= strike.seconds <= FROZEN[1] for strike in freezes)
    assert max(strike.seconds for strike in freezes) > FROZEN[1] / 2
