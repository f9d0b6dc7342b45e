"""The handover: first the review, then the commit, then the answer."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text

from models.claims import deliver as deliveries
from models.claims.deliver import Delivery
from models.db.engine import in_transaction
from ostler.encryption import Cipher
from ostler.secrets import Secret
from ostler.task_names import STAMP
from tests.integration.web.polls.stage import JIT, Stage, WebProcess
from tests.waiting import eventually
from web.process.threads import CLUSTER_THREADS
from web.runners import handover

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Probe:
    """A probe that reads the claim's state when the first byte of an answer is passed to the server."""

    def __init__(self, stage: Stage, app: Any) -> None:
        self.stage = stage
        self.app = app
        self.seen: list[tuple[int, str]] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        async def probing(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and scope["path"] == "/runners/v1/dispatch":
                self.seen.append((message["status"], self.stage.scalar("SELECT state FROM claims")))
            await send(message)

        await self.app(scope, receive, probing)


def probed(stage: Stage, web: WebProcess) -> Probe:
    probe = Probe(stage, web._server.config.loaded_app)
    web._server.config.loaded_app = probe
    return probe


def test_delivered_is_committed_before_the_first_byte(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    stage.claim(pod)
    web = stage.start_web()
    probe = probed(stage, web)
    assert web.poll(pod.token).status_code == 200
    assert probe.seen == [(200, "delivered")]


def test_the_probe_sees_a_delivery_that_answers_without_its_commit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer_first(db: Connection, *, claim_id: int, pod_uid: str, **_rest: Any) -> Delivery | None:
        found = deliveries.deliver(db, claim_id=claim_id, pod_uid=pod_uid, **_rest)
        db.rollback()
        return found

    monkeypatch.setattr(handover, "deliver", answer_first)
    pod = stage.pod(stage.pool())
    stage.claim(pod)
    web = stage.start_web()
    probe = probed(stage, web)
    web.poll(pod.token)
    assert probe.seen == [(200, "minted")]


def test_a_token_that_the_api_server_refuses_gets_nothing(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    stage.cluster.review_says = False
    web = stage.start_web()

    assert web.poll(pod.token).status_code == 401
    assert stage.state(claim_id) == "minted"


def test_a_review_that_cannot_be_had_is_counted_and_the_delivery_goes_on(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    stage.cluster.review_says = None
    web = stage.start_web()

    assert web.poll(pod.token).status_code == 200
    assert stage.state(claim_id) == "delivered"
    assert web.web.counts["token_review.missed"] == 1


def test_a_review_that_hangs_is_waited_for_no_longer_than_allowed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "REVIEW_WITHIN", 0.3)
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    hanging = threading.Event()
    stage.cluster.on_review = lambda: hanging.wait(120)  # type: ignore[assignment]
    web = stage.start_web()

    assert web.poll(pod.token).status_code == 200
    assert stage.cluster.reviewed == [pod.uid]
    assert stage.state(claim_id) == "delivered"
    assert web.web.counts["token_review.missed"] == 1
    hanging.set()


def test_a_review_for_which_there_is_no_thread_is_waited_for_no_longer_than_allowed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "REVIEW_WITHIN", 0.3)
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    web = stage.start_web()
    hanging = threading.Event()
    for _ in range(CLUSTER_THREADS):
        web.web.threads._cluster.submit(hanging.wait, 120)

    assert web.poll(pod.token).status_code == 200
    assert stage.state(claim_id) == "delivered"
    assert web.web.counts["token_review.missed"] == 1
    hanging.set()
    eventually(lambda: web.web.threads._cluster._work_queue.qsize() == 0)
    assert stage.cluster.reviewed == []


def test_every_delivery_is_reviewed_also_of_a_token_that_is_remembered(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    stage.claim(pod)
    web = stage.start_web()
    assert web.poll(pod.token).status_code == 200
    assert web.poll(pod.token).status_code == 200
    stage.cluster.review_says = False
    assert web.poll(pod.token).status_code == 401
    assert stage.cluster.reviewed == [pod.uid] * 3


def test_no_connection_is_held_while_the_token_is_reviewed(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    stage.claim(pod)
    web = stage.start_web()
    transactions: list[bool] = []

    def while_the_call_is_out() -> None:
        transactions.append(in_transaction())
        # The listener's thread may have one for a moment; the delivery has none.
        eventually(lambda: web.web.engine.pool.checkedout() == 0)  # type: ignore[attr-defined]

    stage.cluster.on_review = while_the_call_is_out

    assert web.poll(pod.token).status_code == 200
    assert transactions == [False]


def test_an_idle_poll_asks_the_cluster_nothing(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web(poll_hold_min=0.2, poll_hold_max=0.3)
    assert web.poll(pod.token).status_code == 204
    assert stage.cluster.reviewed == []
    assert stage.cluster.looked_up == []


def test_nothing_is_delivered_to_an_older_poll_while_the_stamp_comes_off(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod, state="claimed")
    web = stage.start_web()
    answer = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    stage.mint(claim_id, notify=False)
    stage.execute("UPDATE claims SET stamp = 'removing'")
    stage.execute("SELECT pg_notify('ostler', :payload)", payload=f"minted {claim_id} {pod.uid}")
    eventually(lambda: web.web.counts["delivery.moved_on"] == 1)
    assert stage.state(claim_id) == "minted"

    stage.execute("UPDATE claims SET stamp = 'off'")
    stage.execute("SELECT pg_notify('ostler', :payload)", payload=f"minted {claim_id} {pod.uid}")

    assert answer.result(90).status_code == 200
    eventually(lambda: web.sender.named(STAMP) == [{"after": 5, "claim_id": claim_id, "chain_no": None}])


def test_a_new_poll_cancels_the_unstamp_of_its_pod_and_the_stamp_returns_later(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod, stamp="removing")
    web = stage.start_web()

    assert web.poll(pod.token).status_code == 200
    assert stage.scalar("SELECT stamp FROM claims") == "off"
    assert stage.scalar("SELECT stamp_after > now() + interval '1 s' AND due_at > stamp_after FROM claims")
    eventually(lambda: web.sender.named(STAMP) == [{"after": 5, "claim_id": claim_id, "chain_no": None}])


def test_new_poll_cancels_the_unstamp_of_its_pod_although_its_claim_was_locked_first(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod, stamp="removing")
    web = stage.start_web()
    with stage.engine.begin() as holder:
        holder.execute(text("SELECT 1 FROM claims WHERE id = :id FOR NO KEY UPDATE"), {"id": claim_id})
        answer = web.begin_poll(pod.token)
        eventually(lambda: web.web.counts["delivery.locked"] > 0)
    assert answer.result(90).status_code == 200
    assert stage.scalar("SELECT stamp FROM claims") == "off"


def test_a_jit_that_cannot_be_decrypted_is_not_delivered(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    other = Cipher([Secret("A" * 43 + "=")]).encrypt(Secret(JIT))
    stage.execute("UPDATE claims SET jit = :jit", jit=other)
    web = stage.start_web()

    assert web.poll(pod.token).status_code == 503
    assert stage.state(claim_id) == "minted"


def test_a_claim_of_another_pod_is_not_delivered(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    other = stage.pod(pod.pool_id)
    claim_id = stage.claim(other)
    web = stage.start_web(poll_hold_min=0.5, poll_hold_max=0.5)
    answer = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))

    stage.execute("SELECT pg_notify('ostler', :payload)", payload=f"minted {claim_id} {pod.uid}")

    assert answer.result(90).status_code == 204
    assert stage.state(claim_id) == "minted"


def test_neither_jit_nor_token_is_ever_logged(stage: Stage, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    caplog.set_level("DEBUG")
    pod = stage.pod(stage.pool())
    stage.claim(pod)
    web = stage.start_web()
    assert web.poll(pod.token).status_code == 200
    assert web.poll(pod.token).status_code == 200
    assert web.poll("a-bad-token").status_code == 401
    stage.cluster.review_says = False
    assert web.poll(pod.token).status_code == 401
    stage.stop_web(web)

    logged = caplog.text + "".join(capfd.readouterr())
    assert "claim.delivered" in logged
    assert "poll.refused" in logged
    for secret in (JIT, pod.token, "a-bad-token"):
        assert secret not in logged
