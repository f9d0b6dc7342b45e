"""A poll from its offer to its answer."""

from __future__ import annotations

import pytest

from tests.integration.web.polls.stage import JIT, Stage
from tests.waiting import eventually


def test_a_held_poll_is_answered_when_a_mint_is_notified(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    answer = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    claim_id = stage.claim(pod, state="claimed")
    stage.mint(claim_id)

    response = answer.result(90)

    assert response.status_code == 200
    assert response.json() == {
        "jit_config": JIT,
        "runner_name": f"r-{claim_id}",
        "claim_id": claim_id,
        "owner": "7",
    }
    assert response.headers["X-Ostler-Claim"] == str(claim_id)
    assert response.headers["X-Ostler-Runner"] == f"r-{claim_id}"
    assert stage.state(claim_id) == "delivered"
    assert not stage.is_offered(pod)


def test_plain_text_is_the_bare_jit(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    web = stage.start_web()

    response = web.poll(pod.token, accept="text/plain")

    assert response.text == JIT
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["X-Ostler-Claim"] == str(claim_id)


def test_a_lost_reply_is_repeated_with_the_same_jit(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    web = stage.start_web()

    first, second = web.poll(pod.token), web.poll(pod.token)

    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    assert stage.state(claim_id) == "delivered"
    assert not stage.is_offered(pod)


@pytest.mark.parametrize("state", ["retire", "executing", "releasing", "ended"])
def test_a_pod_that_is_to_go_is_told_410(stage: Stage, state: str) -> None:
    pod = stage.pod(stage.pool())
    match state:
        case "retire":
            stage.claim(pod, state="claimed", purpose="retire")
        case "ended":
            stage.claim(pod, state="ended", delivered_at="2026-01-01T00:00:00Z", ended_at="2026-01-01T00:00:00Z")
        case _:
            stage.claim(pod, state=state, delivered_at="2026-01-01T00:00:00Z")
    web = stage.start_web()

    assert web.poll(pod.token).status_code == 410
    assert not stage.is_offered(pod)
