"""Next step of a job without progress, by GitHub's state of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rules.claims.job_outcomes import NextStep, OverRun
from rules.claims.machines import JobState
from rules.sweeps.unresolved import Move, Unresolved, judge_unresolved, next_ask_after

_A, _J, _M = Unresolved, JobState, Move
HELD, SET_ASIDE, WAITING = (_A.UNKNOWN, _J.RUNNING), (_A.SET_ASIDE, _J.QUEUED), (_A.WAITING, _J.WAITING)
ELSEWHERE, LOST, CLAIMED = (_A.ELSEWHERE, _J.RUNNING), (_A.BUG, _J.RUNNING), (_A.BUG, _J.CLAIMED)
PERSISTENT = (_A.PERSISTENT, _J.RUNNING)
HELD_QUEUED = (_A.UNKNOWN, _J.QUEUED)
EVERY = [HELD, SET_ASIDE, WAITING, ELSEWHERE, LOST, CLAIMED, HELD_QUEUED, PERSISTENT]


@pytest.mark.parametrize(("kind", "state"), EVERY)
def test_what_is_over_is_finished(kind: Unresolved, state: JobState) -> None:
    verdict = judge_unresolved(
        kind=kind, state=state, status="completed", conclusion="failure", run=None, started=False, age=timedelta(0)
    )
    assert (verdict.move, verdict.job_outcome.next_step, verdict.job_outcome.conclusion) == (
        Move.FOLLOW,
        NextStep.FINISH,
        "failure",
    )


@pytest.mark.parametrize(("kind", "state"), EVERY)
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("hours", [0, 24, 48, 49, 192, 193, 24 * 35, 24 * 36])
def test_a_404_finishes_only_what_started_or_cannot_be_queued_any_more(
    kind: Unresolved, state: JobState, started: bool, hours: int
) -> None:
    verdict = judge_unresolved(
        kind=kind, state=state, status=None, conclusion=None, run=None, started=started, age=timedelta(hours=hours)
    )
    over = started or hours > (24 * 35 if state is _J.WAITING else 48)
    if kind is _A.PERSISTENT:  # the App might merely have lost the access to the repository
        over = hours > 48 + 6 * 24
    assert verdict.move is (Move.FOLLOW if over else Move.KEEP)
    assert verdict.job_outcome.next_step is (NextStep.FINISH if over else NextStep.RUNNING)
    assert verdict.job_outcome.conclusion == ("unknown" if over else None)


@pytest.mark.parametrize(
    ("job", "status", "move", "job_outcome"),
    [
        (HELD, "queued", _M.FOLLOW, NextStep.REQUEUE),
        (LOST, "queued", _M.FOLLOW, NextStep.REQUEUE),
        (CLAIMED, "queued", _M.FOLLOW, NextStep.REQUEUE),
        (ELSEWHERE, "queued", _M.FOLLOW, NextStep.REQUEUE),
        (HELD_QUEUED, "queued", _M.LIFT, NextStep.REQUEUE),
        (SET_ASIDE, "queued", _M.KEEP, NextStep.REQUEUE),
        (WAITING, "waiting", _M.KEEP, NextStep.REQUEUE),
        (WAITING, "pending", _M.KEEP, NextStep.REQUEUE),
        (WAITING, "queued", _M.READY, NextStep.REQUEUE),
        (HELD, "in_progress", _M.KEEP, NextStep.RUNNING),
        (ELSEWHERE, "in_progress", _M.KEEP, NextStep.RUNNING),
        (PERSISTENT, "in_progress", _M.KEEP, NextStep.RUNNING),
        (PERSISTENT, "queued", _M.FOLLOW, NextStep.REQUEUE),
        (LOST, "in_progress", _M.FOLLOW, NextStep.RUNNING),
        (CLAIMED, "in_progress", _M.FOLLOW, NextStep.RUNNING),
        (WAITING, "in_progress", _M.FOLLOW, NextStep.RUNNING),
        (SET_ASIDE, "in_progress", _M.FOLLOW, NextStep.RUNNING),
        (HELD_QUEUED, "in_progress", _M.FOLLOW, NextStep.RUNNING),
    ],
)
def test_what_is_not_over_stands_where_github_says(
    job: tuple[Unresolved, JobState], status: str, move: Move, job_outcome: NextStep
) -> None:
    verdict = judge_unresolved(
        kind=job[0], state=job[1], status=status, conclusion=None, run=None, started=False, age=timedelta(days=99)
    )
    assert (verdict.move, verdict.job_outcome.next_step) == (move, job_outcome)


@pytest.mark.parametrize(("stood", "after"), [(0, 2), (3, 2), (10, 5), (60, 30), (120, 60), (10_000, 60)])
def test_a_job_is_asked_about_ever_more_seldom(stood: float, after: float) -> None:
    least, most = timedelta(minutes=2), timedelta(hours=1)
    assert next_ask_after(timedelta(minutes=stood), least=least, most=most) == timedelta(minutes=after)


@pytest.mark.parametrize(("kind", "state"), EVERY)
def test_a_job_that_waits_in_a_run_that_is_over_is_finished(kind: Unresolved, state: JobState) -> None:
    verdict = judge_unresolved(
        kind=kind,
        state=state,
        status="queued",
        conclusion=None,
        run=OverRun("startup_failure"),
        started=False,
        age=timedelta(0),
    )
    assert (verdict.move, verdict.job_outcome.next_step, verdict.job_outcome.conclusion) == (
        _M.FOLLOW,
        NextStep.FINISH,
        "startup_failure",
    )
