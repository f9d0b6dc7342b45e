"""Kill points: a real process is killed on both sides of the commit of every transition, and nothing is lost.

The points come from the transition table. One system runs for all of them: a process halts at an armed point, is killed
there with SIGKILL and started again, and the work continues. The result is judged by the lab's own logs and by the
laws. No message repeats the killed work: every recovery is by the sweeps, and only their intervals are short.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.control_plane import ClusterAccess
from lab.invariants import INVARIANTS, History
from lab.verdict import Verdict
from rules.claims.machines import TRANSITIONS
from tests.faults.scenarios import POINTS, SCENARIOS, Scenario
from tests.faults.stage import Kill, Stage, TooLate, running

pytestmark = pytest.mark.timeout(3600)

ROUNDS = 4
"""Maximum number of runs of a scenario until both of its points were reached."""

SLOW = "before_commit"
"""Side of a commit whose kills `make test-slow` adds: Postgres forgets the transition, so the step repeats whole."""

QUIET = 6.0
"""Seconds for the recovery from one kill before the next. A lease of the killed process can last longer."""


QUICK = frozenset(
    {"claim", "lease_stamp", "mint", "deliver", "begin_release", "end_completed", "end_retired", "job_requeue"}
)
"""Transitions whose kills after the commit `make test` shows; `make test-cluster` shows those of all transitions."""


def marks_of(point: str) -> Sequence[pytest.MarkDecorator]:
    name, _, side = point.rpartition(".")
    return (pytest.mark.slow,) if side == SLOW else () if name in QUICK else (pytest.mark.cluster,)


@dataclass(slots=True)
class Campaign:
    """All kills of one system, and the problems that were left at the end."""

    kills: dict[str, Kill] = field(default_factory=dict)
    jobs: dict[str, list[int]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    history: History = field(default_factory=History)
    wrong_ends: dict[int, str] = field(default_factory=dict)


def test_every_transition_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(TRANSITIONS)


def test_no_task_is_ever_run_eagerly() -> None:
    root = Path(__file__).parents[2]
    eager = re.compile(r"always_eager\W+(=|:)?\W*True|\.apply_eagerly|eager_propagates")
    parts = ("tasks", "models", "ostler", "cli", "watch", "web", "lab", "tests")
    sources = [path for part in parts for path in root.glob(f"{part}/**/*.py") if path != Path(__file__)]

    assert sources
    assert [str(path) for path in sources if eager.search(path.read_text())] == []


@pytest.fixture(scope="module")
def campaign(
    request: pytest.FixtureRequest, control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Campaign]:
    """Kill at every point that a selected test needs, and then wait until the system is idle."""
    wanted = {
        str(item.callspec.params["point"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "point" in item.callspec.params
    }
    campaign = Campaign()
    with running(tmp_path_factory.mktemp("kill-points"), control_plane, f"kill-{secrets.token_hex(4)}") as stage:
        for name in TRANSITIONS:
            points = {point for point in wanted if point.rpartition(".")[0] == name}
            if points and name in SCENARIOS:
                kill_at(stage, campaign, points, SCENARIOS[name])
        stage.settle()
        campaign.verdict = stage.verdict()
        campaign.history = stage.history()
        campaign.wrong_ends = stage.wrong_ends()
        yield campaign


def kill_at(stage: Stage, campaign: Campaign, points: set[str], scenario: Scenario) -> None:
    """Run a scenario until a process was killed at each of the points."""
    jobs: list[int] = []
    missing = set(points)
    first = len(stage.kills)
    try:
        for _ in range(ROUNDS):
            stage.arm(missing)
            with scenario(stage) as made:
                jobs.extend(made)
                stage.happens(lambda: stage.all_reached() or stage.is_through_with(jobs), within=60)
            missing = stage.armed()
            if not missing:
                break
        stage.kill_halted()
    except TooLate as error:
        campaign.failures |= dict.fromkeys(points, str(error))
    finally:
        stage.disarm()
    campaign.kills |= {kill.point: kill for kill in stage.kills[first:]}
    campaign.jobs |= dict.fromkeys(points, jobs)
    stage.happens(lambda: stage.are_over(jobs), within=QUIET)


@pytest.mark.parametrize("point", [pytest.param(point, marks=marks_of(point)) for point in POINTS])
def test_a_process_killed_there_loses_no_job(campaign: Campaign, point: str) -> None:
    assert campaign.failures.get(point) is None
    assert point in campaign.kills, "no scenario led a process there"
    ended = {event["job"] for event in campaign.history.github if event["event"] == "job_completed"}
    assert set(campaign.jobs[point]) - ended == set()


def test_every_job_ended_exactly_once_and_on_one_runner(campaign: Campaign) -> None:
    assert campaign.verdict is not None
    assert campaign.verdict.problems == ()
    assert campaign.verdict.completed == campaign.verdict.jobs


def test_only_what_the_test_broke_failed(campaign: Campaign) -> None:
    assert campaign.wrong_ends == {}


@pytest.mark.parametrize("law", INVARIANTS)
def test_the_kills_broke_no_law(campaign: Campaign, law: str) -> None:
    assert list(INVARIANTS[law](campaign.history)) == []
