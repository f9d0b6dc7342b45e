from __future__ import annotations

from typing import Any

import pytest

from lab.verdict import ended_unseen, judge

Event = dict[str, Any]


def github(*, job: int = 1, runner: str = "r1") -> list[Event]:
    """Return the events of a successful job in GitHub's log."""
    return [
        {"event": "job_queued", "job": job, "waiting": False},
        {"event": "runner_registered", "runner": runner},
        {"event": "runner_online", "runner": runner},
        {"event": "job_assigned", "job": job, "runner": runner},
        {"event": "job_started", "job": job, "runner": runner},
        {"event": "webhook_sent", "job": job, "action": "queued", "status": 202},
        {"event": "job_completed", "job": job, "runner": runner, "conclusion": "success"},
        {"event": "runner_deleted", "runner": runner},
    ]


def kubelet(*, job: int = 1, runner: str = "r1", pod: str = "p1") -> list[Event]:
    """Return the events of a successful job in the kubelet's log."""
    uid = f"uid-{pod}"
    return [
        {"event": "pod_bound", "pod": pod, "uid": uid},
        {"event": "poller_started", "pod": pod, "uid": uid},
        {"event": "jit_received", "pod": pod, "uid": uid, "runner_name": runner, "simulated": True},
        {"event": "poller_exited", "pod": pod, "uid": uid, "code": 0},
        {"event": "runner_started", "pod": pod, "uid": uid, "runner_name": runner},
        {"event": "job_started", "pod": pod, "uid": uid, "job": job},
        {"event": "job_finished", "pod": pod, "uid": uid, "job": job, "conclusion": "success"},
        {"event": "pod_ended", "pod": pod, "uid": uid, "phase": "Succeeded"},
        {"event": "pod_deleted", "pod": pod, "uid": uid, "phase": "Succeeded", "job": None},
    ]


def without(log: list[Event], *names: str) -> list[Event]:
    return [event for event in log if event["event"] not in names]


def test_a_run_in_which_all_went_well_has_no_problem() -> None:
    verdict = judge(github() + github(job=2, runner="r2"), kubelet() + kubelet(job=2, runner="r2", pod="p2"))

    assert verdict.ok
    assert (verdict.jobs, verdict.completed, verdict.executions) == (2, 2, 2)
    assert verdict.conclusions == {"success": 2}
    assert verdict.remaps is None


VIOLATIONS: dict[str, tuple[list[Event], list[Event]]] = {
    "job 1 is still queued": ([github()[0]], []),
    "job 1 is still assigned": (
        [*without(github(), "job_started", "job_completed")],
        [],
    ),
    "job 1 is still running": (without(github(), "job_completed"), []),
    "job 1 ended 2 times: success, success": ([*github(), github()[6]], []),
    "job 1 was executed or ended but never queued": (without(github(), "job_queued"), []),
    "job 1 was executed on 2 runners: r1, r2": ([*github(), {"event": "job_started", "job": 1, "runner": "r2"}], []),
    "job 1 was started 2 times on runner r1": ([*github(), github()[4]], []),
    "runner r1 executed 2 jobs": ([*github(), *github(job=2)], []),
    "job 1 ended with failure, and the run did not break it on purpose": (
        [*without(github(), "job_completed"), {**github()[6], "conclusion": "failure"}],
        [],
    ),
    "1 runners are still registered: r1": (without(github(), "runner_deleted"), []),
    "the JIT of runner r1 was used in 2 Pods: p1, p2": (github(), [*kubelet(), *kubelet(pod="p2")[:4]]),
    "Pod p1 was given the JITs of 2 runners": (github(), [*kubelet(), {**kubelet()[2], "runner_name": "r2"}]),
    "job 1 was executed by Pods 2 times: p1, p2": (github(), [*kubelet(), *kubelet(runner="r2", pod="p2")]),
    "job 1 was executed by Pods 2 times: p1, p1": (github(), [*kubelet()[:6], *kubelet()[5:]]),
    "Pod p1 executed 2 jobs": (github(), [*kubelet(), *kubelet(job=2)[5:7]]),
    "Pod p1 was killed while it executed job 1": (
        github(),
        [*kubelet()[:6], {"event": "killed", "pod": "p1", "uid": "uid-p1", "job": 1}],
    ),
    "Pod p1 was deleted while it executed job 1": (
        github(),
        [*kubelet()[:6], {**kubelet()[8], "phase": "Running", "job": 1}],
    ),
    "Pod p1 began job 1 and did not end it": (github(), kubelet()[:6]),
}


@pytest.mark.parametrize("problem", VIOLATIONS)
def test_every_violation_is_told_as_a_sentence(problem: str) -> None:
    verdict = judge(*VIOLATIONS[problem])

    assert not verdict.ok
    assert problem in verdict.problems


def test_a_job_that_was_broken_on_purpose_may_fail_and_its_pod_may_die() -> None:
    log = [*without(github(), "job_completed"), {**github()[6], "conclusion": "failure"}]
    pods = [*kubelet()[:6], {"event": "killed", "pod": "p1", "uid": "uid-p1", "job": 1}]

    assert judge(log, pods, expected_failures={1}).ok


def test_a_job_that_waits_for_its_gate_is_nobodys_fault_until_it_passed() -> None:
    waiting = {"event": "job_queued", "job": 1, "waiting": True}
    approved = {"event": "job_approved", "job": 1}

    assert judge([waiting], []).ok
    assert judge([waiting], []).waiting == 1
    assert judge([waiting, approved], []).problems == ("job 1 is still queued",)


def test_a_job_cancelled_in_the_queue_needs_no_runner() -> None:
    log = [
        {"event": "job_queued", "job": 1, "waiting": False},
        {"event": "job_cancelled", "job": 1, "runner": None},
        {"event": "job_completed", "job": 1, "runner": None, "conclusion": "cancelled"},
    ]

    assert judge(log, []).ok


def test_a_job_given_to_another_runner_after_the_first_never_began_is_fine() -> None:
    log = [
        *github(runner="r1")[:4],
        {"event": "job_requeued", "job": 1, "runner": "r1"},
        {"event": "runner_deleted", "runner": "r1"},
        *github(runner="r2")[1:],
    ]

    verdict = judge(log, [])

    assert verdict.ok
    assert verdict.requeued == 1


def test_jobs_that_ran_on_a_runner_minted_for_another_are_counted() -> None:
    log = github(job=1, runner="r2") + github(job=2, runner="r1") + github(job=3, runner="r3")

    assert judge(log, [], claimed={"r1": 1, "r2": 2, "r3": 3}).remaps == 2


def test_leftover_runners_can_be_allowed_and_are_still_listed() -> None:
    verdict = judge(without(github(), "runner_deleted"), [], allow_leftover_runners=True)

    assert verdict.ok
    assert verdict.leftover_runners == ("r1",)


def test_a_pod_that_is_deleted_while_idle_is_no_problem() -> None:
    pods = [*kubelet()[:2], {**kubelet()[8], "phase": "Running", "job": None}]

    assert judge([], pods).ok


def test_a_pod_whose_runner_was_refused_the_job_did_not_execute_it() -> None:
    log = [
        *github(runner="r1")[:4],
        {"event": "job_requeued", "job": 1, "runner": "r1"},
        {"event": "runner_deleted", "runner": "r1"},
        *github(runner="r2")[1:],
    ]
    refused = [*kubelet(runner="r1")[:6], {**kubelet()[6], "conclusion": "lost"}, *kubelet()[7:]]

    assert judge(log, [*refused, *kubelet(runner="r2", pod="p2")]).ok


def test_a_pod_that_lost_a_job_it_had_begun_did_execute_it() -> None:
    lost = [*kubelet()[:6], {**kubelet()[6], "conclusion": "lost"}, *kubelet()[7:]]

    verdict = judge(github(), [*lost, *kubelet(runner="r2", pod="p2")])

    assert "job 1 was executed by Pods 2 times: p1, p2" in verdict.problems


def test_a_pod_that_went_before_github_heard_of_its_start_did_not_execute_the_job() -> None:
    first: list[Event] = [
        {"event": "runner_registered", "runner": "r1"},
        {"event": "job_assigned", "job": 1, "runner": "r1"},
        {"event": "job_requeued", "job": 1, "runner": "r1"},
        {"event": "runner_deleted", "runner": "r1"},
    ]
    gone: list[Event] = [
        *kubelet()[:6],
        {"event": "pod_deleted", "pod": "p1", "uid": "uid-p1", "phase": "Running", "job": 1},
    ]
    log = [github(runner="r2")[0], *first, *github(runner="r2")[1:]]

    verdict = judge(log, gone + kubelet(runner="r2", pod="p2"), expected_failures={1})

    assert verdict.problems == ()
    assert verdict.executions == 1


def unseen(*, job: int = 1) -> list[Event]:
    """Return the events of a Pod whose runner ended unseen: the node has lost the end of the job."""
    end = {"event": "end_not_seen", "pod": "p1", "uid": "uid-p1", "job": job}
    deleted = {"event": "pod_deleted", "pod": "p1", "uid": "uid-p1", "phase": "Failed", "job": job}
    return [*kubelet()[:6], end, {**kubelet()[7], "phase": "Failed"}, deleted]


def ended_with(conclusion: str) -> list[Event]:
    return [{**event, "conclusion": conclusion} if "conclusion" in event else event for event in github()]


@pytest.mark.parametrize("conclusion", ["success", "cancelled"])
def test_a_runner_that_ended_unseen_after_its_job_did_not_break_it(conclusion: str) -> None:
    verdict = judge(ended_with(conclusion), unseen())

    assert verdict.ok, verdict.problems
    assert ended_unseen(ended_with(conclusion), unseen()) == {"uid-p1"}


@pytest.mark.parametrize("log", [ended_with("failure"), without(github(), "job_completed", "runner_deleted")])
def test_a_runner_that_ended_unseen_during_its_job_was_killed(log: list[Event]) -> None:
    assert "Pod p1 was killed while it executed job 1" in judge(log, unseen()).problems
    assert not ended_unseen(log, unseen())


def test_a_killed_runner_is_not_excused_by_the_success_of_its_job() -> None:
    pods = [{**event, "event": "killed"} if event["event"] == "end_not_seen" else event for event in unseen()]

    assert "Pod p1 was killed while it executed job 1" in judge(github(), pods).problems
    assert not ended_unseen(github(), pods)


def test_a_runner_that_ended_unseen_before_it_could_begin_did_not_execute_the_job() -> None:
    other = github(runner="r2")
    pods = [*unseen(), *kubelet(runner="r2", pod="p2")]

    verdict = judge(other, pods)

    assert verdict.ok, verdict.problems
