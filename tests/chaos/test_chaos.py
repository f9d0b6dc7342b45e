"""A chaos run without a bug is clean. A run with a bug is not, and names the law that the bug breaks.

The long runs are `make chaos`. These runs are as short as possible and use the API server in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.chaos.plan import Rates, make_plan
from lab.chaos.report import lines
from lab.chaos.run import Scene, run_chaos
from lab.timings import timings
from tests.chaos.seeds import SEEDS

pytestmark = pytest.mark.timeout(900)

SOON = timings(slow_sweep_every=3, orphaned_account_after=5)
"""Intervals that make the cleanup sweeps run sooner than their defaults."""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A bug: the law that it breaks, and the faults that make it appear soon. `every` is an argument of `make_plan`."""

    law: str
    jobs: int = 400
    rates: Rates = field(default_factory=Rates)
    every: int = 20
    watches: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)


BUGS = {
    "unstamp_of_a_delivered_pod": Bug(law="L3"),
    "reap_without_retire_claim": Bug(
        law="L7", every=4, settings={"OSTLER_START_TIMEOUT": "0.01", **timings(sweep_every=1)}
    ),
    "claims_read_before_pods": Bug(law="L8", settings=timings(orphaned_stamp_after=0)),
    "ended_claim_leaves_its_job": Bug(law="L4", every=4),
    "one_look_at_absence": Bug(law="L8", rates=Rates(webhooks_lost=0.5, lists=0.3), watches=0),
    "orphaned_runners_by_name_pattern": Bug(law="L3", settings=SOON),
}
CHEAP = "unstamp_of_a_delivered_pod"


@pytest.mark.cluster  # a long story
def test_sixty_jobs_come_through_everything_that_can_break(tmp_path: Path) -> None:
    plan = make_plan(seed=1, jobs=60)
    scene = Scene(cluster="embedded", webs=2, workers=2, beats=1, real_pods=2, settings=SOON)

    result = run_chaos(tmp_path / "run", plan, scene, say=print)

    assert result.ok, "\n".join(lines(result))
    assert result.verdict.jobs == result.verdict.completed == 60
    assert result.samples > 0


def test_every_bug_has_its_run() -> None:
    assert set(BUGS) == set(SEEDS)


@pytest.mark.cluster  # a long story
@pytest.mark.parametrize(
    "name", [each if each == CHEAP else pytest.param(each, marks=pytest.mark.seeds) for each in BUGS]
)
def test_a_bug_is_found_and_the_law_that_it_breaks_is_named(name: str, tmp_path: Path) -> None:
    bug = BUGS[name]
    plan = make_plan(seed=1, jobs=bug.jobs, rates=bug.rates, every=bug.every)
    scene = Scene(
        cluster="embedded",
        webs=1,
        workers=1,
        beats=1,
        watches=bug.watches,
        real_pods=0,
        worker_program=("tests.chaos.seeds", name),
        settings=bug.settings,
        until={bug.law},
    )

    result = run_chaos(tmp_path / "run", plan, scene, say=print)

    assert bug.law in result.laws, "\n".join(lines(result))
    assert not result.ok
