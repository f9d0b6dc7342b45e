"""The newer of two polls of one Pod wins, in one process and across two."""

from __future__ import annotations

from tests.integration.web.polls.stage import Stage
from tests.waiting import eventually


def poll_id(stage: Stage, uid: str) -> str:
    return str(stage.scalar("SELECT poll_id FROM offers WHERE pod_uid = :uid", uid=uid))


def test_the_newer_poll_wins_within_a_process(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    older = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    before = poll_id(stage, pod.uid)

    newer = web.begin_poll(pod.token)

    assert older.result(90).status_code == 204
    eventually(lambda: poll_id(stage, pod.uid) != before)
    assert web.web.polls.held == 1
    claim_id = stage.claim(pod, state="claimed")
    stage.mint(claim_id)
    assert newer.result(90).json()["claim_id"] == claim_id


def test_the_newer_poll_wins_across_two_processes(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    first, second = stage.start_web(), stage.start_web()
    older = first.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod, first))

    newer = second.begin_poll(pod.token)

    assert older.result(90).status_code == 204
    eventually(lambda: stage.is_offered(pod, second))
    claim_id = stage.claim(pod, state="claimed")
    stage.mint(claim_id)
    assert newer.result(90).json()["claim_id"] == claim_id


def test_an_older_poll_that_was_not_told_delivers_nothing(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    older = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    stage.execute("UPDATE offers SET web_id = 'another', poll_id = 'newer'")
    claim_id = stage.claim(pod, state="claimed")

    stage.mint(claim_id)

    assert older.result(90).status_code == 204
    assert stage.state(claim_id) == "minted"
    assert poll_id(stage, pod.uid) == "newer"


def test_two_polls_that_race_for_one_jit_get_the_same_one_or_nothing(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    processes = [stage.start_web(), stage.start_web()]

    polls = [process.begin_poll(pod.token) for process in processes for _ in range(3)]

    answers = [poll.result(90) for poll in polls]
    works = [answer.json() for answer in answers if answer.status_code == 200]
    assert {answer.status_code for answer in answers} <= {200, 204}
    assert works
    assert all(work == works[0] for work in works)
    assert stage.state(claim_id) == "delivered"
    assert len(stage.execute("SELECT id FROM claim_events WHERE transition = 'deliver'")) == 1
